"""Redrives: a move task, which empties a dead-letter queue in the background, and messages that were chosen one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from veil.core.message import NewContent, StoredMessage
from veil.core.queue import Queue, QueueKey

# Why a task failed, in words of our own. Data of older versions has the code that SQS has for each.
DESTINATION_MISSING: Final = "the destination does not exist"
SOURCE_UNKNOWN: Final = "the source of a message is not known"

MoveStatus = Literal["RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"]


class Scan(NamedTuple):
    """How far a task that moves only the messages that match has looked through its source."""

    filter: str  # which messages: text that means something to the service alone
    up_to_seq: int  # what comes back meanwhile is newer, and is not moved again
    after_seq: int = 0
    looked: int = 0  # messages
    refused: int = 0  # of those that matched
    refusal: str = ""  # why the last of them was


@dataclass(frozen=True, slots=True)
class MoveTask:
    """What a move task is to do and how far it has come."""

    id: str
    source: QueueKey
    destination: QueueKey | None  # None: every message goes back to the queue it was dead-lettered from
    rate_per_s: int | None
    status: MoveStatus
    moved: int
    to_move: int  # counted at the start
    started_wall_ms: int
    failure: str | None = None
    scan: Scan | None = None  # None: the task moves every message

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")


class Chosen(NamedTuple):
    """A message to be redriven: to the destination, or to where it was dead-lettered from."""

    seq: int
    message_id: str
    destination: QueueKey | None = None
    # A pure function of the message and the queue that it goes to; what it raises refuses the message.
    change: Callable[[StoredMessage, Queue], NewContent] | None = None


class ScanStep(NamedTuple):
    """What a look at further messages of a scanned source found."""

    chosen: Sequence[Chosen]
    after_seq: int  # the last message looked at
    looked: int
    is_last: bool
