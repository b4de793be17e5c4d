"""What a receipt can do: delete, extend, release, give back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veil.core.errors import VeilError, VisibilityTooLong
from veil.core.lease import Deletion, Held, State, judge_deletion, judge_extension
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below, expires_at_ms
from veil.stores.sqlite import lanes
from veil.stores.sqlite.tables import Q, QueueState, Tables
from veil.stores.store import Extension

_DELETE_HELD = Q.delete_held


def delete(tables: Tables, queue: Queue, receipts: Sequence[Receipt]) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    return [_delete_one(tables, state, receipt, now_ms) for receipt in receipts]


def _delete_one(tables: Tables, state: QueueState, receipt: Receipt, now_ms: int) -> Deletion | VeilError:
    if not state.has_lanes and receipt.seq >= expired_below(now_ms, state.queue.settings.retention_s):
        tables.execute(_DELETE_HELD, (receipt.seq, state.queue.id, receipt.delivery, now_ms))
        if tables.connection.changes():
            state.in_flight -= 1
            tables.touch(state)
            return Deletion.DELETED
    row = _held_row(tables, state, receipt, now_ms)
    try:
        verdict = judge_deletion(_held(row), receipt, now_ms, fifo=state.queue.settings.fifo)
    except VeilError as refusal:
        tables.noticed("stale_receipt", state)
        return refusal
    if verdict is Deletion.DELETED:
        remove(tables, state, receipt.seq, row[0], row[5])
    elif verdict is Deletion.STALE:
        tables.noticed("stale_receipt", state)
    return verdict


def remove(tables: Tables, state: QueueState, seq: int, message_state: int, group: str | None) -> None:
    """Take the row out, whatever its state, and keep counts and lanes right."""
    tables.execute(Q.delete_message, (seq,))
    if message_state == State.IN_FLIGHT:
        state.in_flight -= 1
    elif message_state == State.DELAYED:
        state.delayed -= 1
    else:
        state.visible -= 1
    tables.touch(state)
    if group is not None:
        lanes.leave(tables, state, group, in_flight=int(message_state == State.IN_FLIGHT))


def extend(tables: Tables, queue: Queue, extensions: Sequence[Extension]) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    return [_extend_one(tables, state, receipt, visibility_s, now_ms) for receipt, visibility_s in extensions]


def _extend_one(
    tables: Tables, state: QueueState, receipt: Receipt, visibility_s: int, now_ms: int
) -> VeilError | None:
    row = _held_row(tables, state, receipt, now_ms)
    try:
        deadline_ms = judge_extension(
            _held(row), receipt, visibility_s, now_ms, fifo=state.queue.settings.fifo
        )
    except VeilError as refusal:
        if row is not None and not isinstance(refusal, VisibilityTooLong):
            tables.noticed("stale_receipt", state)
        return refusal
    was_visible = row[0] == State.VISIBLE
    if deadline_ms is None:
        if not was_visible:
            show(tables, state, receipt.seq, row[0], row[5])
        return None
    wake_at_ms = min(deadline_ms, expires_at_ms(receipt.seq, state.queue.settings.retention_s))
    tables.execute(Q.set_lease, (wake_at_ms, deadline_ms, receipt.delivery, receipt.seq))
    tables.hidden_until(state, wake_at_ms)
    if was_visible:
        # SQS lets a late consumer take back what nobody else has received since.
        state.visible -= 1
        state.in_flight += 1
        tables.touch(state)
        if row[5] is not None:
            lanes.hide(tables, state, row[5])
            lanes.refresh(tables, state, row[5])
    return None


def show(tables: Tables, state: QueueState, seq: int, message_state: int, group: str | None) -> None:
    """Make a hidden message visible."""
    tables.execute(Q.make_visible, (seq,))
    if message_state == State.DELAYED:
        state.delayed -= 1
    else:
        state.in_flight -= 1
    state.visible += 1
    tables.touch(state)
    tables.visible_from(state, seq)
    if group is not None:
        lanes.show(tables, state, group, was_in_flight=message_state == State.IN_FLIGHT)
    tables.available(state)


def undo_receive(tables: Tables, queue: Queue, receipts: Sequence[Receipt]) -> None:
    """Give back what a receive took whose answer never left."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    for receipt in receipts:
        row = _held_row(tables, state, receipt, now_ms)
        held = _held(row)
        if held is not None and held.is_open(now_ms) and held.holder == receipt.delivery:
            tables.execute(Q.uncount_receive, (receipt.seq,))
            show(tables, state, receipt.seq, row[0], row[5])


def _held_row(tables: Tables, state: QueueState, receipt: Receipt, now_ms: int) -> Any:
    if receipt.seq < expired_below(now_ms, state.queue.settings.retention_s):
        return None  # past its retention, though perhaps not yet swept
    return tables.execute(Q.held, (receipt.seq, state.queue.id)).fetchone()


def _held(row: Any) -> Held | None:
    return None if row is None else Held(State(row[0]), row[1], row[2], row[3] or 0, row[4] or 0)
