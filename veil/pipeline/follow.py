"""Keep the tables up to date while the journal grows: Structured Streaming tells when segments appear.

The stream carries the names of new segments, not their rows: what a batch does is an ordinary run, which finds by the
manifest what is not in the tables yet. So a batch that Spark gives twice changes nothing the second time, runs by hand may
come in between, the checkpoint can be thrown away, and a segment that cannot be read does not end the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from veil.journal.place import Place
from veil.pipeline.lifecycles import LifecyclesRun, run_lifecycles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT: Final = "_checkpoints/lifecycles"  # under the tables
EVERY_S: Final = 10.0
# What Spark's source of files gives for any file; the content is not read unless it is asked for.
_FILES: Final = "path string, modificationTime timestamp, length bigint, content binary"


def follow_lifecycles(
    spark: SparkSession,
    journal: Place,
    tables: Place,
    *,
    every_s: float | None = EVERY_S,
    on_run: Callable[[LifecyclesRun], None] = lambda run: None,
) -> StreamingQuery:
    """Start to follow the journal; `on_run` hears of each run. With `every_s` None: work off what is there, then end.

    A failure of a run ends the query, whose `awaitTermination` raises it.
    """
    segments = (
        spark.readStream.format("binaryFile")
        .schema(_FILES)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .load(journal.spark_path())
        .select("path")
    )

    def work_in(names: DataFrame, batch: int) -> None:
        on_run(run_lifecycles(spark, journal, tables))

    writer = (
        segments.writeStream.queryName("veil lifecycles")
        .option("checkpointLocation", tables.spark_path(CHECKPOINT))
        .foreachBatch(work_in)
    )
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()
