"""Taking what is in a queue as one batch: held while the block runs, deleted when it ends well."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from veil.core.limits import IN_FLIGHT_MAX
from veil.pipeline.options import OptionValues
from veil.pipeline.source.options import DRAINED, SQS, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from veil.pipeline.source.stream import Offset, Stream


@contextmanager
def drain(spark: SparkSession, *, queue: str, **options: object) -> Iterator[DataFrame]:
    """The messages that are in the queue now, as a DataFrame; every action on it sees the same ones.

    They are held for as long as the block runs, and deleted when it ends. When an exception leaves it they stay in the
    queue and come back when their windows end. Options are those of the source; `maxMessages` bounds how many are taken.
    """
    from veil.pipeline.source.readers import Drained, open_queue, open_stream, way_to
    from veil.pipeline.source.stream import Tally
    from veil.pipeline.spark.workers import register

    given = {name: str(value) for name, value in options.items() if value is not None} | {"queue": queue}
    most = OptionValues({"maxMessages": given.pop("maxMessages", "")})
    count = most.whole("maxMessages", IN_FLIGHT_MAX, 1, IN_FLIGHT_MAX)
    register(spark)
    with ExitStack() as stack:
        read = SourceOptions.read(given)
        client = stack.enter_context(open_queue(read))
        way = way_to(client, read)
        if (
            way == SQS
            and read.segments is None
            and str(spark.conf.get("spark.master", "")).startswith("local")
        ):
            # What a drain has taken need not survive it: without the block nobody will delete it.
            given["segments"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="veil-drain-"))
            read = SourceOptions.read(given)
        frame = spark.read.format("veil").options(**given)
        schema = _arrow_columns(spark, read)
        at: Offset = {"epoch": uuid.uuid4().hex, "n": 0, "by": way}
        stream = open_stream(client, read, at, Tally(queue), schema)
        stack.callback(stream.stop)
        ends = _take(stream, at, count)
        parts = [part for begin, end in pairwise([at, *ends]) for part in stream.parts(begin, end)]
        taken = msgspec.json.encode(Drained.of(parts)).decode()
        yield frame.option(DRAINED, taken).load()
        if ends and not stream.acknowledge(ends[-1]):
            raise RuntimeError(
                f"queue {queue}: some messages could not be deleted; they come back when their windows end"
            )


def _take(stream: Stream, at: Offset, count: int) -> list[Offset]:
    """Rounds of receives until the queue is empty or enough was taken; nothing is acknowledged."""
    stream.limit_to_backlog()
    ends: list[Offset] = []
    while count > 0:
        end = stream.take(ends[-1] if ends else at, count)
        if end is None:
            break
        ends.append(end)
        count -= stream.size(end)
    return ends


def _arrow_columns(spark: SparkSession, options: SourceOptions) -> Any:
    from veil.pipeline.source.columns import schema_of
    from veil.pipeline.sql import arrow_schema

    return arrow_schema(spark.createDataFrame([], schema_of(options.body_schema)).schema)
