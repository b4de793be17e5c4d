"""What can go wrong with a queue, named after what happened.

    VeilError
    ├── QueueMissing · QueueExists · QueueDeletedRecently · PurgeInProgress
    ├── NameRefused · SettingUnknown · SettingNotForQueueType · SettingRefused · TagsRefused
    ├── ReceiptInvalid · ReceiptExpired · MessageGone · VisibilityTooLong
    ├── MessageRefused
    │   ├── BodyMissing · BodyTooLong · CharactersRefused · AttributeRefused
    │   ├── GroupMissing · DeduplicationMissing · NotForQueueType · IdentifierRefused · PriorityRefused
    ├── BatchRefused
    │   ├── BatchEmpty · BatchTooMany · BatchIdRefused · BatchIdRepeated · BatchTooLong
    ├── InFlightLimit
    ├── MoveTaskRefused
    │   ├── ResourceMissing · NotDeadLetters · MoveToItself · MoveTaskRunning · MoveTaskMissing
    │   ├── MoveTaskHandleInvalid · MoveTaskNotRunning
    ├── HoldRefused
    │   ├── HoldClosed · StreamTaken · HoldNameRefused
    ├── RedriveRefused
    │   ├── MessageMissing · MessageNotVisible · SourceUnknown · DestinationRefused
    ├── PolicyRefused (the members stand in core/policy.py)
    ├── AccessDenied
    └── StoreError
        ├── StoreFull · StoreFailed · StoreBusy · StoreDamaged · StoreTooNew · StoreUnavailable

The core knows no AWS codes: `wire/sqs_codes.py` has one table that words every member for SQS clients, and a test walks
this family so that none is missing. The text here is for logs and for people.
"""

from __future__ import annotations


class VeilError(Exception):
    """The root of everything Veil raises on purpose."""


# ---- queues


class QueueMissing(VeilError):
    """No queue of that name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name} does not exist")
        self.name = name


class QueueExists(VeilError):
    """A queue of that name exists and differs in a setting that was given."""

    def __init__(self, name: str, setting: str) -> None:
        super().__init__(f"queue {name} exists with another value for {setting}")
        self.name, self.setting = name, setting


class QueueDeletedRecently(VeilError):
    """The name was freed so recently that it may not be used again yet."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name} was deleted less than 60 seconds ago")
        self.name = name


class PurgeInProgress(VeilError):
    """The queue was purged so recently that it may not be purged again yet."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name} was purged less than 60 seconds ago")
        self.name = name


class NameRefused(VeilError):
    """The text cannot name a queue."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(f"queue name {name!r}: expected {expected}")
        self.name, self.expected = name, expected


class SettingUnknown(VeilError):
    """No queue setting has that name."""

    def __init__(self, setting: str) -> None:
        super().__init__(f"unknown queue setting {setting}")
        self.setting = setting


class SettingNotForQueueType(VeilError):
    """The setting belongs to FIFO queues and this one is not."""

    def __init__(self, setting: str) -> None:
        super().__init__(f"queue setting {setting} is for FIFO queues only")
        self.setting = setting


class SettingRefused(VeilError):
    """The value of a queue setting is out of range, or does not fit the others."""

    def __init__(self, setting: str, value: object, expected: str) -> None:
        super().__init__(f"queue setting {setting}={value}: {expected}")
        self.setting, self.value, self.expected = setting, value, expected


class TagsRefused(VeilError):
    """Too many tags, or a tag that is too long."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# ---- receipts and leases


class ReceiptInvalid(VeilError):
    """The text is not a receipt that this server issued for this queue."""

    def __init__(self, text: str) -> None:
        super().__init__("not a receipt of this queue")
        self.text = text


class ReceiptExpired(VeilError):
    """FIFO: the lease ended, and with it the right to delete or extend."""

    def __init__(self, text: str) -> None:
        super().__init__("the lease of this receipt has ended")
        self.text = text


class MessageGone(VeilError):
    """There is no message behind the receipt any more, or somebody else holds it, so its visibility cannot change."""

    def __init__(self, text: str) -> None:
        super().__init__(
            "the message of this receipt does not exist or is not available for a visibility change"
        )
        self.text = text


class VisibilityTooLong(VeilError):
    """The new deadline would lie more than twelve hours after the receive."""

    def __init__(self, visibility_s: int) -> None:
        super().__init__(f"a visibility of {visibility_s} s would end more than 12 hours after the receive")
        self.visibility_s = visibility_s


# ---- messages


class MessageRefused(VeilError):
    """A message that cannot be sent; the members say why."""


class BodyMissing(MessageRefused):
    """The body is absent or empty."""

    def __init__(self) -> None:
        super().__init__("the message has no body")


class BodyTooLong(MessageRefused):
    """Body and attributes together exceed the queue's maximum."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"the message has {size_bytes} bytes, at most {max_bytes} are allowed")
        self.size_bytes, self.max_bytes = size_bytes, max_bytes


class CharactersRefused(MessageRefused):
    """The body holds a character outside XML 1.0's set."""

    def __init__(self) -> None:
        super().__init__("the body holds a character outside the allowed set")


class AttributeRefused(MessageRefused):
    """A message attribute has a bad name, type or value."""

    def __init__(self, attribute: str, reason: str) -> None:
        super().__init__(reason)
        self.attribute, self.reason = attribute, reason


class GroupMissing(MessageRefused):
    """FIFO: every message needs a group."""

    def __init__(self) -> None:
        super().__init__("a message for a FIFO queue needs a group")


class DeduplicationMissing(MessageRefused):
    """FIFO: neither a deduplication id nor content-based deduplication."""

    def __init__(self) -> None:
        super().__init__("a FIFO queue needs a deduplication id, or content-based deduplication")


class NotForQueueType(MessageRefused):
    """The parameter makes no sense on this type of queue."""

    def __init__(self, parameter: str, value: object, fifo: bool) -> None:
        super().__init__(f"{parameter}={value} is not valid for a {'FIFO' if fifo else 'standard'} queue")
        self.parameter, self.value, self.fifo = parameter, value, fifo


class IdentifierRefused(MessageRefused):
    """A group, deduplication or attempt id with bad characters or length."""

    def __init__(self, parameter: str, value: str) -> None:
        super().__init__(f"{parameter} must be 1 to 128 alphanumeric and punctuation characters")
        self.parameter, self.value = parameter, value


class PriorityRefused(MessageRefused):
    """A priority that no message may have."""

    def __init__(self, priority: int) -> None:
        super().__init__(f"Priority={priority}: expected 1 (first) to 16 (last)")
        self.priority = priority


# ---- batches


class BatchRefused(VeilError):
    """A batch that cannot be looked at entry by entry; the members say why."""


class BatchEmpty(BatchRefused):
    """No entries."""

    def __init__(self) -> None:
        super().__init__("the batch has no entries")


class BatchTooMany(BatchRefused):
    """More entries than one call may bring."""

    def __init__(self, count: int, count_max: int) -> None:
        super().__init__(f"the batch has {count} entries, at most {count_max} are allowed")
        self.count, self.count_max = count, count_max


class BatchIdRefused(BatchRefused):
    """An entry's id has bad characters or length."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"batch entry id {entry_id!r}: expected 1 to 80 of A-Z a-z 0-9 _ -")
        self.entry_id = entry_id


class BatchIdRepeated(BatchRefused):
    """Two entries carry the same id."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"batch entry id {entry_id!r} is repeated")
        self.entry_id = entry_id


class BatchTooLong(BatchRefused):
    """All entries together exceed the limit of one call."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"the batch has {size_bytes} bytes, at most {max_bytes} are allowed")
        self.size_bytes, self.max_bytes = size_bytes, max_bytes


class InFlightLimit(VeilError):
    """So many messages of the queue are in flight that no more are handed out."""

    def __init__(self, count_max: int) -> None:
        super().__init__(f"{count_max} messages of the queue are in flight")
        self.count_max = count_max


# ---- move tasks


class MoveTaskRefused(VeilError):
    """A move task cannot be started, found or cancelled; the members say why."""


class ResourceMissing(MoveTaskRefused):
    """The queue named by an ARN does not exist."""

    def __init__(self, parameter: str, arn: str) -> None:
        super().__init__(f"{parameter} {arn} does not exist")
        self.parameter, self.arn = parameter, arn


class ArnRefused(MoveTaskRefused):
    """The text is not the ARN of a queue."""

    def __init__(self, parameter: str, arn: str) -> None:
        super().__init__(f"{parameter} {arn!r} is not a queue ARN")
        self.parameter, self.arn = parameter, arn


class NotDeadLetters(MoveTaskRefused):
    """The source is no queue's dead-letter queue."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name} is not the dead-letter queue of any queue")
        self.name = name


class MoveToItself(MoveTaskRefused):
    """Source and destination are one queue: the task would find what it moved, and never end."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name} is both the source and the destination of the move task")
        self.name = name


class MoveTaskRunning(MoveTaskRefused):
    """One task at a time for each source."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a move task is running on queue {name}")
        self.name = name


class MoveTaskMissing(MoveTaskRefused):
    """No task of that handle exists."""

    def __init__(self) -> None:
        super().__init__("move task does not exist")


class MoveTaskHandleInvalid(MoveTaskRefused):
    """The text is not a task handle."""

    def __init__(self) -> None:
        super().__init__("not a move task handle")


class MoveTaskNotRunning(MoveTaskRefused):
    """Only a running task can be cancelled."""

    def __init__(self, status: str) -> None:
        super().__init__(f"the move task is {status}")
        self.status = status


# ---- holds


class HoldRefused(VeilError):
    """A hold or its stream cannot be used as asked; the members say why."""


class HoldClosed(HoldRefused):
    """The batch was acknowledged: its names give nothing any more."""

    def __init__(self, stream: str, batch: int, closed: int) -> None:
        super().__init__(f"batch {batch} of stream {stream} is closed: all up to {closed} were acknowledged")
        self.stream, self.batch, self.closed = stream, batch, closed


class StreamTaken(HoldRefused):
    """The stream has another owner by now."""

    def __init__(self, stream: str, owner: str) -> None:
        super().__init__(
            f"stream {stream} is not owned by {owner} any more: somebody else has opened it since"
        )
        self.stream, self.owner = stream, owner


class HoldNameRefused(HoldRefused):
    """The value cannot be part of a hold's name."""

    def __init__(self, parameter: str, value: object, expected: str) -> None:
        super().__init__(f"{parameter}={value!r}: expected {expected}")
        self.parameter, self.value, self.expected = parameter, value, expected


# ---- chosen redrives


class RedriveRefused(VeilError):
    """A message cannot leave the dead letters as asked; the members say why."""


class MessageMissing(RedriveRefused):
    """The queue has no such message, or not any more."""

    def __init__(self, message_id: str, seq: int) -> None:
        super().__init__(f"there is no message {message_id} at {seq}")
        self.message_id, self.seq = message_id, seq


class MessageNotVisible(RedriveRefused):
    """The message is in flight or delayed: only what is visible can be moved."""

    def __init__(self, message_id: str, state: str) -> None:
        super().__init__(f"message {message_id} is {state}")
        self.message_id, self.state = message_id, state


class SourceUnknown(RedriveRefused):
    """The message was not dead-lettered, so without a destination there is nowhere to send it back to."""

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} came from no other queue: a destination is needed")
        self.message_id = message_id


class DestinationRefused(RedriveRefused):
    """FIFO messages go to FIFO queues, standard ones to standard queues."""

    def __init__(self, name: str, fifo: bool) -> None:
        super().__init__(f"destination {name}: expected a {'FIFO' if fifo else 'standard'} queue")
        self.name, self.fifo = name, fifo


# ---- access


class AccessDenied(VeilError):
    """The caller may not do that here."""

    def __init__(self, action: str, resource: str) -> None:
        super().__init__(f"access to {action} on {resource} is denied")
        self.action, self.resource = action, resource


class PolicyRefused(VeilError):
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
