"""What a receipt can do: delete, extend, release, rotate, give back.

The column `holder` tells the receipt of the open lease, or of the delay: its delivery in the lower 32 bits, its rotation above.
So the delete that everything waits for has one number to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veil.core.errors import VeilError, VisibilityTooLong
from veil.core.lease import WAITING, Deletion, Held, State, judge_deletion, judge_extension, judge_rotation
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below, expires_at_ms
from veil.stores.recorder import (
    DELETE_REFUSED,
    DELETED,
    EXTENDED,
    EXTENSION_REFUSED,
    RELEASED,
    UNDONE,
    of_rotation,
)
from veil.stores.sqlite import lanes
from veil.stores.sqlite.tables import Q, QueueState, Tables
from veil.stores.store import Extension, Rotated

_DELETE_HELD, _TAKE_HELD = Q.delete_held, Q.take_held
_DELIVERY_BITS = 32
_DELIVERY = (1 << _DELIVERY_BITS) - 1


def holder_of(receipt: Receipt) -> int:
    """What stands in the row while the receipt holds the lease."""
    return receipt.delivery | receipt.rotation << _DELIVERY_BITS


def delivery_of(holder: int) -> int:
    """The delivery that holds the lease."""
    return holder & _DELIVERY


def delete(
    tables: Tables, queue: Queue, receipts: Sequence[Receipt], strict: bool, caller: Caller
) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    return [delete_one(tables, state, receipt, now_ms, caller, strict=strict) for receipt in receipts]


def delete_one(
    tables: Tables, state: QueueState, receipt: Receipt, now_ms: int, caller: Caller, *, strict: bool = False
) -> Deletion | VeilError:
    """Delete by one receipt, or do not, by the rules."""
    if not state.has_lanes and _deleteheld_of(tables, state, receipt, now_ms, caller):
        state.in_flight -= 1
        tables.touch(state)
        return Deletion.DELETED
    row = held_row(tables, state, receipt, now_ms)
    try:
        verdict = judge_deletion(held_of(row), receipt, now_ms, fifo=state.queue.settings.fifo, strict=strict)
    except VeilError as refusal:
        tables.noticed("stale_receipt", state)
        record(tables, state, DELETE_REFUSED, receipt, row, now_ms, caller)
        return refusal
    if verdict is Deletion.DELETED:
        deadline_ms = _deadline_of(row, receipt)
        record(tables, state, DELETED, receipt, row, now_ms, caller, deadline_ms)
        remove(tables, state, receipt.seq, row[0], row[5])
    else:
        if verdict is Deletion.STALE:
            tables.noticed("stale_receipt", state)
        record(tables, state, DELETE_REFUSED, receipt, row, now_ms, caller)
    return verdict


def _deleteheld_of(tables: Tables, state: QueueState, receipt: Receipt, now_ms: int, caller: Caller) -> bool:
    """Delete what the receipt holds, in one statement; False where it does not hold it."""
    seq, delivery = receipt.seq, receipt.delivery
    if seq < expired_below(now_ms, state.queue.settings.retention_s):
        return False  # past its retention, though perhaps not yet swept
    holder = delivery if not receipt.rotation else holder_of(receipt)
    journal, arguments = tables.journal, (seq, state.queue.id, holder, now_ms)
    if journal is None:
        tables.execute(_DELETE_HELD, arguments)
        return tables.connection.changes() > 0
    facts = tables.lease_facts.take(seq, delivery)
    if facts is not None:
        tables.execute(_DELETE_HELD, arguments)
        if not tables.connection.changes():
            return False
    else:
        # Read to the end: until then the statement does not count as a change.
        facts = tables.execute(_TAKE_HELD, arguments).get
        if facts is None:
            return False
    place, who = journal.places(state.queue.key, caller)
    journal.events.append((DELETED, now_ms, place, seq, *facts, who))
    return True


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


def extend(
    tables: Tables, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    return [
        _extend_one(tables, state, receipt, visibility_s, now_ms, caller)
        for receipt, visibility_s in extensions
    ]


def _extend_one(
    tables: Tables, state: QueueState, receipt: Receipt, visibility_s: int, now_ms: int, caller: Caller
) -> VeilError | None:
    row = held_row(tables, state, receipt, now_ms)
    try:
        deadline_ms = judge_extension(
            held_of(row), receipt, visibility_s, now_ms, fifo=state.queue.settings.fifo
        )
    except VeilError as refusal:
        if not isinstance(refusal, VisibilityTooLong):
            refuse_extension(tables, state, receipt, row, now_ms, caller)
        return refusal
    was_visible = row[0] == State.VISIBLE
    if deadline_ms is None:
        if not was_visible:
            record(tables, state, RELEASED, receipt, row, now_ms, caller, _deadline_of(row, receipt))
            show(tables, state, receipt.seq, row[0], row[5])
        return None
    record(tables, state, EXTENDED, receipt, row, now_ms, caller, deadline_ms)
    wake_at_ms = min(deadline_ms, expires_at_ms(receipt.seq, state.queue.settings.retention_s))
    tables.execute(Q.set_lease, (wake_at_ms, deadline_ms, holder_of(receipt), receipt.seq))
    tables.hidden_until(state, wake_at_ms)
    if was_visible:
        # SQS lets a late consumer take back what nobody else has received since.
        hide_again(tables, state, row[5])
    return None


def rotate(
    tables: Tables, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    return [
        _rotate_one(tables, state, receipt, visibility_s, now_ms, caller)
        for receipt, visibility_s in extensions
    ]


def _rotate_one(
    tables: Tables, state: QueueState, receipt: Receipt, visibility_s: int, now_ms: int, caller: Caller
) -> Rotated | VeilError:
    row = held_row(tables, state, receipt, now_ms)
    try:
        deadline_ms = judge_rotation(held_of(row), receipt, visibility_s, now_ms)
    except VeilError as refusal:
        refuse_extension(tables, state, receipt, row, now_ms, caller)
        return refusal
    renewed = receipt._replace(rotation=receipt.rotation + 1, text="")
    kind, told_ms = of_rotation(receipt, row[4], deadline_ms, now_ms)
    record(tables, state, kind, receipt, row, now_ms, caller, told_ms)
    if deadline_ms is None:
        show(tables, state, receipt.seq, row[0], row[5])
        return Rotated(renewed, now_ms)
    wake_at_ms = min(deadline_ms, expires_at_ms(receipt.seq, state.queue.settings.retention_s))
    received_ms = None if receipt.delivery == WAITING else now_ms
    tables.execute(Q.rotate_lease, (wake_at_ms, deadline_ms, holder_of(renewed), received_ms, receipt.seq))
    tables.hidden_until(state, wake_at_ms)
    return Rotated(renewed, deadline_ms)


def refuse_extension(
    tables: Tables, state: QueueState, receipt: Receipt, row: Any, now_ms: int, caller: Caller
) -> None:
    """Tell that a receipt has no lease to extend; it is stale where its message is still there."""
    if row is not None:
        tables.noticed("stale_receipt", state)
    record(tables, state, EXTENSION_REFUSED, receipt, row, now_ms, caller)


def hide_again(tables: Tables, state: QueueState, group: str | None) -> None:
    """A visible message went back to whoever had it: keep counts and lanes right."""
    state.visible -= 1
    state.in_flight += 1
    tables.touch(state)
    if group is not None:
        lanes.hide(tables, state, group)
        lanes.refresh(tables, state, group)


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


def undo_receive(tables: Tables, queue: Queue, receipts: Sequence[Receipt], caller: Caller) -> None:
    """Give back what a receive took whose answer never left."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    for receipt in receipts:
        row = held_row(tables, state, receipt, now_ms)
        held = held_of(row)
        if held is not None and held.is_open(now_ms) and held.is_held_by(receipt):
            tables.execute(Q.uncount_receive, (receipt.seq,))
            uncounted = (*row[:7], row[7] - 1, *row[8:])
            record(tables, state, UNDONE, receipt, uncounted, now_ms, caller, row[4])
            show(tables, state, receipt.seq, row[0], row[5])


def held_row(tables: Tables, state: QueueState, receipt: Receipt, now_ms: int) -> Any:
    """What the rules need to know about the message; None where the queue has it no more."""
    if receipt.seq < expired_below(now_ms, state.queue.settings.retention_s):
        return None  # past its retention, though perhaps not yet swept
    return tables.execute(Q.held, (receipt.seq, state.queue.id)).fetchone()


def held_of(row: Any) -> Held | None:
    """The same for `core.lease`."""
    if row is None:
        return None
    holder, rotation = row[2] & _DELIVERY, row[2] >> _DELIVERY_BITS
    return Held(State(row[0]), row[1], holder, row[3] or 0, row[4] or 0, rotation)


def _deadline_of(row: Any, receipt: Receipt) -> int | None:
    """When the receipt's own lease would have lapsed, if that is the one that is open."""
    is_own = row[0] == State.IN_FLIGHT and row[2] == holder_of(receipt)
    deadline_ms: int | None = row[4] if is_own else None
    return deadline_ms


def record(
    tables: Tables,
    state: QueueState,
    kind: int,
    receipt: Receipt,
    row: Any,
    now_ms: int,
    caller: Caller,
    deadline_ms: int | None = None,
) -> None:
    """Tell the journal what a receipt did, or was refused."""
    journal = tables.journal
    if journal is None:
        return
    place, who = journal.places(state.queue.key, caller)
    message_id, *facts = (None, None, None, None) if row is None else row[6:10]
    told = (message_id, receipt.delivery, deadline_ms, *facts)
    journal.events.append((kind, now_ms, place, receipt.seq, *told, who))
    if kind == EXTENDED:
        tables.lease_facts.keep(receipt.seq, told)
    elif kind in (DELETE_REFUSED, EXTENSION_REFUSED):
        # A refusal changes no message, and a group without a change would not be committed.
        tables.execute(Q.touch_mark)
