"""`veil pipeline lifecycles`: work what is new in the journal into the tables, once or while the journal grows.

The tables depend on the events alone: not on how many runs there were, in which order segments came, nor on what died on the
way. A run reads the new segments and the hours (of sending) that their messages belong to. Where the new events are few, it
takes the rows of their messages out of those hours and makes these again; where they are many, it writes the hours again.
Messages with leases that are still open are looked at too whenever the last known instant has moved on: a holder that
crashed sends no event, time alone ends its lease.

To follow a journal, Structured Streaming tells when segments appear. The stream carries their names, not their rows: what a
batch does is an ordinary run, which finds by the manifest what is not in the tables yet. So a batch that Spark gives twice
changes nothing the second time, runs by hand may come in between, the checkpoint can be thrown away, and a segment that
cannot be read does not end the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from veil.journal.storage import Storage, read_mark
from veil.pipeline.lifecycles.generation import Generation, OnStep
from veil.pipeline.lifecycles.journal import BYTES_ON_DRIVER_MAX, broken_ones, find_segments, new_bytes
from veil.pipeline.lifecycles.lock import only_run
from veil.pipeline.lifecycles.store import (
    Broken,
    Manifest,
    TablesRefused,
    load_manifest,
    remove_files,
    remove_orphans,
    save_manifest,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True, slots=True)
class LifecyclesRun:
    """What a run did."""

    segments: int  # new ones that are in the tables now
    events: int
    partitions: int  # hours of sending that were written anew
    broken: tuple[Broken, ...]  # set aside; later runs try them again
    generation: int  # of the tables, after the run
    newest: datetime | None  # the last known instant: what is open is judged by it
    seconds: float

    @property
    def changed(self) -> bool:
        """Whether there was anything new."""
        return self.segments > 0


def run_lifecycles(
    spark: SparkSession, journal: Storage, tables: Storage, *, on_step: OnStep = lambda step: None
) -> LifecyclesRun:
    """Work what is new in the journal into the tables.

    Raises TablesBusy while another run does that, and TablesRefused where the tables are not this journal's or not
    readable. A segment that cannot be read is set aside and named in the answer. `on_step` hears how far the run is.
    """
    begun_s = time.monotonic()
    with only_run(tables) as check_alone:
        before = load_manifest(tables)
        store_id = _same_store(journal, tables, before)
        remove_orphans(tables, before)
        on_step("begun")
        found = find_segments(journal, before)
        after, events, partitions = before, 0, 0
        while found.segments:
            run = Generation(spark, journal, tables, before, found, on_step)
            try:
                after = run.made()
            except Exception:
                # Footers were well; now the pages are looked at. If all of them are too, it was something else.
                worse = broken_ones(journal, found.segments)
                if not worse:
                    raise
                found = found.without(worse)
                continue
            events, partitions = run.events, len(run.touched)
            break
        after = msgspec.structs.replace(after, broken=list(found.broken), store_id=store_id)
        if after != before:
            check_alone()
            # Those were named by the generation before the last: nobody who began since then reads them.
            if after.generation != before.generation:
                remove_files(tables, before.retired)
            on_step("before the manifest")
            save_manifest(tables, after)
            on_step("after the manifest")
    return LifecyclesRun(
        segments=len(found.segments),
        events=events,
        partitions=partitions,
        broken=found.broken,
        generation=after.generation,
        newest=None if after.newest_ms is None else datetime.fromtimestamp(after.newest_ms / 1000, UTC),
        seconds=time.monotonic() - begun_s,
    )


def is_brief(journal: Storage, tables: Storage) -> bool:
    """Whether a run would have little to do now: then a session is best that compiles quickly (`SparkSettings.brief`)."""
    return new_bytes(journal, load_manifest(tables)) <= BYTES_ON_DRIVER_MAX


def _same_store(journal: Storage, tables: Storage, manifest: Manifest) -> str | None:
    mark = read_mark(journal)
    if mark is None:
        return manifest.store_id
    if manifest.store_id not in (None, mark[0]):
        # Order keys say which message; two stores give out the same ones.
        raise TablesRefused(
            f"the tables at {tables.uri} belong to another store than the journal at {journal.uri}: "
            "choose another place with --tables"
        )
    return mark[0]


CHECKPOINT: Final = "_checkpoints/lifecycles"  # under the tables
EVERY_S: Final = 10.0
# What Spark's source of files gives for any file; the content is not read unless it is asked for.
_FILES: Final = "path string, modificationTime timestamp, length bigint, content binary"


def follow_lifecycles(
    spark: SparkSession,
    journal: Storage,
    tables: Storage,
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
