"""Let happen what is due: leases lapse, delays end, retention ends."""

from __future__ import annotations

from typing import NamedTuple

from veil.core.lease import State
from veil.core.message import Caller
from veil.core.queue import QueueKey
from veil.core.sequence import expired_below, expires_at_ms
from veil.stores.postgres import lanes
from veil.stores.postgres.held import delivery_of
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction
from veil.stores.recorder import EXPIRED, PURGED

CHUNK = 1_000  # rows per transaction: bounds how long the locks are held


async def settle(tx: Transaction, state: QueueState) -> bool:
    """Settle one chunk of the queue; True while more is due."""
    named = {"queue": state.id, "limit": CHUNK}
    gone_below = expired_below(tx.now_ms, state.queue.settings.retention_s)
    hidden, visible = await tx.many(
        (Q.due, {**named, "now_ms": tx.now_ms}), (Q.expired, {**named, "below": gone_below})
    )
    _wake(tx, state, hidden, gone_below)
    _expire(tx, state, visible)
    return len(hidden) == CHUNK or len(visible) == CHUNK


def _wake(tx: Transaction, state: QueueState, rows: list[Row], gone_below: int) -> None:
    expired, shown, late = list[Row](), list[Row](), list[Row]()
    for row in rows:
        if row[0] < gone_below:
            expired.append(row)
        elif row[2] <= tx.now_ms:
            shown.append(row)
        else:  # woken for a retention that was lengthened since
            late.append(row)
    if late:
        wakes = [min(row[2], expires_at_ms(row[0], state.queue.settings.retention_s)) for row in late]
        tx.later(Q.set_wakes, {"queue": state.id, "seqs": [row[0] for row in late], "wakes": wakes})
    _expire(tx, state, expired)
    show(tx, state, [(row[0], row[1], row[3]) for row in shown])
    lapsed = sum(row[1] == State.IN_FLIGHT for row in shown)
    if lapsed:
        tx.counted("lapsed", state, lapsed)


def show(tx: Transaction, state: QueueState, hidden: list[tuple[int, int, str | None]]) -> None:
    """Make hidden messages visible: their keys, states and groups."""
    if not hidden:
        return
    tx.later(Q.make_visible, {"queue": state.id, "seqs": [seq for seq, _, _ in hidden]})
    in_flight = sum(message_state == State.IN_FLIGHT for _, message_state, _ in hidden)
    tx.count(state, visible=len(hidden), in_flight=-in_flight, delayed=in_flight - len(hidden))
    for seq, message_state, group in hidden:
        state.visible_from(seq)
        lanes.change(state, group, in_flight=-(message_state == State.IN_FLIGHT))
    tx.available(state, len(hidden))


def removed(tx: Transaction, state: QueueState, message_state: int, group: str | None) -> None:
    """A message is gone: keep counts and lanes right."""
    in_flight, delayed = int(message_state == State.IN_FLIGHT), int(message_state == State.DELAYED)
    tx.count(state, visible=in_flight + delayed - 1, in_flight=-in_flight, delayed=-delayed)
    lanes.change(state, group, members=-1, in_flight=-in_flight)


def _expire(tx: Transaction, state: QueueState, rows: list[Row]) -> None:
    if not rows:
        return
    tx.later(Q.delete_messages, {"queue": state.id, "seqs": [row[0] for row in rows]})
    for seq, message_state, due_at_ms, group, message_id, holder, receive_count, size, message_type in rows:
        removed(tx, state, message_state, group)
        if tx.journal is not None:
            # A lease that would have outlasted its message ended with it; another one had lapsed before, though nobody
            # looked.
            ends_ms = expires_at_ms(seq, state.queue.settings.retention_s)
            is_held = message_state == State.IN_FLIGHT and due_at_ms >= ends_ms
            tx.journal.note(
                EXPIRED,
                tx.now_ms,
                state.queue.key,
                seq,
                message_id,
                delivery=delivery_of(holder) if is_held else 0,
                deadline_ms=due_at_ms if is_held else None,
                receive_count=receive_count,
                body_bytes=size,
                message_type=message_type,
            )
    tx.counted("expired", state, len(rows))


# ---- removing everything


class Purge(NamedTuple):
    """What is to go, since when, and by whose wish."""

    queue_id: int
    key: QueueKey
    up_to_seq: int
    at_ms: int
    caller: Caller


async def sweep(tx: Transaction, purge: Purge, state: QueueState | None) -> bool:
    """Remove one chunk of a queue's messages; True while more are left. `state` is None for a deleted queue."""
    rows = await tx.rows(Q.sweep, {"queue": purge.queue_id, "up_to": purge.up_to_seq, "limit": CHUNK})
    if state is not None:
        for message_state, group, *_ in rows:
            removed(tx, state, message_state, group)
    if tx.journal is not None and rows:
        place, who = tx.journal.places(purge.key, purge.caller)
        for message_state, _, seq, message_id, holder, due_at_ms, *facts in rows:
            is_held = message_state == State.IN_FLIGHT
            lease = (delivery_of(holder), due_at_ms) if is_held else (0, None)
            tx.journal.events.append((PURGED, purge.at_ms, place, seq, message_id, *lease, *facts, who))
    return len(rows) == CHUNK
