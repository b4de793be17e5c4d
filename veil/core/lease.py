"""Who may do what to a message that was received: the rules of the visibility window.

A lease is open from a receive until its visibility deadline. Each receive is a delivery with its own rising number; the
holder of an open lease is the delivery that opened it. SQS is lenient with late consumers (a lapsed receipt still
deletes, as long as nobody has received the message again), and Veil keeps that, with one rule above it: **a receipt that
does not hold the open lease never touches it.**
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from veil.core.errors import MessageGone, ReceiptExpired, VisibilityTooLong
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.queue import RedrivePolicy
from veil.core.receipt import Receipt


class State(IntEnum):
    """Where a message stands. The numbers are stored."""

    VISIBLE = 0
    DELAYED = 1
    IN_FLIGHT = 2


class Held(NamedTuple):
    """The facts about a message that its lease depends on."""

    state: State
    delivery: int  # the number of the latest delivery
    holder: int  # the delivery that opened the lease, while one is open
    received_at_ms: int  # engine time of the latest receive
    deadline_ms: int  # when the open lease lapses

    def is_open(self, now_ms: int) -> bool:
        """Whether somebody holds the message at that instant."""
        return self.state == State.IN_FLIGHT and self.deadline_ms > now_ms


class Deletion(Enum):
    """What a delete comes to. All three are success to the caller."""

    DELETED = "deleted"
    GONE = "gone"  # deleted before, expired, purged or moved away
    STALE = "stale"  # somebody else holds the message now: nothing was done


def judge_deletion(held: Held | None, receipt: Receipt, now_ms: int, *, fifo: bool) -> Deletion:
    """Decide a delete; raises ReceiptExpired where FIFO refuses."""
    if held is None:
        return Deletion.GONE
    if held.is_open(now_ms):
        if held.holder == receipt.delivery:
            return Deletion.DELETED
        if fifo:
            raise ReceiptExpired(receipt.text)
        return Deletion.STALE
    if fifo:
        raise ReceiptExpired(receipt.text)
    # Nobody holds it: SQS deletes for a late receipt, an older one included. A number from the future can only come
    # from data that was restored to an earlier state; it proves nothing about this message.
    return Deletion.DELETED if receipt.delivery <= held.delivery else Deletion.STALE


def judge_extension(
    held: Held | None, receipt: Receipt, visibility_s: int, now_ms: int, *, fifo: bool
) -> int | None:
    """The new deadline, or None for visible at once; raises where the caller may not change the visibility."""
    if held is None or receipt.delivery > held.delivery:
        raise MessageGone(receipt.text)
    if held.is_open(now_ms):
        if held.holder != receipt.delivery:
            raise ReceiptExpired(receipt.text) if fifo else MessageGone(receipt.text)
    elif fifo:
        raise ReceiptExpired(receipt.text)
    if visibility_s == 0:
        return None
    deadline_ms = now_ms + visibility_s * 1000
    # The cap counts from the receive, not from this call: otherwise a consumer that keeps renewing could hide a message
    # for ever. SQS refuses here; it does not clamp.
    if deadline_ms > held.received_at_ms + VISIBILITY_MAX_S * 1000:
        raise VisibilityTooLong(visibility_s)
    return deadline_ms


def is_spent(receive_count: int, redrive: RedrivePolicy | None) -> bool:
    """Whether one more receive would exceed the redrive policy, so that the message goes to the dead letters instead."""
    return redrive is not None and receive_count >= redrive.receives_max
