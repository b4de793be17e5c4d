"""Let happen what is due: leases lapse, delays end, messages expire, streams that nobody uses are forgotten."""

from __future__ import annotations

from veil.core.lease import State
from veil.core.sequence import expires_at_ms
from veil.stores.memory import holds, recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
from veil.stores.recorder import EXPIRED


def settle(op: Operation) -> None:
    """Let everything happen that is due by now, in every queue."""
    holds.forget_stale(op)
    for shelf in op.shelves.by_id.values():
        for row in shelf.in_order():
            _settle(op, shelf, row)


def _settle(op: Operation, shelf: Shelf, row: Row) -> None:
    message = row.message
    expiry_ms = expires_at_ms(message.seq, shelf.queue.settings.retention_s)
    # A lease that outlasts its message never lapses, however late we look.
    if message.due_at_ms is not None and message.due_at_ms <= op.now_ms and message.due_at_ms < expiry_ms:
        if message.state == State.IN_FLIGHT:
            op.count("lapsed", shelf)
        row.show()
    if expiry_ms <= op.now_ms:
        recording.end(op, EXPIRED, shelf, row)
        shelf.remove(row)
        op.count("expired", shelf)
