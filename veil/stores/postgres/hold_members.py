"""The leases of a hold: kept together, or deleted together, by the rules of `core.hold`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from veil.core.hold import Grip, Member, judge_member
from veil.core.lease import Deletion
from veil.core.limits import SECOND_MS, VISIBILITY_MAX_S
from veil.core.message import Caller
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below
from veil.stores.postgres import leases
from veil.stores.postgres.held import HeldRow, held_rows
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction
from veil.stores.recorder import EXTENDED

_LEASE_MS_MAX = VISIBILITY_MAX_S * SECOND_MS


class Window(NamedTuple):
    """What is to become of the leases: until when, and by whose wish."""

    deadline_ms: int
    caller: Caller
    anew: bool  # as if received now; else an extension, bounded by the receive

    def deadline_for(self, received_at_ms: int) -> int:
        return self.deadline_ms if self.anew else min(self.deadline_ms, received_at_ms + _LEASE_MS_MAX)


class Kept(NamedTuple):
    """What a hold comes to: the members with an open window, and those that are its members still."""

    open: list[Member]
    left: list[Member]


class Members:
    """Members of one or several holds of a queue, read together: one statement reads them, one writes them."""

    def __init__(
        self, tx: Transaction, state: QueueState, rows: dict[int, HeldRow], order: _GroupOrder
    ) -> None:
        self._tx, self._state, self._rows, self._order = tx, state, rows, order
        self._leases = leases.NewLeases(tx, state)
        self._gone: list[int] = []

    @classmethod
    async def read(cls, tx: Transaction, state: QueueState, members: Sequence[Member]) -> Members:
        """The messages of the members as they stand, each locked until the transaction ends."""
        rows = await held_rows(tx, state, (member.seq for member in members))
        groups = {row.group for row in rows.values() if row.group is not None} if state.fifo else set()
        order = _GroupOrder()
        if groups:
            alive_from = expired_below(tx.now_ms, state.queue.settings.retention_s)
            named = {"queue": state.id, "groups": sorted(groups), "from": alive_from, "up_to": max(rows)}
            order.know(await tx.rows(Q.group_places, named))
        return cls(tx, state, rows, order)

    def keep(self, members: Sequence[Member], window: Window) -> Kept:
        """Give every member of one hold the window, take back what lapsed where that is allowed, and leave out what is lost."""
        tx, state, kept = self._tx, self._state, Kept([], [])
        self._order.begin()
        for member in members:
            row = self._rows.get(member.seq)
            receipt = Receipt(state.id, member.seq, member.delivery)
            grip = judge_member(None if row is None else row.held(), member.delivery, tx.now_ms)
            is_passed = grip is Grip.LAPSED and row is not None and self._order.forbids(row)
            if row is None or grip is Grip.LOST or is_passed:
                leases.refuse_extension(tx, state, receipt, row, window.caller)
                continue
            kept.left.append(member)
            deadline_ms = window.deadline_for(row.received_at_ms or 0)
            if deadline_ms > tx.now_ms:  # else its twelve hours are over
                leases.record(tx, state, EXTENDED, receipt, row, window.caller, deadline_ms)
                # Read again, the hold's receipts are the first ones once more; extended, they stay what they are.
                holder = row.holder if grip is Grip.OPEN and not window.anew else member.delivery
                self._leases.set(row, deadline_ms, holder, tx.now_ms if window.anew else None)
                self._order.keeps(row)
                kept.open.append(member)
        return kept

    def delete(self, members: Sequence[Member], caller: Caller) -> int:
        """Delete every member that may still be; how many were."""
        deleted = 0
        for member in members:
            row = self._rows.get(member.seq)
            rotation = 0 if row is None else row.rotation
            receipt = Receipt(self._state.id, member.seq, member.delivery, rotation=rotation)
            verdict = leases.delete_one(self._tx, self._state, self._rows, receipt, caller)
            if verdict is Deletion.DELETED:
                self._gone.append(member.seq)
                deleted += 1
        return deleted

    def write(self) -> None:
        """Have it all done."""
        self._leases.write()
        if self._gone:
            self._tx.later(Q.delete_messages, {"queue": self._state.id, "seqs": self._gone})


class _GroupOrder:
    """FIFO: nothing is taken back from behind a message that its hold does not keep."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}
        self._kept: set[int] = set()

    def know(self, rows: list[tuple[str, int]]) -> None:
        """Take in the places of the groups' messages, by rising key."""
        for group, seq in rows:
            self._places.setdefault(group, []).append(seq)

    def begin(self) -> None:
        """The next hold: what another one keeps does not help it."""
        self._kept.clear()

    def keeps(self, row: HeldRow) -> None:
        self._kept.add(row.seq)

    def forbids(self, row: HeldRow) -> bool:
        before = self._places.get(row.group or "", ())
        return any(seq < row.seq and seq not in self._kept for seq in before)
