"""Read dead letters without receiving them: executors look at their parts page by page, and leave them as Parquet.

Whoever asks further questions asks the Parquet: what was seen once is not looked at again, and no process holds more
than a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from veil.pipeline.dead_letters.calls import PAGE_MAX, DeadLetterQueue
from veil.pipeline.dead_letters.columns import PEEKED
from veil.pipeline.dead_letters.page_batch import to_batch
from veil.pipeline.dead_letters.parts import Part, divided
from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.registering import check_workers, this_python
from veil.pipeline.schemas import struct_of
from veil.pipeline.source.arrow_schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from veil.journal.place import Place


@contextmanager
def peeked(
    spark: SparkSession,
    where: QueuePlace,
    queues: Sequence[str],
    tables: Place,
    *,
    body_chars_max: int | None = None,
) -> Iterator[DataFrame]:
    """The messages of the queues (PEEKED), for the block: their bodies whole, or their first characters.

    Not one instant: a message that comes or goes while this reads is in it or not. Each is in it once.
    """
    folder = f"_dead-letters-{uuid4().hex[:12]}"
    parts: list[Part] = []
    check_workers(spark)
    for queue in queues:
        with DeadLetterQueue(replace(where, queue=queue), user_agent="pipeline dead-letters") as opened:
            parts += divided(opened, queue)
    try:
        numbers = spark.range(0, len(parts), 1, len(parts))
        columns = struct_of(PEEKED)
        with this_python(spark):
            rows = numbers.mapInArrow(_Reader(where, parts, body_chars_max, arrow_schema(columns)), columns)
        rows.write.parquet(tables.spark_path(folder))
        yield spark.read.schema(columns).parquet(tables.spark_path(folder))
    finally:
        tables.remove_folder(folder)


class _Reader:
    """Reads the parts of the numbers it is given, on an executor."""

    def __init__(
        self, where: QueuePlace, parts: Sequence[Part], body_chars_max: int | None, schema: pa.Schema
    ) -> None:
        self._where, self._parts, self._body_chars_max = where, parts, body_chars_max
        self._schema = schema  # made by the driver: only there can Spark read columns that are written out

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(self._parts[number])

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        with DeadLetterQueue(
            replace(self._where, queue=part.queue), user_agent="pipeline dead-letters"
        ) as queue:
            token: str | None = None
            while True:
                page = queue.peek(PAGE_MAX, token=token, after=part.after, up_to=part.up_to)
                if page.messages:
                    yield to_batch(page.messages, part.queue, self._body_chars_max, self._schema)
                token = page.next_token
                if token is None:
                    return
