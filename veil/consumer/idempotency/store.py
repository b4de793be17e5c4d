"""The contract of a store of idempotency keys, and the rule that every store keeps.

A key is claimed before its message is handled, and finished or given up afterwards. Times are lengths, counted on the
store's own clock, because several consumers share it and their clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claims: one delivery of one message. The token rises with every delivery."""

    message_id: str
    token: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is the caller's: handle the message, then finish or give up."""


@dataclass(frozen=True, slots=True)
class Done:
    """The key was handled before: the message is a duplicate."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is at it, for so long at most."""

    for_ms: int


Claim = Claimed | Done | Busy


class IdempotencyStore(Protocol):
    """Whatever it raises means that nobody knows: the message is then not handled but tried again later.

    Every method is atomic, and safe to call again after an error.
    """

    async def claim(self, key: str, holder: Holder, *, hold_ms: int) -> Claim:
        """Claim the key for `hold_ms`; `may_claim` says who may."""

    async def finish(self, key: str, holder: Holder, *, keep_ms: int) -> bool:
        """Remember for `keep_ms` that it is done; False, and no change, when the claim is not this holder's any more."""

    async def give_up(self, key: str, holder: Holder) -> None:
        """Forget the claim, if it is this holder's and not finished."""

    async def close(self) -> None:
        """Let go of files and connections."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored under a key."""

    is_done: bool
    holder: Holder
    until_ms: int


def judge(record: Record | None, holder: Holder, now_ms: int) -> Claim:
    """The rule of a claim.

    A later delivery of the same message takes over at once: that it was delivered means that the earlier one lost its
    lease, or died. Another message with the same key waits until the claim runs out.
    """
    if record is None:
        return Claimed()
    is_same = record.holder.message_id == holder.message_id
    if not record.is_done and is_same:
        # An older delivery that wakes up late must not take its successor's claim, even one that has run out.
        if record.holder.token > holder.token:
            return Busy(max(1, record.until_ms - now_ms))
        return Claimed()
    if record.until_ms <= now_ms:
        return Claimed()
    return Done() if record.is_done else Busy(record.until_ms - now_ms)
