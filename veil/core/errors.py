"""What can go wrong with a queue, named after what happened.

    VeilError
    ├── Described: what it is raised with are its annotations, `text` puts them into words
    │   ├── QueueMissing · QueueExists · QueueDeletedRecently · PurgeInProgress
    │   ├── NameRefused · SettingUnknown · SettingNotForQueueType · SettingRefused · EncryptionTwice · TagsRefused
    │   ├── ReceiptInvalid · ReceiptExpired · MessageGone · VisibilityTooLong
    │   ├── MessageRefused · BatchRefused · InFlightLimit
    │   ├── MoveTaskRefused · HoldRefused · RedriveRefused
    │   └── PolicyRefused (the members stand in core/policy.py) · AccessDenied
    └── StoreError

The core knows no AWS codes: `wire/sqs_codes.py` has one table that words every member for SQS clients, and a test walks
this family so that none is missing. The text here is for logs and for people.
"""

from __future__ import annotations

from typing import ClassVar, dataclass_transform


class VeilError(Exception):
    """The root of everything Veil raises on purpose."""


@dataclass_transform(eq_default=False)
class Described(VeilError):
    """An error with facts: a member annotates them, in the order in which it is raised with them."""

    facts: ClassVar[tuple[str, ...]] = ()
    text: ClassVar[str] = ""

    def __init_subclass__(cls, text: str = "") -> None:
        own = (name for name, kind in cls.__annotations__.items() if not kind.startswith("ClassVar"))
        cls.facts = (*cls.facts, *own)
        cls.text = text or cls.text

    def __init__(self, *values: object, **named: object) -> None:
        vars(self).update(zip(self.facts, values, strict=False), **named)
        super().__init__(*vars(self).values())

    def __str__(self) -> str:
        return self.text.format_map({name: getattr(self, name) for name in self.facts})


# ---- queues


class QueueMissing(Described, text="queue {name} does not exist"):
    name: str


class QueueExists(Described, text="queue {name} exists with another value for {setting}"):
    name: str
    setting: str


class QueueDeletedRecently(Described, text="queue {name} was deleted less than 60 seconds ago"):
    name: str


class PurgeInProgress(Described, text="queue {name} was purged less than 60 seconds ago"):
    name: str


class NameRefused(Described, text="queue name {name!r}: expected {expected}"):
    name: str
    expected: str


class SettingUnknown(Described, text="unknown queue setting {setting}"):
    setting: str


class SettingNotForQueueType(Described, text="queue setting {setting} is for FIFO queues only"):
    setting: str


class SettingRefused(Described, text="queue setting {setting}={value}: {expected}"):
    """The value is out of range, or does not fit the other settings."""

    setting: str
    value: object
    expected: str


class EncryptionTwice(SettingRefused):
    """Two kinds of server-side encryption were asked for."""


class TagsRefused(Described, text="{reason}"):
    reason: str


# ---- receipts and leases


class ReceiptInvalid(Described, text="not a receipt of this queue"):
    """The text is not a receipt that this server issued for this queue."""

    receipt: str


class ReceiptExpired(Described, text="the lease of this receipt has ended"):
    """FIFO: the lease ended, and with it the right to delete or extend."""

    receipt: str


class MessageGone(
    Described, text="the message of this receipt does not exist or is not available for a visibility change"
):
    """There is no message behind the receipt any more, or somebody else holds it."""

    receipt: str


class VisibilityTooLong(
    Described, text="a visibility of {visibility_s} s would end more than 12 hours after the receive"
):
    visibility_s: int


# ---- messages


class MessageRefused(Described):
    """A message that cannot be sent; the members say why."""


class BodyMissing(MessageRefused, text="the message has no body"):
    pass


class BodyTooLong(MessageRefused, text="the message has {size_bytes} bytes, at most {max_bytes} are allowed"):
    """Body and attributes together exceed the queue's maximum."""

    size_bytes: int
    max_bytes: int


class CharactersRefused(MessageRefused, text="the body holds a character outside the allowed set"):
    """The set is that of XML 1.0."""


class AttributeRefused(MessageRefused, text="{reason}"):
    attribute: str
    reason: str


class GroupMissing(MessageRefused, text="a message for a FIFO queue needs a group"):
    pass


class DeduplicationMissing(
    MessageRefused, text="a FIFO queue needs a deduplication id, or content-based deduplication"
):
    pass


class NotForQueueType(MessageRefused, text="{parameter}={value} is not valid for a {queue_type} queue"):
    parameter: str
    value: object
    queue_type: str  # FIFO or standard


class IdentifierRefused(
    MessageRefused, text="{parameter} must be 1 to 128 alphanumeric and punctuation characters"
):
    """A group, deduplication or attempt id with bad characters or length."""

    parameter: str
    value: str


class PriorityRefused(MessageRefused, text="Priority={priority}: expected 1 (first) to 16 (last)"):
    priority: int


# ---- batches


class BatchRefused(Described):
    """A batch that cannot be looked at entry by entry; the members say why."""


class BatchEmpty(BatchRefused, text="the batch has no entries"):
    pass


class BatchTooMany(BatchRefused, text="the batch has {count} entries, at most {count_max} are allowed"):
    count: int
    count_max: int


class BatchIdRefused(BatchRefused, text="batch entry id {entry_id!r}: expected 1 to 80 of A-Z a-z 0-9 _ -"):
    entry_id: str


class BatchIdRepeated(BatchRefused, text="batch entry id {entry_id!r} is repeated"):
    entry_id: str


class BatchTooLong(BatchRefused, text="the batch has {size_bytes} bytes, at most {max_bytes} are allowed"):
    size_bytes: int
    max_bytes: int


class InFlightLimit(Described, text="{count_max} messages of the queue are in flight"):
    """So many that no more are handed out."""

    count_max: int


# ---- move tasks


class MoveTaskRefused(Described):
    """A move task cannot be started, found or cancelled; the members say why."""


class ResourceMissing(MoveTaskRefused, text="{parameter} {arn} does not exist"):
    parameter: str
    arn: str


class ArnRefused(MoveTaskRefused, text="{parameter} {arn!r} is not a queue ARN"):
    parameter: str
    arn: str


class NotDeadLetters(MoveTaskRefused, text="queue {name} is not the dead-letter queue of any queue"):
    name: str


class MoveToItself(
    MoveTaskRefused, text="queue {name} is both the source and the destination of the move task"
):
    """The task would find what it moved, and never end."""

    name: str


class MoveTaskRunning(MoveTaskRefused, text="a move task is running on queue {name}"):
    name: str


class MoveTaskMissing(MoveTaskRefused, text="move task does not exist"):
    pass


class MoveTaskHandleInvalid(MoveTaskRefused, text="not a move task handle"):
    pass


class MoveTaskNotRunning(MoveTaskRefused, text="the move task is {status}"):
    status: str


# ---- holds


class HoldRefused(Described):
    """A hold or its stream cannot be used as asked; the members say why."""


class HoldClosed(
    HoldRefused, text="batch {batch} of stream {stream} is closed: all up to {closed} were acknowledged"
):
    stream: str
    batch: int
    closed: int


class StreamTaken(
    HoldRefused, text="stream {stream} is not owned by {owner} any more: another owner has opened it since"
):
    stream: str
    owner: str


class HoldNameRefused(HoldRefused, text="{parameter}={value!r}: expected {expected}"):
    parameter: str
    value: object
    expected: str


# ---- chosen redrives


class RedriveRefused(Described):
    """A message cannot leave the dead letters as asked; the members say why."""


class MessageMissing(RedriveRefused, text="there is no message {message_id} at {seq}"):
    message_id: str
    seq: int


class MessageNotVisible(RedriveRefused, text="message {message_id} is {state}"):
    """Only what is visible can be moved."""

    message_id: str
    state: str


class SourceUnknown(
    RedriveRefused, text="message {message_id} came from no other queue: a destination is needed"
):
    message_id: str


class DestinationRefused(RedriveRefused, text="destination {name}: expected a {queue_type} queue"):
    """FIFO messages go to FIFO queues, standard ones to standard queues."""

    name: str
    queue_type: str


# ---- access


class AccessDenied(Described, text="access to {action} on {resource} is denied"):
    action: str
    resource: str


class PolicyRefused(Described):
    """A policy that cannot be stored or changed as asked."""


# ---- stores


class StoreError(VeilError):
    """The store could not do its work: the outcome is unknown to the caller, who may retry."""


class StoreFull(StoreError):
    """No room for more messages; receives and deletes go on."""


class StoreFailed(StoreError):
    """The store can no longer be trusted (a failed fsync): the server stops."""


class StoreBusy(StoreError):
    """Another process has the data open."""


class StoreDamaged(StoreError):
    """What is on disk is not what was written."""


class StoreTooNew(StoreError):
    """The data was written by a newer Veil."""


class StoreUnavailable(StoreError):
    """The database behind the store cannot be reached at the moment; to retry is safe, and it may be back soon."""
