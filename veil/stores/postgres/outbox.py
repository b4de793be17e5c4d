"""The outbox: what happened to messages, written with the transaction in which it did, until it is exported."""

from __future__ import annotations

from typing import Final

from veil.stores.outbox_bound import OutboxBound
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction

WRITES_A_TURN: Final = 2_000
TURNS: Final = 30_000
SLOTS_MAX: Final = 1 << 16  # of all nodes: their numbers go up to a thousand


class Bound(OutboxBound):
    """The bound, with what this node last knew of the outbox's size."""

    __slots__ = ("present_bytes", "writes")

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.present_bytes = 0
        self.writes = 0


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
    # After a while to another row: a long transaction elsewhere keeps every former state of a row, and each change of it would
    # go through all of them.
    turn = bound.writes // WRITES_A_TURN % TURNS
    bound.writes += 1
    slot = turn * SLOTS_MAX + tx.slot
    tx.later(Q.add_outbox_count, {"slot": slot, "rows": 1, "packed_bytes": len(packed)})
