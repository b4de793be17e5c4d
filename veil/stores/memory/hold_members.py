"""The holds of the memory store: streams, and what becomes of the members of a hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from veil.core.hold import NOTHING_CLOSED, Grip, Member, judge_member
from veil.core.limits import SECOND_MS, VISIBILITY_MAX_S
from veil.stores.memory.shelf import Row, Shelf


@dataclass(slots=True)
class Hold:
    """What a named receive took and still has, in that order, and how many it lost."""

    members: list[Member]
    lost: int = 0


@dataclass(slots=True)
class Stream:
    """Who reads a queue under names."""

    used_at_ms: int
    owner: str | None = None
    closed: int = NOTHING_CLOSED
    holds: dict[tuple[int, int], Hold] = field(default_factory=dict)  # by batch and part


class Kept(NamedTuple):
    """What a hold comes to: the members with an open window, and those that it loses."""

    open: list[tuple[Member, Row]]
    lost: list[Member]


def keep(shelf: Shelf, members: Sequence[Member], deadline_ms: int, now_ms: int, *, anew: bool) -> Kept:
    """Give every member the window, take back what lapsed where that is allowed."""
    kept = Kept([], [])
    for member in members:
        row = shelf.rows.get(member.seq)
        grip = judge_member(None if row is None else row.held(), member.delivery, now_ms)
        passed = grip is Grip.LAPSED and row is not None and _is_passed(shelf, row, kept)
        if row is None or grip is Grip.LOST or passed:
            kept.lost.append(member)
            continue
        if anew:
            row.message.received_at_ms = now_ms
        lease_end_ms = (row.message.received_at_ms or 0) + VISIBILITY_MAX_S * SECOND_MS
        if min(deadline_ms, lease_end_ms) > now_ms:
            # Read again, the hold's receipts are the first ones once more; extended, they stay what they are.
            rotation = 0 if anew else row.rotation
            row.hide(member.delivery, min(deadline_ms, lease_end_ms), rotation)
            kept.open.append((member, row))
    return kept


def _is_passed(shelf: Shelf, row: Row, kept: Kept) -> bool:
    """FIFO: whether something stands before it in its group that the hold does not keep."""
    if not shelf.fifo:
        return False
    ours = {member.seq for member, _ in kept.open}
    return any(
        other.message.group == row.message.group and seq < row.message.seq and seq not in ours
        for seq, other in shelf.rows.items()
    )
