"""One event of one message's life, as those who look a single message up get it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from veil.core.event import Kind, unpack
from veil.core.queue import QueueKey
from veil.journal.schema import POSITION_BITS


class LifeEvent(NamedTuple):
    """An event with its names written out; instants are engine milliseconds."""

    position: int
    at_ms: int
    kind: str  # core.event.Kind.label
    queue: QueueKey
    seq: int
    message_id: str | None = None
    delivery: int = 0
    deadline_ms: int | None = None
    receive_count: int | None = None
    body_bytes: int | None = None
    message_type: str | None = None
    other_queue: str | None = None
    other_seq: int | None = None
    caller_key: str | None = None
    caller_address: str | None = None
    user_agent: str | None = None


COLUMNS: Final = (
    "position", "at", "kind", "region", "account", "queue", "seq", "message_id", "delivery", "deadline", "receive_count",
    "body_bytes", "message_type", "other_queue", "other_seq", "caller_key", "caller_address", "user_agent",
)  # fmt: skip


def from_row(row: Mapping[str, Any]) -> LifeEvent:
    """The event in a row of a segment."""
    return LifeEvent(
        row["position"],
        _ms(row["at"]) or 0,
        row["kind"],
        QueueKey(row["region"], row["account"], row["queue"]),
        row["seq"],
        row["message_id"],
        row["delivery"],
        _ms(row["deadline"]),
        row["receive_count"],
        row["body_bytes"],
        row["message_type"],
        row["other_queue"],
        row["other_seq"],
        row["caller_key"],
        row["caller_address"],
        row["user_agent"],
    )


def from_packed(number: int, packed: bytes) -> Iterator[LifeEvent]:
    """The events of a row of the outbox that waits to be exported."""
    queues, callers, events = unpack(packed)
    for place, event in enumerate(events):
        caller = callers[event.caller] if callers else None
        yield LifeEvent(
            number << POSITION_BITS | place,
            event.at_ms,
            Kind(event.kind).label,
            queues[event.queue],
            event.seq,
            event.message_id,
            event.delivery,
            event.deadline_ms,
            event.receive_count,
            event.body_bytes,
            event.message_type,
            None if event.other_queue is None else queues[event.other_queue].name,
            event.other_seq,
            (caller.key_id or None) if caller else None,
            (caller.peer or None) if caller else None,
            (caller.user_agent or None) if caller else None,
        )


def _ms(instant: datetime | None) -> int | None:
    # By whole parts: a float of seconds would lose milliseconds.
    return None if instant is None else int(instant.timestamp()) * 1000 + instant.microsecond // 1000
