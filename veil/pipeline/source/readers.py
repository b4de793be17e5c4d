"""The format `veil` as Spark knows it, and its readers: a stream over a queue, a look at one, and what `drain` has taken."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from veil.client.api import ApiError, Failure
from veil.pipeline.options import HIDDEN, OptionError
from veil.pipeline.queues import QueueClient
from veil.pipeline.source.browse import BrowseFilter, browsed_parts
from veil.pipeline.source.columns import check_columns, schema_of
from veil.pipeline.source.holds import HeldPart, HeldStream
from veil.pipeline.source.options import AUTO, BROWSE, DRAIN, SQS, VEIL, SourceOptions
from veil.pipeline.source.segments import SealedPart, SealedStream
from veil.pipeline.source.stream import (
    Offset,
    SourcePartition,
    Stream,
    Tally,
    TokenBucket,
    log_to_stderr,
    serve_metrics,
)
from veil.pipeline.spark import freeze_imports
from veil.pipeline.sql import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def open_queue(options: SourceOptions) -> QueueClient:
    """The queue; raises OptionError where there is none."""
    try:
        return QueueClient(options.address, user_agent="pipeline source")
    except ApiError as error:
        if error.failure is Failure.UNREACHABLE:
            # In their words, with the address in it; the option may well be right.
            raise OptionError(
                "endpoint", options.address.endpoint, f"a service that answers: {error}"
            ) from None
        raise OptionError("queue", options.address.queue, f"a queue that can be used: {error}") from None


def way_to(client: QueueClient, options: SourceOptions) -> str:
    """`veil` or `sqs`."""
    if options.protocol == SQS:
        return SQS
    if client.is_veil():
        return VEIL
    if options.protocol == AUTO:
        return SQS
    raise OptionError("protocol", VEIL, f"sqs or auto: {client.endpoint} has none of Veil's own actions")


def open_stream(
    client: QueueClient, options: SourceOptions, at: Offset, tally: Tally, schema: pa.Schema
) -> Stream:
    """The stream whose log stands at that offset; it goes on by the way on which it began."""
    if at["by"] == VEIL:
        return HeldStream(client, options, at, tally)
    return SealedStream(client, options, at, tally, schema)


class Drained(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a block of `drain` has taken, as text for the reader: enough to find the rows on any executor."""

    held: list[HeldPart] = []
    sealed: list[SealedPart] = []

    @classmethod
    def of(cls, parts: Sequence[SourcePartition]) -> Drained:
        """The parts of a stream, all of which went the same way."""
        return cls(
            [part for part in parts if isinstance(part, HeldPart)],
            [part for part in parts if isinstance(part, SealedPart)],
        )


_DRAIN_EXPECTED = (
    "the block `with veil.pipeline.drain(spark, queue=…) as messages:`, at whose end they are deleted; a plain read cannot "
    "know when its result is safe"
)


def batch_reader(options: SourceOptions, schema: StructType) -> DataSourceReader:
    """The reader for the mode; raises OptionError where that is not one for a batch."""
    check_columns(schema.names)
    if options.drained is not None:
        return DrainedReader(options, schema)
    if options.mode == BROWSE:
        return BrowseReader(options, schema)
    if options.mode == DRAIN:
        raise OptionError("mode", DRAIN, _DRAIN_EXPECTED)
    raise OptionError("mode", None, f"browse, to look without receiving; or {_DRAIN_EXPECTED}")


def _rows(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """What a task gives Spark."""
    if isinstance(partition, SourcePartition):  # else Spark's own, where there are none
        yield from partition.batches(arrow_schema(schema))
        freeze_imports()


class DrainedReader(DataSourceReader):
    """Reads the parts that a block of `drain` holds: the same rows for every action."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        drained = msgspec.json.decode(self._options.drained or "", type=Drained)
        return [*drained.held, *drained.sealed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._schema)


class BrowseReader(DrainedReader):
    """Looks at messages in any state, as they are when the action begins: nothing that is sent later is shown."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with open_queue(options) as client:
            if not client.is_veil():
                raise OptionError(
                    "mode",
                    BROWSE,
                    f"a Veil server: {client.endpoint} cannot show messages without receiving them",
                )
            now_ms = int(time.time() * 1000)
            before_ms = now_ms if options.sent_before_ms is None else min(now_ms, options.sent_before_ms)
            look = BrowseFilter(options.sent_after_ms, before_ms, options.attributes)
            return browsed_parts(client, options.partitions, look)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query over one queue.

    Spark makes it in several processes, one of which only sends it on to the executors: so nothing is opened before the
    first question, and nothing that is open goes along.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._forget()

    def _forget(self) -> None:
        self._client: QueueClient | None = None
        self._stream: Stream | None = None
        self._first: Offset | None = None
        self._available_now = False
        self._pace = TokenBucket(self._options.rate, self._options.messages_max)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    # ---- what Spark asks

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._first is None:
            # Asked for more than once, and only with a new checkpoint: then everything begins anew.
            self._first = {"epoch": uuid.uuid4().hex, "n": 0, "by": way_to(self._opened(), self._options)}
        return cast(dict[str, Any], self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = cast(Offset, start)
        stream = self._running(begin)
        if self._available_now:
            # To say "nothing new" would be the end of it.
            time.sleep(self._pace.wait_s())
        # Whatever limit Spark hands over (it may say "all"), a batch stays within the option.
        rows_max = self._pace.allowance()
        end = stream.next_offset(begin, min(rows_max, getattr(limit, "max_rows", rows_max)))
        if end["n"] > begin["n"]:
            self._pace.spend(stream.size(end))
        return cast(dict[str, Any], end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._stream is None:
            return None
        return {"backlog": self._stream.behind(), **self._tally.facts()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        stream = self._running(cast(Offset, end))
        if end["n"] <= start["n"]:
            return []  # a batch for the sake of a watermark alone
        return stream.parts(cast(Offset, start), cast(Offset, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._schema)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.stop()
        if self._client is not None:
            self._client.close()
        self._forget()

    # ---- within

    def _opened(self) -> QueueClient:
        if self._client is None:
            check_columns(self._schema.names)
            self._client = open_queue(self._options.for_stream())
        return self._client

    def _running(self, at: Offset) -> Stream:
        """The stream, begun where Spark's log is: `at` is an offset of that log."""
        if self._stream is None:
            if not (isinstance(at, dict) and {"epoch", "n", "by"} <= at.keys()):
                expected = f"the checkpoint of a query over this source, which has no offset like {at!r}"
                raise OptionError("checkpointLocation", HIDDEN, expected)
            log_to_stderr()
            client = self._opened()
            self._tally = Tally(self._options.address.queue)
            if self._options.metrics_port is not None:
                serve_metrics(self._tally, self._options.metrics_port)
            self._stream = open_stream(client, self._options, at, self._tally, arrow_schema(self._schema))
            if self._available_now:
                self._stream.limit_to_backlog()
        return self._stream


class VeilDataSource(DataSource):
    """`spark.readStream.format("veil")`, and what else Spark can do with a queue."""

    @classmethod
    def name(cls) -> str:
        return "veil"

    def schema(self) -> str:
        options = SourceOptions.read(self.options)
        return schema_of(options.body_schema, browsing=options.mode == BROWSE)

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return QueueStreamReader(SourceOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from veil.pipeline.sink.options import SinkOptions
        from veil.pipeline.sink.writers import QueueWriter

        return QueueWriter(SinkOptions.read(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from veil.pipeline.sink.options import SinkOptions
        from veil.pipeline.sink.writers import QueueStreamWriter

        return QueueStreamWriter(SinkOptions.read(self.options), schema, overwrite)
