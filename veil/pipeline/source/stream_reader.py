"""The streaming reader that Spark talks to; what it does stands in `Stream`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from veil.pipeline.option_error import OptionError
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.source.arrow_schema import arrow_schema
from veil.pipeline.source.held_stream import HeldStream
from veil.pipeline.source.options import AUTO, SQS, VEIL, SourceOptions
from veil.pipeline.source.sealed_stream import SealedStream
from veil.pipeline.source.stream import Offset, Part, Stream
from veil.pipeline.source.tally import Tally, serve_metrics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


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
        self._budget: int | None = None
        self._available_now = False
        self._asked_at_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # ---- what Spark asks

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._first is None:
            # Asked for more than once, and only with a new checkpoint: then everything begins anew.
            self._first = {"epoch": uuid.uuid4().hex, "n": 0, "by": self._way()}
        return cast(dict[str, Any], self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = cast(Offset, start)
        stream = self._running(begin)
        if self._available_now and self._budget is None:
            self._budget = stream.backlog()
        now_s = time.monotonic()
        rows_max = self._options.rows_max(None if self._asked_at_s is None else now_s - self._asked_at_s)
        self._asked_at_s = now_s
        # Whatever limit Spark hands over (it may say "all"), a batch stays within the option.
        rows_max = min(rows_max, getattr(limit, "max_rows", rows_max))
        end = stream.next_offset(begin, rows_max, budget=self._budget)
        if self._budget is not None:
            taken = stream.size(end) if end["n"] > begin["n"] else self._budget
            self._budget = max(0, self._budget - taken)
        return cast(dict[str, Any], end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._stream is None:
            return None
        return {"backlog": self._stream.backlog()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        stream = self._running(cast(Offset, end))
        return stream.parts(cast(Offset, start), cast(Offset, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return cast(Part, partition).batches(arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        # A second way to the same end: `latestOffset` comes earlier, and also after the last batch.
        if self._stream is not None:
            self._stream.acknowledge(cast(Offset, end))

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.stop()
        if self._client is not None:
            self._client.close()
        self._forget()

    # ---- within

    def _opened(self) -> QueueClient:
        if self._client is None:
            self._client = QueueClient(self._options.place, user_agent="pipeline source")
        return self._client

    def _way(self) -> str:
        if self._options.protocol != AUTO:
            return self._options.protocol
        return VEIL if self._opened().is_veil() else SQS

    def _running(self, at: Offset) -> Stream:
        if self._stream is None:
            client = self._opened()
            tally = Tally(self._options.place.queue)
            if at["by"] == VEIL:
                self._stream = HeldStream(client, self._options, at["epoch"], tally)
            else:
                if self._options.segments is None:
                    raise OptionError(
                        "segments",
                        None,
                        "a directory (path or URI) that driver and executors share, for what was received",
                    )
                self._stream = SealedStream(
                    client, self._options, at["epoch"], tally, arrow_schema(self._schema)
                )
            if self._options.metrics_port is not None:
                serve_metrics(tally, self._options.metrics_port)
        return self._stream
