"""What a client of queues needs of a service: the part of the SQS API it uses, and the ways in which a call can fail.

`client.py` implements it over HTTP against Veil, Amazon SQS or anything that speaks the same; `veil.testing` implements it
in-process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from veil.core.attempt import Said


class Failure(Enum):
    """Why a call, or one entry of a batch, did not succeed; what to do about it depends on nothing else."""

    LOST = "lost"  # the message is gone or somebody else holds it: the receipt means nothing any more
    CAPPED = "capped"  # the lease cannot be made longer: twelve hours after the receive is the end
    THROTTLED = "throttled"  # try again, more slowly
    UNREACHABLE = "unreachable"  # no answer, a broken one, or a 5xx: the outcome is unknown, try again
    REFUSED = "refused"  # the request is wrong: trying again will not help
    FATAL = "fatal"  # no such queue, no access, no usable credentials: the consumer cannot go on


class ApiError(Exception):
    """A call that failed, in the service's words.

    `away`: the service itself is in trouble, since it refused the connection or said so. Silence is not enough: that may be
    the way to it.
    """

    def __init__(self, failure: Failure, code: str, message: str, *, away: bool = False) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.failure, self.code, self.message, self.away = failure, code, message, away


class Attribute(NamedTuple):
    """A message attribute; text for String and Number, bytes for Binary."""

    data_type: str
    value: str | bytes


@dataclass(slots=True)
class RawMessage:
    """A message as the service gave it. `asked_at_s` is monotonic time from before the receive was sent: the window
    began after it, so counting from it can only make the holder more careful."""

    message_id: str
    receipt: str
    body: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    system: Mapping[str, str] = field(
        default_factory=dict
    )  # ApproximateReceiveCount, SentTimestamp, MessageGroupId, …
    asked_at_s: float = 0.0
    grace_s: float = (
        0.0  # how long after the service's own trouble its lease stays open; 0: nothing is promised
    )

    @property
    def receive_count(self) -> int:
        return int(self.system.get("ApproximateReceiveCount", "1"))

    @property
    def group(self) -> str | None:
        return self.system.get("MessageGroupId")


class QueueApi(Protocol):
    """One connection pool to a queue service, used from one event loop."""

    async def queue_url(self, name: str) -> str:
        """The URL of a queue given by name (a URL is returned as it is); raises ApiError FATAL when there is none."""

    async def attributes(self, url: str) -> dict[str, str]:
        """All queue attributes."""

    async def receive(
        self,
        url: str,
        *,
        count: int,
        wait_s: int,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
    ) -> list[RawMessage]:
        """Up to ten messages with all their attributes; None for the visibility means the queue's own."""

    async def delete(
        self, url: str, receipts: Sequence[str], *, said: Sequence[Said | None] = ()
    ) -> list[ApiError | None]:
        """Delete up to ten by receipt, in one call; what failed is said in its place. Raises ApiError when the whole call did.

        `said` has, for each, what came of an attempt that did not complete; Veil records it, other services ignore it.
        """

    async def extend(
        self, url: str, changes: Sequence[tuple[str, int]], *, said: Sequence[Said | None] = ()
    ) -> list[ApiError | None]:
        """Set the visibility of up to ten, in one call, as `delete` does; `said` of those whose attempt is over."""

    async def send(
        self,
        url: str,
        body: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        delay_s: int | None = None,
    ) -> str:
        """Send one message; returns its id."""

    async def close(self) -> None:
        """Close every connection, cancelling what is under way."""
