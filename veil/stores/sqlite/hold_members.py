"""The leases of a hold: kept together, or deleted together.

Nearly always every one of them is open, so those are changed by one statement for all; what is left over is looked at one
by one, by the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from veil.core.hold import Grip, Member, judge_member
from veil.core.lease import Deletion, State
from veil.core.limits import SECOND_MS, VISIBILITY_MAX_S
from veil.core.message import Caller
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below, expires_at_ms
from veil.stores.recorder import DELETED, EXTENDED
from veil.stores.sqlite import lanes, leases
from veil.stores.sqlite.tables import Q, QueueState, Tables

_LEASE_MS_MAX = VISIBILITY_MAX_S * SECOND_MS


class Window(NamedTuple):
    """What is to become of the leases: until when, from when on, by whose wish."""

    deadline_ms: int
    now_ms: int
    caller: Caller
    anew: bool  # as if received now; else an extension, bounded by the receive

    def deadline_for(self, received_at_ms: int) -> int:
        return self.deadline_ms if self.anew else min(self.deadline_ms, received_at_ms + _LEASE_MS_MAX)


class Kept(NamedTuple):
    """What a hold comes to: the members with an open window, and those that are its members still."""

    open: list[Member]
    left: list[Member]


def keep(tables: Tables, state: QueueState, members: Sequence[Member], window: Window) -> Kept:
    """Give every member the window, take back what lapsed where that is allowed, and leave out what is lost."""
    opened = _keep_open(tables, state, members, window)
    if len(opened) == len(members):
        return Kept(list(members), list(members))
    order = _GroupOrder(tables, state)
    kept = Kept([], [])
    for member in members:
        if member.seq in opened:
            order.keeps(member.seq, opened[member.seq])
            kept.open.append(member)
            kept.left.append(member)
            continue
        receipt = Receipt(state.queue.id, member.seq, member.delivery)
        row = leases.held_row(tables, state, receipt, window.now_ms)
        grip = judge_member(leases.held_of(row), member.delivery, window.now_ms)
        if grip is Grip.LOST or order.forbids(member.seq, row[5]):
            leases.refuse_extension(tables, state, receipt, row, window.now_ms, window.caller)
            continue
        kept.left.append(member)
        deadline_ms = window.deadline_for(row[3])
        if deadline_ms > window.now_ms:  # else its twelve hours are over
            _take_back(tables, state, receipt, row, deadline_ms, window)
            order.keeps(member.seq, row[5])
            kept.open.append(member)
    return kept


def _keep_open(
    tables: Tables, state: QueueState, members: Sequence[Member], window: Window
) -> dict[int, str | None]:
    """Change all leases that are open: their keys, and the group of each."""
    settings, now_ms = state.queue.settings, window.now_ms
    retention_ms, alive_from = settings.retention_s * SECOND_MS, expired_below(now_ms, settings.retention_s)
    journal, place, who = tables.journal, 0, 0
    if journal is not None:
        place, who = journal.places(state.queue.key, window.caller)
    opened: dict[int, str | None] = {}
    for delivery, seqs in _by_delivery(members):
        arguments = (window.deadline_ms, retention_ms, state.queue.id, delivery, now_ms, alive_from, seqs)
        if window.anew:
            rows = tables.execute(Q.restart_members, arguments).fetchall()
        else:
            rows = tables.execute(Q.extend_members, (*arguments, _LEASE_MS_MAX)).fetchall()
        for seq, *facts, _, group in rows:
            opened[seq] = group
            if journal is not None:
                journal.events.append((EXTENDED, now_ms, place, seq, *facts, who))
                tables.lease_facts.keep(seq, tuple(facts))
        if rows:
            tables.hidden_until(state, min(row[7] for row in rows))
    return opened


def _take_back(
    tables: Tables, state: QueueState, receipt: Receipt, row: Any, deadline_ms: int, window: Window
) -> None:
    leases.record(tables, state, EXTENDED, receipt, row, window.now_ms, window.caller, deadline_ms)
    wake_at_ms = min(deadline_ms, expires_at_ms(receipt.seq, state.queue.settings.retention_s))
    received_at_ms = window.now_ms if window.anew else row[3]
    tables.execute(Q.take_back, (wake_at_ms, deadline_ms, receipt.delivery, received_at_ms, receipt.seq))
    tables.hidden_until(state, wake_at_ms)
    if row[0] == State.VISIBLE:
        leases.hide_again(tables, state, row[5])


class _GroupOrder:
    """FIFO: nothing is taken back from behind a message that the hold does not keep."""

    def __init__(self, tables: Tables, state: QueueState) -> None:
        self._tables, self._queue_id, self._fifo = tables, state.queue.id, state.queue.settings.fifo
        self._last: dict[str, int] = {}  # the last that is kept of each group
        self._broken: set[str] = set()

    def forbids(self, seq: int, group: str | None) -> bool:
        return self._fifo and group is not None and not self._follows(seq, group)

    def keeps(self, seq: int, group: str | None) -> None:
        if self._fifo and group is not None:
            self._follows(seq, group)
            self._last[group] = seq

    def _follows(self, seq: int, group: str) -> bool:
        """Whether all that is left of the group before it is kept."""
        between = (self._queue_id, group, self._last.get(group, 0), seq)
        if group not in self._broken and self._tables.execute(Q.stands_between, between).get:
            self._broken.add(group)
        return group not in self._broken


def delete(tables: Tables, state: QueueState, members: Sequence[Member], now_ms: int, caller: Caller) -> int:
    """Delete every member that may still be; how many were."""
    gone = _delete_open(tables, state, members, now_ms, caller)
    deleted = len(gone)
    for member in members:
        if member.seq not in gone:
            receipt = Receipt(state.queue.id, member.seq, member.delivery)
            deleted += leases.delete_one(tables, state, receipt, now_ms, caller) is Deletion.DELETED
    return deleted


def _delete_open(
    tables: Tables, state: QueueState, members: Sequence[Member], now_ms: int, caller: Caller
) -> set[int]:
    alive_from = expired_below(now_ms, state.queue.settings.retention_s)
    journal = tables.journal
    place, who = (0, 0) if journal is None else journal.places(state.queue.key, caller)
    gone: set[int] = set()
    groups: Counter[str] = Counter()
    for delivery, seqs in _by_delivery(members):
        arguments = (state.queue.id, delivery, now_ms, alive_from, seqs)
        for seq, *facts, group in tables.execute(Q.take_members, arguments).fetchall():
            gone.add(seq)
            if group is not None:
                groups[group] += 1
            if journal is not None:
                journal.events.append((DELETED, now_ms, place, seq, *facts, who))
    if gone:
        state.in_flight -= len(gone)
        tables.touch(state)
    for group, count in groups.items():
        lanes.leave(tables, state, group, count, in_flight=count)
    return gone


def _by_delivery(members: Sequence[Member]) -> list[tuple[int, str]]:
    """The keys as JSON lists, one for each delivery number: there are few of those."""
    found: dict[int, list[int]] = {}
    for seq, delivery in members:
        found.setdefault(delivery, []).append(seq)
    return [(delivery, msgspec.json.encode(seqs).decode()) for delivery, seqs in found.items()]
