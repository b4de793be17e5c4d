"""The facts of a lease as they stand in a row, for the rules of `core.lease`.

The column `holder` tells the receipt of the open lease, or of the delay: its delivery in the lower 32 bits, its rotation above.
So a delete has one number to compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from veil.core.lease import Held, State
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction

_DELIVERY_BITS: Final = 32
_DELIVERY: Final = (1 << _DELIVERY_BITS) - 1


def holder_of(receipt: Receipt) -> int:
    """What stands in the row while the receipt holds the lease."""
    return receipt.delivery | receipt.rotation << _DELIVERY_BITS


def delivery_of(holder: int) -> int:
    """The delivery that holds the lease."""
    return holder & _DELIVERY


class HeldRow:
    """A message as a receipt finds it; changed along with the row, so that the next receipt of the same call sees it."""

    __slots__ = (
        "delivery",
        "due_at_ms",
        "facts",
        "group",
        "holder",
        "message_id",
        "receive_count",
        "received_at_ms",
        "seq",
        "state",
    )

    def __init__(self, row: Row) -> None:
        self.seq: int = row[0]
        self.state: int = row[1]
        self.delivery: int = row[2]
        self.holder: int = row[3]
        self.received_at_ms: int | None = row[4]
        self.due_at_ms: int | None = row[5]
        self.group: str | None = row[6]
        self.message_id: str = row[7]
        self.receive_count: int = row[8]
        self.facts: tuple[int, str | None] = (row[9], row[10])  # size and type

    @property
    def rotation(self) -> int:
        """How often the receipt of the open lease was replaced."""
        return self.holder >> _DELIVERY_BITS

    def held(self) -> Held:
        """The same for `core.lease`."""
        return Held(
            State(self.state),
            self.delivery,
            delivery_of(self.holder),
            self.received_at_ms or 0,
            self.due_at_ms or 0,
            self.rotation,
        )

    def deadline_of(self, receipt: Receipt) -> int | None:
        """When the receipt's own lease would have lapsed, if that is the one that is open."""
        is_own = self.state == State.IN_FLIGHT and delivery_of(self.holder) == receipt.delivery
        return self.due_at_ms if is_own else None


async def held_rows(tx: Transaction, state: QueueState, seqs: Iterable[int]) -> dict[int, HeldRow]:
    """What the queue has of these messages, each locked until the transaction ends."""
    # What is past its retention is gone, though perhaps not yet swept.
    below = expired_below(tx.now_ms, state.queue.settings.retention_s)
    wanted = sorted({seq for seq in seqs if seq >= below})
    if not wanted:
        return {}
    return {row[0]: HeldRow(row) for row in await tx.rows(Q.held, {"queue": state.id, "seqs": wanted})}
