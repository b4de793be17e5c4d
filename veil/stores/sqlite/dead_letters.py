"""Move a message that was received too often to the dead letters, within the receive that found it."""

from __future__ import annotations

from typing import Any

from veil.core.lease import State
from veil.stores.recorder import DEAD_LETTERED
from veil.stores.sqlite import lanes
from veil.stores.sqlite.tables import Q, QueueState, Tables


def destination(tables: Tables, state: QueueState) -> QueueState | None:
    """Where the queue's spent messages go: None without a policy, and while its target is missing or of the other type."""
    redrive = state.queue.settings.redrive
    if redrive is None:
        return None
    target = tables.by_key.get(redrive.dead_letters)
    if target is None or target is state or target.queue.settings.fifo != state.queue.settings.fifo:
        return None
    return target


def move(tables: Tables, state: QueueState, target: QueueState, row: Any, now_ms: int) -> None:
    """Take the (visible) message of the row out of its queue and into the target: one row, changed in place, so there is
    no instant at which it is in both or in neither."""
    seq, group, source = row[0], row[8], state.queue.key.arn
    if state.queue.settings.fifo:
        new_seq = tables.sequence.next(now_ms)
        tables.execute(Q.to_fifo_dead_letters, (target.queue.id, source, new_seq, seq))
    else:
        new_seq = seq
        tables.execute(Q.to_dead_letters, (target.queue.id, source, seq))
    state.visible -= 1
    target.visible += 1
    tables.touch(state)
    tables.touch(target)
    tables.visible_from(target, new_seq)
    tables.rank(target, row[19])
    if group is not None:
        lanes.leave(tables, state, group, in_flight=0)
        # On a FIFO target the message may join a group whose first message is in flight: the lane's own state decides.
        lanes.join(tables, target, group, new_seq, State.VISIBLE)
    if tables.journal is not None:
        tables.journal.note(
            DEAD_LETTERED,
            now_ms,
            state.queue.key,
            seq,
            row[1],
            delivery=row[13],
            receive_count=row[11],
            body_bytes=row[18],
            message_type=row[17],
            other_queue=target.queue.key,
            other_seq=None if new_seq == seq else new_seq,
        )
    tables.counted("dead_lettered", state)
    tables.available(target)
