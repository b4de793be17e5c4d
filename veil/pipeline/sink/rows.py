"""Rows on their way to be messages: what the columns say, checked by the rules of the queue, and cut into batches.

A batch of SendMessageBatch has ten messages, within the limit of bytes, for one queue. Where rows are cut depends on the rows
alone, not on time: the same rows give the same batches again, so that a batch that is sent once more can be known by its
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from veil.core.errors import MessageRefused
from veil.core.limits import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, DELAY_MAX_S
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft, check_draft, size_bytes
from veil.core.queue import QueueSettings
from veil.pipeline.sink.options import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa


class RowRefused(ValueError):
    """Names the row by its partition, its index there and its key, and says why it cannot be sent."""

    def __init__(
        self, queue: str, partition: int, ordinal: int, key: tuple[str, Any] | None, reason: str
    ) -> None:
        which = f"row {ordinal} of partition {partition}"
        if key is not None:
            which += f" ({key[0]}={key[1]!r})"
        super().__init__(f"{which} cannot be sent to queue {queue or 'without a name'}: {reason}")
        self.arguments = (queue, partition, ordinal, key, reason)

    def __reduce__(self) -> tuple[type[RowRefused], tuple[Any, ...]]:
        # Spark carries errors from one process to another.
        return RowRefused, self.arguments


class SendFailed(RuntimeError):
    """The service was throttling or away for longer than the time for retries, or takes nothing from us at all."""


# The rules that hold for every queue of a kind; what one queue has beyond these it says itself.
_STANDARD: Final = QueueSettings()
_FIFO: Final = QueueSettings(fifo=True)


@dataclass(slots=True)
class SinkRow:
    """One row; `ordinal` is its index in its partition, `key` what its key column says."""

    ordinal: int
    queue: str
    draft: Draft
    key: Any = None
    size: int = 0


def is_fifo(queue: str) -> bool:
    """Whether a name, ARN or URL is a FIFO queue's: SQS gives that ending to no other."""
    return queue.endswith(".fifo")


def rows_of(batch: pa.RecordBatch, columns: SinkColumns, queue: str | None, first: int) -> Iterator[SinkRow]:
    """The rows of a batch, unchecked; `queue` where they do not name it themselves."""
    count = batch.num_rows

    def values(at: int | None) -> Any:
        return [None] * count if at is None else batch.column(at).to_pylist()

    taken = zip(
        values(columns.body),
        values(columns.attributes),
        values(columns.group),
        values(columns.deduplication),
        values(columns.delay),
        values(columns.trace),
        [queue] * count if columns.queue is None else values(columns.queue),
        values(columns.key),
        strict=True,
    )
    for ordinal, (body, pairs, group, deduplication, delay_s, trace, to, key) in enumerate(taken, first):
        draft = Draft(
            body or "",
            attributes=_attributes(pairs, columns.are_typed) if pairs else None,
            trace_header=trace,
            delay_s=delay_s,
            group=group,
            deduplication_id=None if deduplication is None else str(deduplication),
        )
        yield SinkRow(ordinal, to or "", draft, key)


def why_refused(row: SinkRow) -> str | None:
    """Why the row cannot be sent, in a sentence; None, with its size filled in, where it can."""
    draft = row.draft
    if not row.queue:
        return "the row names no queue"
    if draft.delay_s is not None and not 0 <= draft.delay_s <= DELAY_MAX_S:
        return f"delay_s={draft.delay_s}: expected 0 to {DELAY_MAX_S}"
    try:
        check_draft(draft, _FIFO if is_fifo(row.queue) else _STANDARD)
    except MessageRefused as refused:
        return str(refused)
    row.size = size_bytes(draft)
    return None


def on_the_wire(draft: Draft) -> dict[str, Any]:
    """The message as an entry of SendMessageBatch, its id left out."""
    entry: dict[str, Any] = {"MessageBody": draft.body}
    if draft.attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": data_type, "BinaryValue" if isinstance(value, bytes) else "StringValue": value}
            for name, (data_type, value) in draft.attributes.items()
        }
    if draft.trace_header is not None:
        traced = {"DataType": "String", "StringValue": draft.trace_header}
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": traced}
    if draft.group is not None:
        entry["MessageGroupId"] = draft.group
    if draft.deduplication_id is not None:
        entry["MessageDeduplicationId"] = draft.deduplication_id
    if draft.delay_s is not None:
        entry["DelaySeconds"] = draft.delay_s
    return entry


def _attributes(pairs: list[tuple[str, Any]], are_typed: bool) -> dict[str, MessageAttribute]:
    if not are_typed:
        return {name: MessageAttribute("String", value or "") for name, value in pairs}
    found = {}
    for name, value in pairs:
        given = value or {}
        text, binary = given.get("string_value"), given.get("binary_value")
        found[name] = MessageAttribute(given.get("data_type") or "", text or binary or "")
    return found


@dataclass(slots=True)
class RowBatch:
    """Rows for one call."""

    queue: str
    rows: list[SinkRow] = field(default_factory=list)
    size: int = 0

    def has_room_for(self, row: SinkRow) -> bool:
        return len(self.rows) < BATCH_ENTRIES_MAX and self.size + row.size <= BATCH_BYTES_MAX

    def add(self, row: SinkRow) -> None:
        self.rows.append(row)
        self.size += row.size


Lane = tuple[str, int]


class RowBatcher:
    """Takes rows in their order and gives lists of batches: those of one list must be sent one after the other.

    The rows of one group of a FIFO queue are always in one lane, in their order. Elsewhere each batch goes by itself.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._open: dict[Lane, RowBatch] = {}
        self._full: dict[Lane, list[RowBatch]] = {}

    def add(self, row: SinkRow) -> None:
        """Take a row in."""
        lane = (row.queue, self._lane_of(row))
        batch = self._open.get(lane)
        if batch is not None and not batch.has_room_for(row):
            self._full.setdefault(lane, []).append(batch)
            batch = None
        if batch is None:
            batch = self._open[lane] = RowBatch(row.queue)
        batch.add(row)

    def full(self) -> list[list[RowBatch]]:
        """What is ready now; batches with room left wait for more."""
        taken, self._full = self._full, {}
        return _sequences(taken)

    def rest(self) -> list[list[RowBatch]]:
        """All that is left."""
        for lane, batch in self._open.items():
            self._full.setdefault(lane, []).append(batch)
        self._open = {}
        return self.full()

    def _lane_of(self, row: SinkRow) -> int:
        return crc32((row.draft.group or "").encode()) % self._lanes if is_fifo(row.queue) else 0


def _sequences(lanes: dict[Lane, list[RowBatch]]) -> list[list[RowBatch]]:
    found: list[list[RowBatch]] = []
    for (queue, _), batches in lanes.items():
        if is_fifo(queue):
            found.append(batches)
        else:
            found += [[batch] for batch in batches]
    return found
