"""A hold: what one named receive took, a set of leases that is extended and deleted together.

A reader that may run more than once (a task that is tried again, or twice at the same time) receives under a name, and the
name always gives the same messages with the same receipts, an empty name always none. Names are made of a stream, a batch
that rises, and a part. A batch is acknowledged with all before it, by the stream's owner; its names are closed from then on,
so that no late reader can open a hold that nobody will read and an acknowledgement would delete.

Members are only ever lost, never found again: whoever reads the hold later, or acknowledges it, must not count on what an
earlier reader was not given. A message that is left out once is left to the queue for good.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from veil.core.errors import HoldNameRefused
from veil.core.lease import MessageFacts, is_open
from veil.core.limits import RECEIVE_BYTES_MAX, RETENTION_MAX_S, SECOND_MS
from veil.core.message import StoredMessage
from veil.core.receipt import delivery_of

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
