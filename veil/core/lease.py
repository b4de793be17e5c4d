"""Who may do what to a message that was received: the rules of the visibility window.

A lease is open from a receive until its visibility deadline. Each receive is a delivery with its own rising number; the
holder of an open lease is the delivery that opened it. SQS is lenient with late consumers (a lapsed receipt still
deletes, as long as nobody has received the message again), and Veil keeps that, with one rule above it: **a receipt that
does not hold the open lease never touches it.**

SMQ is strict: a receipt dies with its deadline, and an extension gives the lease a new receipt in place of the old one (a
rotation). A message that waits out its delay has a receipt too, with delivery 0, by which its sender may take it back, or set
the delay again by a rotation.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from veil.core.attempt import ReportedOutcome
from veil.core.errors import HoldNameRefused, MessageGone, ReceiptExpired, VisibilityTooLong
from veil.core.limits import RECEIVE_BYTES_MAX, RETENTION_MAX_S, SECOND_MS, VISIBILITY_MAX_S
from veil.core.message import HeldMessage, StoredMessage
from veil.core.receipt import ROTATION_MAX, Receipt, delivery_of, rotation_of


class State(IntEnum):
    """Where a message stands. The numbers are stored."""

    VISIBLE = 0
    DELAYED = 1
    IN_FLIGHT = 2

    @property
    def label(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


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


class Extension(NamedTuple):
    """A new visibility for the message behind a receipt, counted from now; 0 releases it."""

    receipt: Receipt
    visibility_s: int
    reported: ReportedOutcome | None = None  # the attempt is over, and this is what its holder reports of it


class Rotated(NamedTuple):
    """The receipt that counts from now on, and until when; a released message's is void, and its deadline is now."""

    receipt: Receipt
    deadline_ms: int


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

    The lease starts over with its new receipt, and with it the twelve hours: whoever proves by rotating that they are still
    there may hold a message for as long as they do. A delay that is set again ends after that time from now, sooner or later
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


def begun_after_ms(deadline_ms: int) -> int:
    """The same the other way round: the earliest receive from which an extension reaches that deadline."""
    return deadline_ms - VISIBILITY_MAX_S * SECOND_MS


# ---- holds: what one named receive took, a set of leases that is extended and deleted together
#
# A reader that may run more than once (a task that is tried again, or twice at the same time) receives under a name, and the
# name always gives the same messages with the same receipts, an empty name always none. Names are made of a stream, a batch
# that rises, and a part. A batch is acknowledged with all before it, by the stream's owner; its names are closed from then on,
# so that no late reader can open a hold that nobody will read and an acknowledgement would delete.
#
# Members are only ever lost, never found again: whoever reads the hold later, or acknowledges it, must not count on what an
# earlier reader was not given. A message that is left out once is left to the queue for good.

HOLD_MAX: Final = 1_000  # messages
HOLD_BYTES_MAX: Final = RECEIVE_BYTES_MAX
# No message outlives this, so nothing is left to hold when a stream is forgotten.
STREAM_REST_MS: Final = RETENTION_MAX_S * SECOND_MS
NUMBER_MAX: Final = (1 << 62) - 1  # of batches and parts
NOTHING_CLOSED: Final = -1

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,80}\Z")
_NAME_EXPECTED: Final = "1 to 80 of A-Z a-z 0-9 . _ -"


class HoldKey(NamedTuple):
    """The name of a hold, within its queue."""

    stream: str
    batch: int
    part: int


class Member(NamedTuple):
    """One lease of a hold."""

    seq: int
    delivery: int


class HoldContent(NamedTuple):
    """What is under the name of a hold; `lost` counts all that was there once and could not be kept."""

    messages: list[StoredMessage]
    lost: int = 0
    again: bool = False  # the name was known


class HoldTally(NamedTuple):
    """How many messages an extension or a deletion of holds reached, and how many of the holds' it no longer could."""

    messages: int = 0
    lost: int = 0

    def plus(self, other: HoldTally) -> HoldTally:
        return HoldTally(self.messages + other.messages, self.lost + other.lost)


class MemberState(Enum):
    """What has become of a member of a hold."""

    OPEN = "open"
    LAPSED = "lapsed"  # nobody has received it since: it may be taken back
    LOST = "lost"


def judge_member(held: MessageFacts | None, delivery: int, now_ms: int) -> MemberState:
    """What has become of a member; `held` is None where its queue does not have the message any more."""
    if held is None:
        return MemberState.LOST
    if is_open(held, now_ms):
        return MemberState.OPEN if delivery_of(held.holder) == delivery else MemberState.LOST
    return MemberState.LAPSED if held.delivery == delivery else MemberState.LOST


def check_name(parameter: str, value: str) -> None:
    """Raise HoldNameRefused unless the text can name a stream or its owner."""
    if not _NAME.match(value):
        raise HoldNameRefused(parameter, value, _NAME_EXPECTED)


def check_number(parameter: str, value: int) -> None:
    """Raise HoldNameRefused unless the number can be that of a batch or a part."""
    if not 0 <= value <= NUMBER_MAX:
        raise HoldNameRefused(parameter, value, f"a whole number from 0 to {NUMBER_MAX}")
