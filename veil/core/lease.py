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
from typing import Final

from veil.core.errors import MessageGone, ReceiptExpired, VisibilityTooLong
from veil.core.limits import SECOND_MS, VISIBILITY_MAX_S
from veil.core.message import HeldMessage, StoredMessage
from veil.core.receipt import ROTATION_MAX, Receipt, rotation_of


class State(IntEnum):
    """Where a message stands. The numbers are stored."""

    VISIBLE = 0
    DELAYED = 1
    IN_FLIGHT = 2


MessageFacts = HeldMessage | StoredMessage


def is_open(message: MessageFacts, now_ms: int) -> bool:
    """Whether somebody holds the message at that instant."""
    return message.state == State.IN_FLIGHT and (message.due_at_ms or 0) > now_ms


def is_waiting(message: MessageFacts, now_ms: int) -> bool:
    """Whether the message waits out its delay at that instant: the deadline decides, not whether somebody has looked."""
    return message.state == State.DELAYED and (message.due_at_ms or 0) > now_ms


class Deletion(Enum):
    """What a delete comes to. All three are success to the caller."""

    DELETED = "deleted"
    GONE = "gone"  # deleted before, expired, purged or moved away
    STALE = "stale"  # the receipt does not count (any more): nothing was done


WAITING: Final = 0  # the delivery in the receipt of a message that waits out its delay


def judge_deletion(
    held: MessageFacts | None, receipt: Receipt, now_ms: int, *, fifo: bool, strict: bool = False
) -> Deletion:
    """Decide a delete; raises ReceiptExpired where FIFO refuses. `strict` refuses late receipts without raising."""
    if held is None:
        return Deletion.GONE
    if receipt.delivery == WAITING:
        own = is_waiting(held, now_ms) and held.holder == receipt.holder
        return Deletion.DELETED if own else Deletion.STALE
    if is_open(held, now_ms):
        if held.holder == receipt.holder:
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
    held: MessageFacts | None, receipt: Receipt, visibility_s: int, now_ms: int, *, fifo: bool
) -> int | None:
    """The new deadline, or None for visible at once; raises where the caller may not change the visibility."""
    if held is None or receipt.delivery > held.delivery or receipt.delivery == WAITING:
        raise MessageGone(receipt.text)
    if is_waiting(held, now_ms):
        # Nobody has received it here, so the receipt is from data that was restored to an earlier state.
        raise MessageGone(receipt.text)
    if is_open(held, now_ms):
        if held.holder != receipt.holder:
            raise ReceiptExpired(receipt.text) if fifo else MessageGone(receipt.text)
    elif fifo:
        raise ReceiptExpired(receipt.text)
    if visibility_s == 0:
        return None
    deadline_ms = now_ms + visibility_s * 1000
    # The cap counts from the receive, not from this call: otherwise a consumer that keeps renewing could hide a message
    # for ever. SQS refuses here; it does not clamp.
    if deadline_ms > lease_end_ms(held.received_at_ms or 0):
        raise VisibilityTooLong(visibility_s)
    return deadline_ms


def judge_rotation(held: MessageFacts | None, receipt: Receipt, visibility_s: int, now_ms: int) -> int | None:
    """The new deadline, or None for visible at once; raises MessageGone unless the receipt holds the open lease or the delay.

    The lease begins anew with its new receipt, and with it the twelve hours: whoever proves by rotating that they are still
    there may hold a message for as long as they do. A delay that is set anew ends after that time from now, sooner or later
    than before: so SMQ's clients commit what they sent as part of a transaction.
    """
    if (
        held is None
        or not (is_open(held, now_ms) or is_waiting(held, now_ms))
        or held.holder != receipt.holder
        or rotation_of(held.holder) >= ROTATION_MAX
    ):
        raise MessageGone(receipt.text)
    return now_ms + visibility_s * SECOND_MS if visibility_s else None


def lease_end_ms(received_at_ms: int) -> int:
    """The instant beyond which no extension reaches: twelve hours after the receive."""
    return received_at_ms + VISIBILITY_MAX_S * SECOND_MS
