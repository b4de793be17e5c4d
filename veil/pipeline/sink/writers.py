"""The writers that Spark talks to, for a query and for a single write, and their tasks: each sends the rows of a partition."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from veil.journal.storage import Storage
from veil.pipeline.options import OptionError
from veil.pipeline.queues import QueueAddress, shared
from veil.pipeline.sink.options import SinkColumns, SinkOptions
from veil.pipeline.sink.sender import (
    RowBatch,
    RowBatcher,
    RowRefused,
    Sender,
    Sent,
    SinkRow,
    is_fifo,
    rows_of,
    why_refused,
)
from veil.pipeline.spark import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RefusedRows:
    """Of one partition of one write; the file appears whole, when the block has ended well."""

    def __init__(self, error_path: str | None, name: str, partition: int, key_name: str | None) -> None:
        self._place = None if error_path is None else Storage.at(error_path)
        self._name, self._partition, self._key_name = name, partition, key_name
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None
        self.count = 0

    def __enter__(self) -> RefusedRows:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._file is None and kind is None and self._place is not None:
            # An earlier try of this task may have refused what was taken now.
            self._place.remove(self._name)
        self._stack.__exit__(kind, error, trace)

    def add(self, row: SinkRow, reason: str) -> None:
        """Write the row down with the reason; raises RowRefused where there is no error path."""
        if self._place is None:
            key = None if self._key_name is None else (self._key_name, row.key)
            raise RowRefused(row.queue, self._partition, row.ordinal, key, reason)
        if self._file is None:
            self._file = self._stack.enter_context(self._place.writing(self._name))
        self._file.write(_line(row, self._partition, reason))
        self.count += 1


def _line(row: SinkRow, partition: int, reason: str) -> bytes:
    draft = row.draft
    told = {
        "reason": reason,
        "queue": row.queue,
        "partition": partition,
        "row": row.ordinal,
        "key": None if row.key is None else str(row.key),
        "body": draft.body,
        "attributes": {name: _attribute(*value) for name, value in (draft.attributes or {}).items()},
        "group": draft.group,
        "deduplication_id": draft.deduplication_id,
        "delay_s": draft.delay_s,
        "trace_header": draft.trace_header,
    }
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _attribute(data_type: str, value: str | bytes) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"data_type": data_type, "binary_value": base64.b64encode(value).decode()}
    return {"data_type": data_type, "string_value": value}


# Rows that are made into entries before they are sent: bounds the memory, and how long a stop takes.
_SLICE: Final = 2_000


@dataclass
class PartitionSent(WriterCommitMessage):
    """What one task did: messages by queue, and rows that could not be sent."""

    sent: Counter[str] = field(default_factory=Counter)
    refused: int = 0


class PartitionWrite:
    """The write of one partition; `write_name` is the same whenever the same rows are written again."""

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        service: QueueAddress,
        write_name: str,
        partition: int,
    ) -> None:
        self._options, self._columns = options, columns
        self._name, self._partition = f"{write_name}/{partition}", partition
        self._error_file = f"{write_name}/part-{partition:05d}.jsonl"
        self._sender = shared(Sender, service)
        self._there: dict[str, bool] = {}
        self._done = PartitionSent()
        self._under_way: Future[Sent] | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartitionSent:
        """Send all rows; raises RowRefused or SinkFailed."""
        options = self._options
        try:
            with RefusedRows(
                options.error_path, self._error_file, self._partition, options.key_column
            ) as refused:
                self._write(batches, refused)
                self._done.refused = refused.count
        finally:
            if self._under_way is not None:  # a row was refused: nothing goes on behind the caller's back
                wait([self._under_way])
        freeze_imports()
        return self._done

    def _write(self, batches: Iterator[pa.RecordBatch], refused: RefusedRows) -> None:
        cutter, ordinal = RowBatcher(self._options.calls_at_once, self._sender.entries_max), 0
        for batch in batches:
            for begin in range(0, batch.num_rows, _SLICE):
                piece = batch.slice(begin, _SLICE)
                for row in rows_of(piece, self._columns, self._options.queue, ordinal):
                    reason = self._why_refused(row)
                    if reason is None:
                        cutter.add(row)
                    else:
                        refused.add(row, reason)
                ordinal += piece.num_rows
                self._send(cutter.full(), refused)
        self._send(cutter.rest(), refused)
        self._settle(refused)

    def _why_refused(self, row: SinkRow) -> str | None:
        draft = row.draft
        if not is_fifo(row.queue):
            # It would be refused there; rows for queues of both kinds have it in one column.
            draft.deduplication_id = None
        elif draft.deduplication_id is None:
            if self._options.deduplication_column is not None:
                return f"{self._options.deduplication_column} is null, and is to be the deduplication id"
            draft.deduplication_id = f"{self._name}/{row.ordinal}"
        reason = why_refused(row)
        if reason is None and not self._is_there(row.queue):
            reason = "there is no such queue"
        return reason

    def _is_there(self, queue: str) -> bool:
        known = self._there.get(queue)
        if known is None:
            known = self._there[queue] = self._sender.url(queue, self._options.retry_s) is not None
        return known

    def _send(self, sequences: list[list[RowBatch]], refused: RefusedRows) -> None:
        """Begin to send, once what was begun before is done: the next rows are made meanwhile."""
        if sequences:
            self._settle(refused)
            self._under_way = self._sender.begin(
                sequences, self._name, self._options.calls_at_once, self._options.retry_s
            )

    def _settle(self, refused: RefusedRows) -> None:
        if self._under_way is None:
            return
        sent, failed = self._under_way.result()
        self._under_way = None
        self._done.sent.update(sent)
        for row, reason in sorted(failed, key=lambda each: each[0].ordinal):
            refused.add(row, reason)


_log = logging.getLogger(__name__)

_QUERY = "sql.streaming.queryId"  # survives a restart, unlike the run's
_BATCH = "streaming.sql.batchId"


class _Prepared:
    """What driver and executors know of a write: options and columns, checked, and the service as the driver found it."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool, mode: str) -> None:
        if overwrite:
            raise OptionError(
                mode, "overwrite" if mode == "mode" else "complete", "append: a queue keeps what it has"
            )
        self.options, self.columns = options, SinkColumns.find(schema, options)
        self.service = _found(options)

    def write(self, name: str, batches: Iterator[pa.RecordBatch]) -> PartitionSent:
        partition = _task().partitionId()
        return PartitionWrite(self.options, self.columns, self.service, name, partition).write(batches)


class QueueWriter(DataSourceArrowWriter):
    """`df.write.format("veil")`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self._prepared = _Prepared(options, schema, overwrite=overwrite, mode="mode")
        # Made on the driver, once: every try of a task has the same.
        self._name = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._prepared.write(self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(messages)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("veil")`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if options.write_id is not None:
            raise OptionError("writeId", options.write_id, "nothing: a query names its batches itself")
        self._prepared = _Prepared(options, schema, overwrite=overwrite, mode="outputMode")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        assert query is not None, "Spark names no query"
        assert batch is not None, "Spark names no batch"
        return self._prepared.write(f"{query}/{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        # Everything was sent by the tasks; that this may be called again for a batch changes nothing.
        _tell(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "not in a task"
    return task


def _found(options: SinkOptions) -> QueueAddress:
    """The service, and that the queue is there: a mistake is better told before the first task than by each of them."""
    with Sender(options.service) as sender:
        if options.queue is not None:
            if sender.url(options.queue, options.retry_s) is None:
                raise OptionError("queue", options.queue, f"a queue that exists at {sender.endpoint}")
            if options.deduplication_column is not None and not is_fifo(options.queue):
                raise OptionError(
                    "deduplicationColumn",
                    options.deduplication_column,
                    f"a FIFO queue; {options.queue} deduplicates nothing",
                )
        return QueueAddress("", sender.endpoint, sender.region, options.profile)


def _tell(messages: list[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, PartitionSent)]
    for queue in sorted({queue for each in done for queue in each.sent}):
        _log.info("queue %s: %d messages sent", queue, sum(each.sent[queue] for each in done))
    refused = sum(each.refused for each in done)
    if refused:
        _log.warning("%d rows could not be sent and are in the error path", refused)
