"""Let happen what is due: leases lapse, delays end, retention ends."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from veil.core.lease import State
from veil.core.message import Caller
from veil.core.queue import QueueKey
from veil.core.sequence import expired_below, expires_at_ms, instant_of
from veil.stores.recorder import EXPIRED, PURGED
from veil.stores.sqlite import lanes, leases
from veil.stores.sqlite.tables import Q, QueueState, Tables

CHUNK = 500  # rows per turn: bounds how long one settling holds up everything else


def settle(tables: Tables, state: QueueState) -> bool:
    """Settle one chunk of the queue; True while more is due."""
    now_ms = tables.clock.now_ms()
    if state.next_due_ms > now_ms:
        return False
    more = _wake_hidden(tables, state, now_ms) | _expire_visible(tables, state, now_ms)
    if not more:
        tables.look_ahead(state)
    return more


def _wake_hidden(tables: Tables, state: QueueState, now_ms: int) -> bool:
    retention_s = state.queue.settings.retention_s
    gone_below = expired_below(now_ms, retention_s)
    rows = tables.execute(Q.due, (state.queue.id, now_ms, CHUNK)).fetchall()
    lapsed = expired = 0
    for seq, message_state, due_at_ms, group in rows:
        if seq < gone_below:
            _expire(tables, state, seq, message_state, group, now_ms)
            expired += 1
        elif due_at_ms <= now_ms:
            leases.show(tables, state, seq, message_state, group)
            lapsed += message_state == State.IN_FLIGHT
        else:  # woken for a retention that was lengthened since
            tables.execute(Q.set_wake, (min(due_at_ms, expires_at_ms(seq, retention_s)), seq))
    if lapsed:
        tables.counted("lapsed", state, lapsed)
    if expired:
        tables.counted("expired", state, expired)
    return len(rows) == CHUNK


def _expire_visible(tables: Tables, state: QueueState, now_ms: int) -> bool:
    if state.next_expiry_ms > now_ms:
        return False
    gone_below = expired_below(now_ms, state.queue.settings.retention_s)
    rows = tables.execute(Q.expired_alone, (state.queue.id, gone_below, CHUNK)).fetchall()
    if state.has_lanes:
        rows += tables.execute(Q.expired_grouped, (state.queue.id, gone_below, CHUNK)).fetchall()
    if state.ranked:
        rows += tables.execute(Q.expired_ranked, (state.queue.id, gone_below, CHUNK)).fetchall()
    for seq, group in rows:
        _expire(tables, state, seq, State.VISIBLE, group, now_ms)
    if rows:
        tables.counted("expired", state, len(rows))
    return len(rows) >= CHUNK


def _expire(
    tables: Tables, state: QueueState, seq: int, message_state: int, group: str | None, now_ms: int
) -> None:
    if tables.journal is not None:
        row = tables.execute(Q.held, (seq, state.queue.id)).fetchone()
        # A lease that would have outlasted its message ended with it; another one had lapsed before, though nobody looked.
        ends_ms = expires_at_ms(seq, state.queue.settings.retention_s)
        is_held = row[0] == State.IN_FLIGHT and row[4] >= ends_ms
        tables.journal.note(
            EXPIRED,
            now_ms,
            state.queue.key,
            seq,
            row[6],
            delivery=leases.delivery_of(row[2]) if is_held else 0,
            deadline_ms=row[4] if is_held else None,
            receive_count=row[7],
            body_bytes=row[8],
            message_type=row[9],
        )
    leases.remove(tables, state, seq, message_state, group)


def forget_old(tables: Tables) -> None:
    """Drop a bounded number of deduplication and attempt records whose five minutes are over."""
    now_ms = tables.clock.now_ms()
    tables.execute(Q.forget_deduplication, (now_ms, CHUNK))
    tables.execute(Q.forget_attempts, (now_ms, CHUNK))


def reschedule_hidden(tables: Tables, state: QueueState, *, new_delay: bool) -> None:
    """After an edit: retention counts anew, and on FIFO queues a new delay reaches the messages that are waiting."""
    settings = state.queue.settings
    for seq, message_state, due_at_ms in tables.execute(Q.hidden_rows, (state.queue.id,)).fetchall():
        if new_delay and message_state == State.DELAYED:
            due_at_ms = instant_of(seq) + settings.delay_s * 1000
        wake_at_ms = min(due_at_ms, expires_at_ms(seq, settings.retention_s))
        tables.execute(Q.reschedule, (wake_at_ms, due_at_ms, seq))
    tables.look_ahead(state)


# ---- removing everything


class Purge(NamedTuple):
    """What is to go, since when, and by whose wish."""

    queue_id: int
    key: QueueKey
    up_to_seq: int
    at_ms: int
    caller: Caller


def sweep(tables: Tables, purge: Purge, state: QueueState | None) -> bool:
    """Remove one chunk of a queue's messages; True while more are left. `state` is None for a deleted queue."""
    chunk = (purge.queue_id, purge.up_to_seq, CHUNK)
    if tables.journal is None:
        tables.execute(Q.sweep_alone, chunk)
        alone = tables.connection.changes()
    else:
        rows = tables.execute(Q.sweep_alone_telling, chunk).fetchall()
        alone = len(rows)
        _record_purged(tables, purge, rows)
    grouped = tables.execute(Q.sweep_grouped, chunk).fetchall()
    grouped += tables.execute(Q.sweep_ranked, chunk).fetchall()  # grouped or not
    hidden = tables.execute(Q.sweep_hidden, chunk).fetchall()
    _record_purged(tables, purge, grouped)
    _record_purged(tables, purge, hidden)
    if state is not None:
        in_flight = sum(message_state == State.IN_FLIGHT for message_state, *_ in hidden)
        state.visible -= alone + len(grouped)
        state.in_flight -= in_flight
        state.delayed -= len(hidden) - in_flight
        tables.touch(state)
        # With every chunk, not at the end: a crash in between must not leave lanes that wait for messages long gone.
        left = Counter(group for _, group, *_ in (*grouped, *hidden) if group is not None)
        held = Counter(group for message_state, group, *_ in hidden if message_state == State.IN_FLIGHT)
        for group, count in left.items():
            lanes.leave(tables, state, group, count, in_flight=held[group])
    return alone > 0 or bool(grouped) or bool(hidden)


def _record_purged(tables: Tables, purge: Purge, rows: list[Any]) -> None:
    journal = tables.journal
    if journal is None or not rows:
        return
    place, who = journal.places(purge.key, purge.caller)
    for message_state, _, seq, message_id, holder, due_at_ms, *facts in rows:
        is_held = message_state == State.IN_FLIGHT
        lease = (holder, due_at_ms) if is_held else (0, None)
        journal.events.append((PURGED, purge.at_ms, place, seq, message_id, *lease, *facts, who))
