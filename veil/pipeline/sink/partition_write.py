"""One task of a write: the rows of a partition become messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.sink.columns import SinkColumns
from veil.pipeline.sink.cutting import Batch, Cutter
from veil.pipeline.sink.options import SinkOptions
from veil.pipeline.sink.refused_rows import RefusedRows
from veil.pipeline.sink.row import Row, is_fifo, rows_of, why_refused
from veil.pipeline.sink.sender import Sender, sender_for

if TYPE_CHECKING:
    import pyarrow as pa

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
        self, options: SinkOptions, columns: SinkColumns, service: QueuePlace, write_name: str, partition: int
    ) -> None:
        self._options, self._columns = options, columns
        self._name, self._partition = f"{write_name}/{partition}", partition
        self._error_file = f"{write_name}/part-{partition:05d}.jsonl"
        self._sender: Sender = sender_for(service)
        self._there: dict[str, bool] = {}
        self._done = PartitionSent()

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartitionSent:
        """Send all rows; raises RowRefused or SendFailed."""
        options, cutter, ordinal = self._options, Cutter(self._options.calls_at_once), 0
        with RefusedRows(
            options.error_path, self._error_file, self._partition, options.key_column
        ) as refused:
            for batch in batches:
                for begin in range(0, batch.num_rows, _SLICE):
                    piece = batch.slice(begin, _SLICE)
                    for row in rows_of(piece, self._columns, options.queue, ordinal):
                        reason = self._why_refused(row)
                        if reason is None:
                            cutter.add(row)
                        else:
                            refused.add(row, reason)
                    ordinal += piece.num_rows
                    self._send(cutter.full(), refused)
            self._send(cutter.rest(), refused)
            self._done.refused = refused.count
        return self._done

    def _why_refused(self, row: Row) -> str | None:
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
            known = self._there[queue] = self._sender.url(queue, self._options.patience_s) is not None
        return known

    def _send(self, sequences: list[list[Batch]], refused: RefusedRows) -> None:
        if not sequences:
            return
        sent, failed = self._sender.send(
            sequences, self._name, self._options.calls_at_once, self._options.patience_s
        )
        self._done.sent.update(sent)
        for row, reason in sorted(failed, key=lambda each: each[0].ordinal):
            refused.add(row, reason)
