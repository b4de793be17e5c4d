"""The writers that Spark talks to, for a query and for a single write, and their tasks: each sends the rows of a partition."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import IO, TYPE_CHECKING, Final

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


Refuse = Callable[[SinkRow, str], None]
# Rows that are made into entries before they are sent: bounds the memory, and how long a stop takes.
_SLICE: Final = 2_000


@dataclass
class PartitionSent(WriterCommitMessage):
    """What one task did: messages by queue, and rows that could not be sent."""

    sent: Counter[str] = field(default_factory=Counter)
    refused: int = 0


@contextmanager
def refused_rows(
    done: PartitionSent, error_path: str | None, file_name: str, partition: int, key_name: str | None
) -> Iterator[Refuse]:
    """A function that counts a row and writes it down with the reason, in a file that appears whole when the block has ended
    well; without an error path it raises RowRefused."""
    place = None if error_path is None else Storage.at(error_path)

    def refuse(row: SinkRow, reason: str) -> None:
        if place is None:
            key = None if key_name is None else (key_name, row.key)
            raise RowRefused(row.queue, partition, row.ordinal, key, reason)
        if not done.refused:
            files.append(stack.enter_context(place.writing(file_name)))
        files[0].write(_line(row, partition, reason))
        done.refused += 1

    files: list[IO[bytes]] = []
    with ExitStack() as stack:
        yield refuse
    if not done.refused and place is not None:
        # An earlier try of this task may have refused what was taken now.
        place.remove(file_name)


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
        self._is_there = cache(lambda queue: self._sender.url(queue, options.retry_s) is not None)
        self._done = PartitionSent()
        self._under_way: Future[Sent] | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartitionSent:
        """Send all rows; raises RowRefused or SinkFailed."""
        options = self._options
        try:
            with refused_rows(
                self._done, options.error_path, self._error_file, self._partition, options.key_column
            ) as refuse:
                self._write(batches, refuse)
        finally:
            if self._under_way is not None:  # a row was refused: nothing goes on behind the caller's back
                wait([self._under_way])
        freeze_imports()
        return self._done

    def _write(self, batches: Iterator[pa.RecordBatch], refuse: Refuse) -> None:
        cutter, ordinal = RowBatcher(self._options.calls_at_once, self._sender.entries_max), 0
        for batch in batches:
            for begin in range(0, batch.num_rows, _SLICE):
                piece = batch.slice(begin, _SLICE)
                for row in rows_of(piece, self._columns, self._options.queue, ordinal):
                    reason = self._why_refused(row)
                    if reason is None:
                        cutter.add(row)
                    else:
                        refuse(row, reason)
                ordinal += piece.num_rows
                self._send(cutter.full(), refuse)
        self._send(cutter.rest(), refuse)
        self._settle(refuse)

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

    def _send(self, sequences: list[list[RowBatch]], refuse: Refuse) -> None:
        """Begin to send, once what was begun before is done: the next rows are made meanwhile."""
        if sequences:
            self._settle(refuse)
            self._under_way = self._sender.begin(
                sequences, self._name, self._options.calls_at_once, self._options.retry_s
            )

    def _settle(self, refuse: Refuse) -> None:
        if self._under_way is None:
            return
        sent, failed = self._under_way.result()
        self._under_way = None
        self._done.sent.update(sent)
        for row, reason in sorted(failed, key=lambda each: each[0].ordinal):
            refuse(row, reason)


_log = logging.getLogger(__name__)

_QUERY = "sql.streaming.queryId"  # survives a restart, unlike the run's
_BATCH = "streaming.sql.batchId"


class _Writer:
    """What driver and executors know of a write: options and columns, checked, and the service as the driver found it."""

    def __init__(
        self, options: SinkOptions, schema: StructType, refused_mode: tuple[str, str] | None
    ) -> None:
        if refused_mode is not None:
            raise OptionError(*refused_mode, "append: a queue keeps what it has")
        self._options, self._columns = options, SinkColumns.find(schema, options)
        self._service = _found(options)

    def _write(self, name: str, batches: Iterator[pa.RecordBatch]) -> PartitionSent:
        partition = _task().partitionId()
        return PartitionWrite(self._options, self._columns, self._service, name, partition).write(batches)


class QueueWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("veil")`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, ("mode", "overwrite") if overwrite else None)
        # Made on the driver, once: every try of a task has the same.
        self._name = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(messages)


class QueueStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("veil")`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if options.write_id is not None:
            raise OptionError("writeId", options.write_id, "nothing: a query names its batches itself")
        super().__init__(options, schema, ("outputMode", "complete") if overwrite else None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        return self._write(f"{task.getLocalProperty(_QUERY)}/{task.getLocalProperty(_BATCH)}", iterator)

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
        return QueueAddress("", sender.endpoint, sender.region, options.service.profile)


def _tell(messages: list[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, PartitionSent)]
    for queue in sorted({queue for each in done for queue in each.sent}):
        _log.info("queue %s: %d messages sent", queue, sum(each.sent[queue] for each in done))
    refused = sum(each.refused for each in done)
    if refused:
        _log.warning("%d rows could not be sent and are in the error path", refused)
