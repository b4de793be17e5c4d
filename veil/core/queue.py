"""A queue: its key, its settings, and what the settings may be; and the redrives that send its dead letters back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from veil.core import limits
from veil.core.errors import ArnRefused, NameRefused, SettingRefused, TagsRefused
from veil.core.limits import TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX
from veil.core.message import MessageAttribute

# ---- tags


def check_tag_keys(keys: Iterable[str]) -> None:
    """Raise TagsRefused for a key that no tag can have."""
    for key in keys:
        if not 1 <= len(key) <= TAG_KEY_MAX:
            raise TagsRefused(f"tag key {key[: TAG_KEY_MAX + 1]!r}: expected 1 to {TAG_KEY_MAX} characters")


def check_tags(name: str, existing: Mapping[str, str], added: Mapping[str, str]) -> None:
    """Raise TagsRefused unless the queue of that name may carry both together; an empty value is a value."""
    check_tag_keys(added)
    for key, value in added.items():
        if len(value) > TAG_VALUE_MAX:
            raise TagsRefused(f"the value of tag {key!r}: expected at most {TAG_VALUE_MAX} characters")
    if len(existing.keys() | added.keys()) > TAGS_MAX:
        raise TagsRefused(f"Too many tags added for queue {name}.")


_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo\Z")
NAME_EXPECTED = (
    "1 to 80 alphanumeric characters, hyphens or underscores, with .fifo at the end for a FIFO queue"
)

DeduplicationScope = Literal["queue", "messageGroup"]
ThroughputLimit = Literal["perQueue", "perMessageGroupId"]
RedrivePermission = Literal["allowAll", "denyAll", "byQueue"]


class QueueKey(NamedTuple):
    """What tells one queue from every other: region, account and name."""

    region: str
    account: str
    name: str

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"


def parse_arn(text: str, parameter: str = "arn") -> QueueKey:
    """The key that an ARN names; raises ArnRefused for anything else."""
    parts = text.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not all(parts[1:]):
        raise ArnRefused(parameter, text)
    return QueueKey(parts[3], parts[4], parts[5])


def check_name(name: str, fifo: bool) -> None:
    """Raise NameRefused unless the text can name a queue of that type."""
    if not (_FIFO_NAME if fifo else _NAME).match(name):
        raise NameRefused(name, NAME_EXPECTED)


class RedrivePolicy(NamedTuple):
    """Where a message goes that was received too often."""

    dead_letters: QueueKey
    receives_max: int


class RedriveAllow(NamedTuple):
    """Which queues may name this one as their dead letters."""

    permission: RedrivePermission
    sources: tuple[QueueKey, ...] = ()

    def permits(self, source: QueueKey) -> bool:
        """Whether the queue may send its dead letters here."""
        return self.permission == "allowAll" or (self.permission == "byQueue" and source in self.sources)


FIFO_ONLY: Final = ("fifo", "content_deduplication", "deduplication_scope", "throughput_limit")

# What a veil.toml calls the settings of a queue, as `veil serve` reads it and the console writes it; lengths end in _s.
TOML_NAMES: Final = {
    "visibility_timeout": "visibility_s",
    "retention": "retention_s",
    "delay": "delay_s",
    "receive_wait": "wait_s",
    "max_message_bytes": "message_bytes_max",
    "fifo": "fifo",
    "content_deduplication": "content_deduplication",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Every setting of a queue, already valid: constructing one checks the ranges and how they fit together."""

    visibility_s: int = limits.VISIBILITY_DEFAULT_S
    delay_s: int = 0
    message_bytes_max: int = limits.BODY_BYTES_MAX
    retention_s: int = limits.RETENTION_DEFAULT_S
    wait_s: int = 0
    fifo: bool = False
    content_deduplication: bool = False
    deduplication_scope: DeduplicationScope = "queue"
    throughput_limit: ThroughputLimit = "perQueue"
    redrive: RedrivePolicy | None = None
    redrive_allow: RedriveAllow | None = None
    policy: str | None = None
    managed_sse: bool = True
    kms_key: str | None = None
    kms_reuse_s: int = 300
    logging: bool = False  # kept for clients of SMQ; nothing comes of it
    # A receive gets nothing; set by pause and resume alone, no attribute of SQS's says it.
    paused: bool = False

    def __post_init__(self) -> None:
        _check_range("visibility_s", self.visibility_s, 0, limits.VISIBILITY_MAX_S)
        _check_range("delay_s", self.delay_s, 0, limits.DELAY_LONGEST_S)
        _check_range(
            "message_bytes_max", self.message_bytes_max, limits.MESSAGE_SIZE_MIN, limits.BODY_BYTES_MAX
        )
        _check_range("retention_s", self.retention_s, limits.RETENTION_MIN_S, limits.RETENTION_MAX_S)
        _check_range("wait_s", self.wait_s, 0, limits.WAIT_LONGEST_S)
        _check_range("kms_reuse_s", self.kms_reuse_s, 60, 86_400)
        if self.redrive is not None:
            _check_range("redrive", self.redrive.receives_max, 1, limits.RECEIVES_MAX_MAX)
        if self.redrive_allow is not None and len(self.redrive_allow.sources) > limits.ALLOWED_SOURCES_MAX:
            raise SettingRefused("redrive_allow", len(self.redrive_allow.sources), "at most 10 source queues")
        if self.throughput_limit == "perMessageGroupId" and self.deduplication_scope != "messageGroup":
            raise SettingRefused(
                "throughput_limit",
                self.throughput_limit,
                "must be perQueue unless the deduplication scope is messageGroup",
            )

    @property
    def queue_type(self) -> str:
        return "FIFO" if self.fifo else "standard"


def _check_range(setting: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SettingRefused(setting, value, f"must be between {low} and {high}")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it stands: what stores keep and hand out. The id is never used again, the key may be."""

    id: int
    key: QueueKey
    settings: QueueSettings
    tags: Mapping[str, str] = field(default_factory=dict)
    created_wall_ms: int = 0
    modified_wall_ms: int = 0

    @property
    def name(self) -> str:
        return self.key.name


class QueueCounts(NamedTuple):
    """How many messages are where; the three do not overlap."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0


# ---- redrives: a move task, which empties a dead-letter queue in the background, and messages that were chosen one by one

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


class ContentChange(NamedTuple):
    """What a redriven message carries in place of what it had; None leaves its body or attributes as they are."""

    body: str | None = None
    attributes: dict[str, MessageAttribute] | None = None
    type_attributes: Sequence[str] = ()  # by which its type is known
    is_marked: bool = False  # with the id that it had


class Chosen(NamedTuple):
    """A message to be redriven: to the destination, or to where it was dead-lettered from."""

    seq: int
    message_id: str
    destination: QueueKey | None = None
    change: ContentChange | None = None


class ScanStep(NamedTuple):
    """What a look at further messages of a scanned source found."""

    chosen: Sequence[Chosen]
    after_seq: int  # the last message looked at
    looked: int
    is_last: bool
