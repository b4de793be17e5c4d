"""A row on its way to be a message: what the columns say, checked by the rules of the queue it goes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from veil.core.errors import MessageRefused
from veil.core.limits import DELAY_MAX_S
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft, check_draft, size_bytes
from veil.core.queue import QueueSettings
from veil.pipeline.sink.columns import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa

# The rules that hold for every queue of a kind; what one queue has beyond these it says itself.
_STANDARD: Final = QueueSettings()
_FIFO: Final = QueueSettings(fifo=True)


@dataclass(slots=True)
class Row:
    """One row; `ordinal` is its place in its partition, `key` what its key column says."""

    ordinal: int
    queue: str
    draft: Draft
    key: Any = None
    size: int = 0


def is_fifo(queue: str) -> bool:
    """Whether a name, ARN or URL is a FIFO queue's: SQS gives that ending to no other."""
    return queue.endswith(".fifo")


def rows_of(batch: pa.RecordBatch, columns: SinkColumns, queue: str | None, first: int) -> Iterator[Row]:
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
        yield Row(ordinal, to or "", draft, key)


def why_refused(row: Row) -> str | None:
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
