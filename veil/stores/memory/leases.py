"""What a receipt can do: delete, extend, release, rotate, give back."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.errors import MessageGone, ReceiptExpired, VeilError
from veil.core.lease import WAITING, Deletion, State, judge_deletion, judge_extension, judge_rotation
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.stores.memory import recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
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


def delete(
    op: Operation, queue: Queue, receipts: Sequence[Receipt], strict: bool, caller: Caller
) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    shelf = op.shelves.of(queue)
    return [delete_one(op, shelf, receipt, caller, strict=strict) for receipt in receipts]


def delete_one(
    op: Operation, shelf: Shelf, receipt: Receipt, caller: Caller, *, strict: bool = False
) -> Deletion | VeilError:
    """Delete by one receipt, or do not, by the rules."""
    row = shelf.find(receipt)
    held = None if row is None else row.held()
    try:
        deletion = judge_deletion(held, receipt, op.now_ms, fifo=shelf.fifo, strict=strict)
    except ReceiptExpired as refusal:
        op.count("stale_receipt", shelf)
        recording.by_receipt(op, DELETE_REFUSED, shelf, row, receipt, caller)
        return refusal
    if deletion is Deletion.DELETED and row is not None:
        own_ms = row.message.due_at_ms if row.holder and row.holder == receipt.delivery else None
        recording.by_receipt(op, DELETED, shelf, row, receipt, caller, own_ms)
        shelf.remove(row)
    else:
        recording.by_receipt(op, DELETE_REFUSED, shelf, row, receipt, caller)
    if deletion is Deletion.STALE:
        op.count("stale_receipt", shelf)
    return deletion


def extend(
    op: Operation, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    shelf = op.shelves.of(queue)
    return [_extend_one(op, shelf, extension, caller) for extension in extensions]


def _extend_one(op: Operation, shelf: Shelf, extension: Extension, caller: Caller) -> VeilError | None:
    receipt, visibility_s = extension
    row = shelf.find(receipt)
    held = None if row is None else row.held()
    try:
        deadline_ms = judge_extension(held, receipt, visibility_s, op.now_ms, fifo=shelf.fifo)
    except VeilError as refusal:
        if isinstance(refusal, MessageGone | ReceiptExpired):
            refuse_extension(op, shelf, receipt, row, caller)
        return refusal
    assert row is not None  # the rule refuses where there is no message
    if deadline_ms is not None:
        row.hide(receipt.delivery, deadline_ms, receipt.rotation)
        recording.by_receipt(op, EXTENDED, shelf, row, receipt, caller, deadline_ms)
    elif row.message.state != State.VISIBLE:
        own_ms = row.message.due_at_ms if row.holder == receipt.delivery else None
        recording.by_receipt(op, RELEASED, shelf, row, receipt, caller, own_ms)
        row.show()
    return None


def rotate(
    op: Operation, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    shelf = op.shelves.of(queue)
    return [rotate_one(op, shelf, extension, caller) for extension in extensions]


def rotate_one(op: Operation, shelf: Shelf, extension: Extension, caller: Caller) -> Rotated | VeilError:
    """Give the lease or the delay of one receipt to its successor, or do not, by the rules."""
    receipt, visibility_s = extension
    row = shelf.find(receipt)
    try:
        deadline_ms = judge_rotation(None if row is None else row.held(), receipt, visibility_s, op.now_ms)
    except MessageGone as refusal:
        refuse_extension(op, shelf, receipt, row, caller)
        return refusal
    assert row is not None  # the rule refuses where there is no message
    renewed = receipt._replace(rotation=receipt.rotation + 1, text="")
    kind, told_ms = of_rotation(receipt, row.message.due_at_ms, deadline_ms, op.now_ms)
    recording.by_receipt(op, kind, shelf, row, receipt, caller, told_ms)
    if deadline_ms is None:
        row.show()
        return Rotated(renewed, op.now_ms)
    if receipt.delivery == WAITING:
        row.message.due_at_ms, row.rotation = deadline_ms, renewed.rotation
    else:
        row.message.received_at_ms = op.now_ms
        row.hide(receipt.delivery, deadline_ms, renewed.rotation)
    return Rotated(renewed, deadline_ms)


def refuse_extension(op: Operation, shelf: Shelf, receipt: Receipt, row: Row | None, caller: Caller) -> None:
    """Tell that a receipt has no lease to extend; it is stale where its message is still there."""
    if row is not None:
        op.count("stale_receipt", shelf)
    recording.by_receipt(op, EXTENSION_REFUSED, shelf, row, receipt, caller)


def undo_receive(op: Operation, queue: Queue, receipts: Sequence[Receipt], caller: Caller) -> None:
    """Make the messages visible again and do not count the receive."""
    shelf = op.shelves.of(queue)
    for receipt in receipts:
        row = shelf.find(receipt)
        if row is None or not row.held().is_open(op.now_ms) or not row.held().is_held_by(receipt):
            continue
        deadline_ms = row.message.due_at_ms
        row.show()
        row.message.receive_count -= 1
        recording.by_receipt(op, UNDONE, shelf, row, receipt, caller, deadline_ms)
        if row.message.receive_count == 0:
            row.message.first_received_wall_ms = None
