"""Who may do what to a message that was received: the rules of the visibility window.

A lease is open from a receive until its visibility deadline. Each receive is a delivery with its own rising number; the
holder of an open lease is the delivery that opened it. SQS is lenient with late consumers (a lapsed receipt still
deletes, as long as nobody has received the message again), and Veil keeps that, with one rule above it: **a receipt that
does not hold the open lease never touches it.**

SMQ is strict: a receipt dies with its deadline, and an extension gives the lease a new receipt in place of the old one (a
rotation). A message that waits out its delay has a receipt too, with delivery 0, by which its sender may take it back, or set
the delay anew by a rotation.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

from veil.core.errors import MessageGone, ReceiptExpired, VisibilityTooLong
from veil.core.limits import SECOND_MS, VISIBILITY_MAX_S
from veil.core.queue import RedrivePolicy
from veil.core.receipt import ROTATION_MAX, Receipt


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
    deadline_ms: int  # when the open lease lapses, or the delay ends
    rotation: int = 0  # how often the receipt of the open lease, or of the delay, was replaced

    def is_open(self, now_ms: int) -> bool:
        """Whether somebody holds the message at that instant."""
        return self.state == State.IN_FLIGHT and self.deadline_ms > now_ms

    def is_waiting(self, now_ms: int) -> bool:
        """Whether the message waits out its delay at that instant: the deadline decides, not whether somebody has looked."""
        return self.state == State.DELAYED and self.deadline_ms > now_ms

    def is_held_by(self, receipt: Receipt) -> bool:
        """Whether the receipt is that of the open lease or the delay; says nothing about whether there is one."""
        return self.holder == receipt.delivery and self.rotation == receipt.rotation


class Deletion(Enum):
    """What a delete comes to. All three are success to the caller."""

    DELETED = "deleted"
    GONE = "gone"  # deleted before, expired, purged or moved away
    STALE = "stale"  # the receipt does not count (any more): nothing was done


WAITING: Final = 0  # the delivery in the receipt of a message that waits out its delay


def judge_deletion(
    held: Held | None, receipt: Receipt, now_ms: int, *, fifo: bool, strict: bool = False
) -> Deletion:
    """Decide a delete; raises ReceiptExpired where FIFO refuses. `strict` refuses late receipts without raising."""
    if held is None:
        return Deletion.GONE
    if receipt.delivery == WAITING:
        own = held.is_waiting(now_ms) and held.is_held_by(receipt)
        return Deletion.DELETED if own else Deletion.STALE
    if held.is_open(now_ms):
        if held.is_held_by(receipt):
            return Deletion.DELETED
        if fifo and not strict:
            raise ReceiptExpired(receipt.text)
        return Deletion.STALE
    if strict:
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
    if held is None or receipt.delivery > held.delivery or receipt.delivery == WAITING:
        raise MessageGone(receipt.text)
    if held.is_open(now_ms):
        if not held.is_held_by(receipt):
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


def judge_rotation(held: Held | None, receipt: Receipt, visibility_s: int, now_ms: int) -> int | None:
    """The new deadline, or None for visible at once; raises MessageGone unless the receipt holds the open lease or the delay.

    The lease begins anew with its new receipt, and with it the twelve hours: whoever proves by rotating that they are still
    there may hold a message for as long as they do. A delay that is set anew ends after that time from now, sooner or later
    than before: so SMQ's clients commit what they sent as part of a transaction.
    """
    if (
        held is None
        or not (held.is_open(now_ms) or held.is_waiting(now_ms))
        or not held.is_held_by(receipt)
        or held.rotation >= ROTATION_MAX
    ):
        raise MessageGone(receipt.text)
    return now_ms + visibility_s * SECOND_MS if visibility_s else None


def is_spent(receive_count: int, redrive: RedrivePolicy | None) -> bool:
    """Whether one more receive would exceed the redrive policy, so that the message goes to the dead letters instead."""
    return redrive is not None and receive_count >= redrive.receives_max
