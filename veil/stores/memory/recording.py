"""Tell the journal what happens to a message, in the operation that does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veil.core.event import NOBODY
from veil.core.message import Caller, StoredMessage
from veil.core.receipt import Receipt
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
from veil.stores.recorder import PURGED


def event(
    op: Operation, kind: int, shelf: Shelf, message: StoredMessage, caller: Caller = NOBODY, **given: Any
) -> None:
    """Something happened to the message."""
    if op.recorder is not None:
        op.recorder.note(
            kind,
            op.now_ms,
            shelf.queue.key,
            message.seq,
            message.message_id,
            receive_count=message.receive_count,
            body_bytes=message.body_bytes,
            message_type=message.message_type,
            caller=caller,
            **given,
        )


def leases(op: Operation, kind: int, shelf: Shelf, messages: Sequence[StoredMessage], caller: Caller) -> None:
    """The messages are leased, or leased anew."""
    for message in messages:
        # A receive with visibility 0 opens no window: the lease is over at once.
        deadline_ms = op.now_ms if message.due_at_ms is None else message.due_at_ms
        event(op, kind, shelf, message, caller, delivery=message.delivery, deadline_ms=deadline_ms)


def by_receipt(
    op: Operation,
    kind: int,
    shelf: Shelf,
    row: Row | None,
    receipt: Receipt,
    caller: Caller,
    deadline_ms: int | None = None,
) -> None:
    """What a receipt did, or was refused; the message may be gone."""
    if row is not None:
        event(op, kind, shelf, row.message, caller, delivery=receipt.delivery, deadline_ms=deadline_ms)
    elif op.recorder is not None:
        key, delivery = shelf.queue.key, receipt.delivery
        op.recorder.note(kind, op.now_ms, key, receipt.seq, None, delivery=delivery, caller=caller)


def end(op: Operation, kind: int, shelf: Shelf, row: Row, caller: Caller = NOBODY) -> None:
    """The message ends, and with it its lease if one is open."""
    deadline_ms = row.message.due_at_ms if row.holder else None
    event(op, kind, shelf, row.message, caller, delivery=row.holder, deadline_ms=deadline_ms)


def purge(op: Operation, shelf: Shelf, caller: Caller) -> None:
    """All messages of the queue end."""
    for row in shelf.in_order():
        end(op, PURGED, shelf, row, caller)
