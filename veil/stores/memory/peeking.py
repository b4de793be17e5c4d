"""Look at the messages of a queue without receiving them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import Queue, QueueCounts
from veil.core.sequence import instant_of
from veil.stores.memory.operation import Operation


def counts(op: Operation, queue: Queue) -> QueueCounts:
    """How many messages are where, exactly, now."""
    states = Counter(row.message.state for row in op.shelves.of(queue).rows.values())
    return QueueCounts(states[State.VISIBLE], states[State.IN_FLIGHT], states[State.DELAYED])


def oldest_sent_ms(op: Operation, queue: Queue) -> int | None:
    """Engine time at which the oldest visible message was sent."""
    visible = op.shelves.of(queue).of_state(State.VISIBLE)
    return instant_of(visible[0].message.seq) if visible else None


def peek(
    op: Operation,
    queue: Queue,
    *,
    after_seq: int,
    up_to_seq: int | None,
    sent_after_ms: int | None,
    sent_before_ms: int | None,
    limit: int,
    bytes_max: int | None,
) -> list[StoredMessage]:
    """Messages in whatever state by rising `seq`."""
    found: list[StoredMessage] = []
    found_bytes = 0
    for row in op.shelves.of(queue).in_order():
        message = row.message
        if len(found) == limit or (bytes_max is not None and found_bytes >= bytes_max):
            break
        if (
            message.seq > after_seq
            and (up_to_seq is None or message.seq <= up_to_seq)
            and (sent_after_ms is None or message.sent_wall_ms >= sent_after_ms)
            and (sent_before_ms is None or message.sent_wall_ms <= sent_before_ms)
        ):
            found.append(replace(message, rotation=row.rotation))
            found_bytes += message.held_bytes
    return found


def peek_next(op: Operation, queue: Queue, limit: int) -> list[StoredMessage]:
    """The messages that a receive would come to first, in its order."""
    return [replace(row.message) for row in op.shelves.of(queue).receivable()[:limit]]
