"""The writers that Spark talks to, for a query and for a single write; what they do stands in `PartitionWrite`."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from veil.pipeline.option_error import OptionError
from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.sink.columns import SinkColumns
from veil.pipeline.sink.options import SinkOptions
from veil.pipeline.sink.partition_write import PartitionSent, PartitionWrite
from veil.pipeline.sink.row import is_fifo
from veil.pipeline.sink.sender import Sender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("veil.pipeline.sink")

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


def _found(options: SinkOptions) -> QueuePlace:
    """The service, and that the queue is there: a mistake is better told before the first task than by each of them."""
    sender = Sender(options.service)
    try:
        if options.queue is not None:
            if sender.url(options.queue, options.patience_s) is None:
                raise OptionError("queue", options.queue, f"a queue that exists at {sender.endpoint}")
            if options.deduplication_column is not None and not is_fifo(options.queue):
                raise OptionError(
                    "deduplicationColumn",
                    options.deduplication_column,
                    f"a FIFO queue; {options.queue} deduplicates nothing",
                )
        return QueuePlace("", sender.endpoint, sender.region, options.profile)
    finally:
        sender.close()


def _tell(messages: list[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, PartitionSent)]
    for queue in sorted({queue for each in done for queue in each.sent}):
        log.info("queue %s: %d messages sent", queue, sum(each.sent[queue] for each in done))
    refused = sum(each.refused for each in done)
    if refused:
        log.warning("%d rows could not be sent and are in the error path", refused)
