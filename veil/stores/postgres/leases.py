"""What a receipt can do: delete, extend, release, rotate, give back."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.errors import VeilError, VisibilityTooLong
from veil.core.lease import WAITING, Deletion, State, judge_deletion, judge_extension, judge_rotation
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.core.sequence import expires_at_ms
from veil.stores.postgres import lanes, settling
from veil.stores.postgres.held import HeldRow, held_rows, holder_of
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction
from veil.stores.recorder import (
    DELETE_REFUSED,
    DELETED,
    EXTENDED,
    EXTENSION_REFUSED,
    RELEASED,
    UNDONE,
    of_rotation,
)
from veil.stores.store import Extension, Rotated


async def delete(
    tx: Transaction, queue: Queue, receipts: Sequence[Receipt], strict: bool, caller: Caller
) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    state = tx.state_of(queue)
    rows = await held_rows(tx, state, (receipt.seq for receipt in receipts))
    verdicts = [delete_one(tx, state, rows, receipt, caller, strict=strict) for receipt in receipts]
    gone = [r.seq for r, verdict in zip(receipts, verdicts, strict=True) if verdict is Deletion.DELETED]
    if gone:
        tx.later(Q.delete_messages, {"queue": state.id, "seqs": gone})
    return verdicts


def delete_one(
    tx: Transaction,
    state: QueueState,
    rows: dict[int, HeldRow],
    receipt: Receipt,
    caller: Caller,
    *,
    strict: bool = False,
) -> Deletion | VeilError:
    """Decide on one receipt; where it comes to DELETED the row is out of `rows`, and the caller has it deleted."""
    row = rows.get(receipt.seq)
    held = None if row is None else row.held()
    try:
        verdict = judge_deletion(held, receipt, tx.now_ms, fifo=state.fifo, strict=strict)
    except VeilError as refusal:
        tx.counted("stale_receipt", state)
        record(tx, state, DELETE_REFUSED, receipt, row, caller)
        return refusal
    if verdict is Deletion.DELETED and row is not None:
        record(tx, state, DELETED, receipt, row, caller, row.deadline_of(receipt))
        settling.removed(tx, state, row.state, row.group)
        del rows[receipt.seq]
    else:
        if verdict is Deletion.STALE:
            tx.counted("stale_receipt", state)
        record(tx, state, DELETE_REFUSED, receipt, row, caller)
    return verdict


class NewLeases:
    """Leases, and delays, with a new deadline, collected to be written together."""

    def __init__(self, tx: Transaction, state: QueueState) -> None:
        self._tx, self._state = tx, state
        self._rows: dict[int, tuple[int, int, int, int | None]] = {}
        self._shown: dict[int, tuple[int, int, str | None]] = {}

    def set(self, row: HeldRow, deadline_ms: int, holder: int, received_ms: int | None = None) -> None:
        """A new deadline; for a message that is visible, SQS lets a late consumer take it back."""
        state = self._state
        if row.state == State.VISIBLE:
            self._tx.count(state, visible=-1, in_flight=1)
            lanes.change(state, row.group, in_flight=1)
            self.write()  # it may have become visible just now
        state.hidden_until(min(deadline_ms, expires_at_ms(row.seq, state.queue.settings.retention_s)))
        row.state, row.due_at_ms, row.holder = State.IN_FLIGHT, deadline_ms, holder
        if received_ms is not None:
            row.received_at_ms = received_ms
        earlier = self._rows.get(row.seq)
        received_ms = received_ms or (earlier and earlier[-1])
        self._rows[row.seq] = (State.IN_FLIGHT, deadline_ms, holder, received_ms)

    def delay(self, row: HeldRow, deadline_ms: int, holder: int) -> None:
        """The same for a message that waits out its delay."""
        state = self._state
        state.hidden_until(min(deadline_ms, expires_at_ms(row.seq, state.queue.settings.retention_s)))
        row.due_at_ms, row.holder = deadline_ms, holder
        self._rows[row.seq] = (State.DELAYED, deadline_ms, holder, None)

    def release(self, row: HeldRow) -> None:
        """Visible at once."""
        self._rows.pop(row.seq, None)
        self._shown[row.seq] = (row.seq, row.state, row.group)
        row.state, row.due_at_ms, row.holder = State.VISIBLE, None, 0

    def write(self) -> None:
        """Have it all done, in the order in which it was asked for."""
        rows, shown = self._rows, self._shown
        self._rows, self._shown = {}, {}
        settling.show(self._tx, self._state, list(shown.values()))
        if rows:
            states, dues, holders, received = (list(column) for column in zip(*rows.values(), strict=True))
            self._tx.later(
                Q.set_leases,
                {
                    "queue": self._state.id,
                    "retention_ms": self._state.retention_ms,
                    "seqs": list(rows),
                    "states": [int(each) for each in states],
                    "dues": dues,
                    "holders": holders,
                    "received": received,
                },
            )


async def extend(
    tx: Transaction, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    state = tx.state_of(queue)
    rows = await held_rows(tx, state, (receipt.seq for receipt, _ in extensions))
    return extend_held(tx, state, rows, extensions, caller)


def extend_held(
    tx: Transaction,
    state: QueueState,
    rows: dict[int, HeldRow],
    extensions: Sequence[Extension],
    caller: Caller,
) -> list[VeilError | None]:
    """The same on rows that were read before."""
    leases = NewLeases(tx, state)
    answers = [_extend_one(tx, state, rows, leases, extension, caller) for extension in extensions]
    leases.write()
    return answers


def _extend_one(
    tx: Transaction,
    state: QueueState,
    rows: dict[int, HeldRow],
    leases: NewLeases,
    extension: Extension,
    caller: Caller,
) -> VeilError | None:
    receipt, visibility_s = extension
    row = rows.get(receipt.seq)
    held = None if row is None else row.held()
    try:
        deadline_ms = judge_extension(held, receipt, visibility_s, tx.now_ms, fifo=state.fifo)
    except VeilError as refusal:
        if not isinstance(refusal, VisibilityTooLong):
            refuse_extension(tx, state, receipt, row, caller)
        return refusal
    assert row is not None  # the rule refuses where there is no message
    if deadline_ms is not None:
        record(tx, state, EXTENDED, receipt, row, caller, deadline_ms)
        leases.set(row, deadline_ms, holder_of(receipt))
    elif row.state != State.VISIBLE:
        record(tx, state, RELEASED, receipt, row, caller, row.deadline_of(receipt))
        leases.release(row)
    return None


async def rotate(
    tx: Transaction, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    state = tx.state_of(queue)
    rows = await held_rows(tx, state, (receipt.seq for receipt, _ in extensions))
    leases = NewLeases(tx, state)
    answers = [_rotate_one(tx, state, rows, leases, extension, caller) for extension in extensions]
    leases.write()
    return answers


def _rotate_one(
    tx: Transaction,
    state: QueueState,
    rows: dict[int, HeldRow],
    leases: NewLeases,
    extension: Extension,
    caller: Caller,
) -> Rotated | VeilError:
    receipt, visibility_s = extension
    row = rows.get(receipt.seq)
    try:
        deadline_ms = judge_rotation(None if row is None else row.held(), receipt, visibility_s, tx.now_ms)
    except VeilError as refusal:
        refuse_extension(tx, state, receipt, row, caller)
        return refusal
    assert row is not None  # the rule refuses where there is no message
    renewed = receipt._replace(rotation=receipt.rotation + 1, text="")
    kind, told_ms = of_rotation(receipt, row.due_at_ms, deadline_ms, tx.now_ms)
    record(tx, state, kind, receipt, row, caller, told_ms)
    if deadline_ms is None:
        leases.release(row)
        return Rotated(renewed, tx.now_ms)
    if receipt.delivery == WAITING:
        leases.delay(row, deadline_ms, holder_of(renewed))
    else:
        leases.set(row, deadline_ms, holder_of(renewed), tx.now_ms)
    return Rotated(renewed, deadline_ms)


def refuse_extension(
    tx: Transaction, state: QueueState, receipt: Receipt, row: HeldRow | None, caller: Caller
) -> None:
    """Tell that a receipt has no lease to extend; it is stale where its message is still there."""
    if row is not None:
        tx.counted("stale_receipt", state)
    record(tx, state, EXTENSION_REFUSED, receipt, row, caller)


async def undo_receive(tx: Transaction, queue: Queue, receipts: Sequence[Receipt], caller: Caller) -> None:
    """Give back what a receive took whose answer never left."""
    state = tx.state_of(queue)
    rows = await held_rows(tx, state, (receipt.seq for receipt in receipts))
    leases, undone = NewLeases(tx, state), list[int]()
    for receipt in receipts:
        row = rows.get(receipt.seq)
        if row is not None and row.held().is_open(tx.now_ms) and row.held().is_held_by(receipt):
            row.receive_count -= 1
            record(tx, state, UNDONE, receipt, row, caller, row.due_at_ms)
            leases.release(row)
            undone.append(receipt.seq)
    if undone:
        tx.later(Q.uncount_receives, {"queue": state.id, "seqs": undone})
        leases.write()


def record(
    tx: Transaction,
    state: QueueState,
    kind: int,
    receipt: Receipt,
    row: HeldRow | None,
    caller: Caller,
    deadline_ms: int | None = None,
) -> None:
    """Tell the journal what a receipt did, or was refused."""
    if tx.journal is None:
        return
    place, who = tx.journal.places(state.queue.key, caller)
    told: tuple[object, ...] = (None, receipt.delivery, deadline_ms, None, None, None)
    if row is not None:
        told = (row.message_id, receipt.delivery, deadline_ms, row.receive_count, *row.facts)
    tx.journal.events.append((kind, tx.now_ms, place, receipt.seq, *told, who))
