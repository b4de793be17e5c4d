"""The streaming reader that Spark talks to; what it does stands in `Stream`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from veil.pipeline.queues.client import QueueClient
from veil.pipeline.source.arrow_schema import arrow_schema
from veil.pipeline.source.columns import check_columns
from veil.pipeline.source.open_queue import open_queue, open_stream, way_to
from veil.pipeline.source.options import SourceOptions
from veil.pipeline.source.pace import Pace
from veil.pipeline.source.stream import Offset, Part, Stream
from veil.pipeline.source.tally import Tally, serve_metrics, speak_up

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
        self._available_now = False
        self._pace = Pace(self._options.rate, self._options.messages_max)
        self._acknowledged = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

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
        new = self._stream is None
        stream = self._running(begin)
        if self._available_now and new:
            stream.only_what_is_there()
        if self._available_now:
            # To say "nothing new" would be the end of it.
            time.sleep(self._pace.wait_s())
        # Whatever limit Spark hands over (it may say "all"), a batch stays within the option.
        rows_max = self._pace.allowance()
        end = stream.next_offset(begin, min(rows_max, getattr(limit, "max_rows", rows_max)))
        self._acknowledged = begin["n"]
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
        return cast(Part, partition).batches(arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        # A second way to the same end: `latestOffset` comes earlier, and also after the last batch.
        if self._stream is not None and end["n"] > self._acknowledged:
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
            check_columns(self._schema.names)
            self._client = open_queue(self._options.for_stream())
        return self._client

    def _running(self, at: Offset) -> Stream:
        """The stream, begun where Spark's log is: `at` is an offset of that log."""
        if self._stream is None:
            speak_up()
            client = self._opened()
            self._tally = Tally(self._options.place.queue)
            if self._options.metrics_port is not None:
                serve_metrics(self._tally, self._options.metrics_port)
            self._stream = open_stream(client, self._options, at, self._tally, arrow_schema(self._schema))
        return self._stream
