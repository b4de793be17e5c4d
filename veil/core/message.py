"""A message: what is sent, what is stored, what is handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from veil.core.errors import PriorityRefused

# ---- priority
#
# The lowest number goes first. A message keeps its priority for life: when it lapses, when it is dead-lettered, when it is
# redriven. FIFO queues have none, since there the order within the group is the promise.

PRIORITY_FIRST: Final = 1
PRIORITY_LAST: Final = 16
PRIORITY_DEFAULT: Final = 8


def check_priority(priority: int) -> None:
    """Raise PriorityRefused unless a message may have that priority."""
    if not PRIORITY_FIRST <= priority <= PRIORITY_LAST:
        raise PriorityRefused(priority)


# ---- what a consumer writes on a message that it gives up
#
# The consumer writes them, the console and the pipeline read them.

PREFIX: Final = "veil."
ERROR_TYPE: Final = "veil.error_type"
REASON: Final = "veil.reason"
SOURCE_QUEUE: Final = "veil.source_queue"
MESSAGE_ID: Final = "veil.message_id"
RECEIVE_COUNT: Final = "veil.receive_count"
HANDLER: Final = "veil.handler"
TRACEBACK: Final = "veil.traceback"
FIRST_RECEIVED_AT: Final = "veil.first_received_at"
LAST_RECEIVED_AT: Final = "veil.last_received_at"
REDRIVEN_FROM: Final = (
    "Veil.RedrivenFrom"  # by the server: the id that the message had among the dead letters
)


if TYPE_CHECKING:
    AttributeValue = str | bytes
else:
    AttributeValue = Any  # msgpack itself tells the two apart; msgspec takes no such union


class MessageAttribute(NamedTuple):
    """One attribute a sender put on a message; text for String and Number, bytes for Binary."""

    data_type: str
    value: AttributeValue


class NewMessage(msgspec.Struct, array_like=True):
    """A message on its way in, already checked against the queue's settings."""

    message_id: str
    body: str
    body_md5: str
    attributes: dict[str, MessageAttribute] | None = None
    trace_header: str | None = None
    sender: str = ""
    delay_s: int | None = None  # None: the queue's own
    group: str | None = None
    deduplication_id: str | None = None
    message_type: str | None = None  # for the journal: the value of an attribute, see service.message_type
    priority: int = PRIORITY_DEFAULT


class Sent(NamedTuple):
    """What became of a sent message: its id and place, the first one's where it was a duplicate."""

    message_id: str
    seq: int
    duplicate: bool = False


class LeaseState(NamedTuple):
    """What a receive, and all that follows it, changes of a message. The order is that of the stores' statements."""

    state: int  # a core.lease.State
    due_at_ms: int | None  # when the delay or the lease ends
    received_at_ms: int | None  # engine time of the latest receive
    delivery: int  # the number of the latest delivery
    holder: int  # the receipt of the open lease, or of the delay (Receipt.holder)
    receive_count: int
    first_received_wall_ms: int | None


class HeldMessage(NamedTuple):
    """A message without its content: what the rules need to know of it, and what the journal tells."""

    seq: int
    message_id: str
    group: str | None
    body_bytes: int
    message_type: str | None
    state: int  # from here on as in LeaseState
    due_at_ms: int | None
    received_at_ms: int | None
    delivery: int
    holder: int
    receive_count: int
    first_received_wall_ms: int | None


class StoredMessage(msgspec.Struct, array_like=True):
    """A message as it stands in a store, its lease included."""

    seq: int
    message_id: str
    body: str
    body_md5: str
    attributes: dict[str, MessageAttribute] | None
    trace_header: str | None
    sender: str
    sent_wall_ms: int
    group: str | None
    deduplication_id: str | None
    dead_letter_source: str | None  # the ARN of the queue it was dead-lettered from
    receive_count: int
    first_received_wall_ms: int | None
    delivery: int
    state: int  # a core.lease.State
    due_at_ms: int | None  # when the delay or the lease ends
    received_at_ms: int | None
    message_type: str | None = None
    body_bytes: int = 0  # in UTF-8
    priority: int = PRIORITY_DEFAULT
    holder: int = 0  # the receipt of the open lease, or of the delay (Receipt.holder)

    @property
    def held_bytes(self) -> int:
        """About what it takes to hold it: its body, its attributes and its trace header."""
        attributes = self.attributes or {}
        return (
            self.body_bytes
            + sum(len(name) + len(each.value) for name, each in attributes.items())
            + len(self.trace_header or "")
        )

    def set_lease(self, lease: LeaseState) -> None:
        """Take in what has become of its lease."""
        (
            self.state,
            self.due_at_ms,
            self.received_at_ms,
            self.delivery,
            self.holder,
            self.receive_count,
            self.first_received_wall_ms,
        ) = lease


TYPE_CHARS_MAX: Final = 256


def message_type(attributes: Mapping[str, MessageAttribute], names: Sequence[str]) -> str | None:
    """The value of the first of the names that the message has as a String attribute, cut to 256 characters."""
    for name in names:
        found = attributes.get(name)
        if found is not None and isinstance(found.value, str) and found.data_type.startswith("String"):
            return found.value[:TYPE_CHARS_MAX]
    return None


class NewContent(NamedTuple):
    """What a redriven message carries in place of what it had."""

    body: str
    body_md5: str
    body_bytes: int
    attributes: dict[str, MessageAttribute] | None
    message_type: str | None


class Caller(NamedTuple):
    """Who asked: kept with what they did, and checked against policies."""

    account: str | None = None  # None: nobody we know
    key_id: str = ""
    user_agent: str = ""
    peer: str = ""

    @property
    def worker(self) -> str:
        """Which worker it is, as Veil's consumer says: its name, host and process. Of any other client its application id, which
        AWS SDKs take from `AWS_SDK_UA_APP_ID`; empty where it has none."""
        parts = dict(part.split("/", 1) for part in self.user_agent.split() if "/" in part)
        if not self.reports_outcomes:
            return parts.get("app", "")
        place = f"{parts['host']}, process {parts['pid']}"
        return f"{parts['worker']} on {place}" if "worker" in parts else place

    @property
    def reports_outcomes(self) -> bool:
        """Whether it reports how its attempts end, as Veil's consumer does, by whose user agent it is known."""
        return (
            self.user_agent.startswith("veil/") and " host/" in self.user_agent and " pid/" in self.user_agent
        )
