"""The outbox: what happened to messages, written with the transaction in which it did, until it is exported."""

from __future__ import annotations

from veil.stores.outbox_bound import OutboxBound
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction


class Bound(OutboxBound):
    """The bound, with what this node last knew of the outbox's size."""

    __slots__ = ("present_bytes",)

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.present_bytes = 0


def write(tx: Transaction, bound: Bound) -> None:
    """Put what the transaction recorded into one row, with COMMIT."""
    if tx.journal is None or not tx.journal.events:
        return
    if not bound.has_room(bound.present_bytes):
        bound.give_up(len(tx.journal.events), tx.now_ms)
        return
    packed = tx.journal.packed()
    bound.present_bytes += len(packed)
    tx.later(Q.add_to_outbox, {"at_ms": tx.now_ms, "packed": packed})
    tx.later(Q.add_outbox_count, {"slot": tx.slot, "rows": 1, "packed_bytes": len(packed)})
