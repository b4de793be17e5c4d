"""Send, receive, delete, change visibility, one message at a time or in batches; and what a receive shows of each message."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from veil.core import errors, limits
from veil.core.errors import VeilError
from veil.core.message import MessageAttribute, Sent, StoredMessage
from veil.core.message_rules import Draft, attributes_md5, size_bytes
from veil.core.queue import Queue
from veil.core.sequence import sequence_text
from veil.service.messages import delete, extend_lease, send
from veil.service.receive import receipt_text, receive
from veil.service.service import Service
from veil.wire import shapes
from veil.wire.call import BULK_OFFER, Call
from veil.wire.large import LARGE_BYTES, in_thread
from veil.wire.request_errors import FROM_TO, ParameterMissing, Unsupported, check_range, out_of_range
from veil.wire.sqs_codes import Situation, worded

_DELAY_RANGE: Final = "DelaySeconds must be >= {low} and <= {high}."


async def send_message(call: Call, given: shapes.SendMessageInput) -> shapes.SendMessageOutput:
    queue = await call.queue(given.QueueUrl)
    draft = read_draft(given, call.request.headers.get("x-amzn-trace-id"))
    (sent,) = await send(
        call.service, queue, (draft,), sender=call.sender, retry_key=call.retry_key(), caller=call.caller
    )
    if isinstance(sent, VeilError):
        raise sent
    return shapes.SendMessageOutput(*_sent_facts(queue, given, draft, sent))


def _sent_facts(
    queue: Queue, given: shapes.SentContent, draft: Draft, sent: Sent
) -> tuple[str, str, str | None, str | None, str | None]:
    """The fields of shapes.SendMessageOutput."""
    system = given.MessageSystemAttributes
    return (
        sent.message_id,
        draft.body_md5,
        attributes_md5(draft.attributes) if draft.attributes else None,
        attributes_md5(read_attributes(system)) if system else None,
        sequence_text(sent.seq) if queue.settings.fifo else None,
    )


async def receive_message(call: Call, given: shapes.ReceiveMessageInput) -> shapes.ReceiveMessageOutput:
    """ReceiveMessage; the answer knows how to give the messages back if it cannot be delivered."""
    queue = await call.queue(given.QueueUrl)
    call.announce_grace(queue)
    call.headers += BULK_OFFER
    count = given.MaxNumberOfMessages
    if count is None:
        count = 1
    else:
        check_range("MaxNumberOfMessages", count, 1, call.count_max(count))
    if given.WaitTimeSeconds is not None:
        check_range("WaitTimeSeconds", given.WaitTimeSeconds, 0, limits.WAIT_MAX_S, FROM_TO)
    if given.VisibilityTimeout is not None:
        check_range("VisibilityTimeout", given.VisibilityTimeout, 0, limits.VISIBILITY_MAX_S, FROM_TO)
    form = ReceivedForm(given)
    service, caller = call.service, call.caller
    began_ms = service.clock.now_ms()
    messages = await receive(
        service,
        queue,
        count=count,
        visibility_s=given.VisibilityTimeout,
        # A queue may have been made to wait longer than SQS's clients expect.
        wait_s=min(queue.settings.wait_s, limits.WAIT_MAX_S)
        if given.WaitTimeSeconds is None
        else given.WaitTimeSeconds,
        attempt_id=given.ReceiveRequestAttemptId,
        caller=caller,
    )
    if not messages:
        return shapes.ReceiveMessageOutput()
    call.announce_wait(began_ms, messages[0])
    call.received(queue, messages, caller)
    if call.answer_bytes > LARGE_BYTES:
        return shapes.ReceiveMessageOutput(await in_thread(form.messages, service, queue, messages))
    return shapes.ReceiveMessageOutput(form.messages(service, queue, messages))


async def delete_message(call: Call, given: shapes.DeleteMessageInput) -> None:
    queue = await call.queue(given.QueueUrl)
    if not given.ReceiptHandle:
        raise ParameterMissing("ReceiptHandle")
    reported = call.reported(queue)
    (refusal,) = await delete(
        call.service, queue, (given.ReceiptHandle,), caller=call.caller, reported=reported
    )
    if refusal is not None:
        raise refusal


async def change_message_visibility(call: Call, given: shapes.ChangeMessageVisibilityInput) -> None:
    queue = await call.queue(given.QueueUrl)
    call.announce_grace(queue)
    if not given.ReceiptHandle:
        raise ParameterMissing("ReceiptHandle")
    visibility_s = given.VisibilityTimeout
    if visibility_s is None or not 0 <= visibility_s <= limits.VISIBILITY_MAX_S:
        raise _visibility_refusal(visibility_s)
    (refusal,) = await extend_lease(
        call.service,
        queue,
        ((given.ReceiptHandle, visibility_s),),
        caller=call.caller,
        reported=call.reported(queue),
    )
    if refusal is not None:
        raise refusal


def _visibility_refusal(visibility_s: int | None) -> VeilError:
    if visibility_s is None:
        return ParameterMissing("VisibilityTimeout")
    return out_of_range("VisibilityTimeout", visibility_s, 0, limits.VISIBILITY_MAX_S, FROM_TO)


# ---- from the parameters of a send to a draft

TRACE_HEADER = "AWSTraceHeader"


def read_draft(given: shapes.SentContent, http_trace: str | None) -> Draft:
    """The draft, its delay in range; the trace header of the HTTP request counts unless the message brings its own."""
    body = given.MessageBody
    if not body:
        raise errors.BodyMissing
    delay_s = given.DelaySeconds
    if delay_s:
        check_range("DelaySeconds", delay_s, 0, limits.DELAY_MAX_S, _DELAY_RANGE)
    trace = http_trace or None
    if given.MessageSystemAttributes:
        trace = _trace_of(given.MessageSystemAttributes)
    attributes = given.MessageAttributes
    return Draft(
        body,
        read_attributes(attributes) if attributes else None,
        trace,
        delay_s,
        given.MessageGroupId,
        given.MessageDeduplicationId,
    )


def read_attributes(given: shapes.AttributeValues) -> dict[str, MessageAttribute]:
    """Message attributes as a caller wrote them, not yet checked."""
    return {name: _attribute(value) for name, value in given.items()}


def _attribute(value: shapes.AttributeValue) -> MessageAttribute:
    if value.StringListValues or value.BinaryListValues:
        raise Unsupported("Message attribute list values in SendMessage operation are not supported.")
    # A value of the other kind counts as none: the rules then say which kind is expected.
    if value.DataType.startswith("Binary"):
        return MessageAttribute(value.DataType, value.BinaryValue or b"")
    return MessageAttribute(value.DataType, value.StringValue or "")


def _trace_of(attributes: shapes.AttributeValues) -> str:
    for name, value in attributes.items():
        if name != TRACE_HEADER:
            raise errors.AttributeRefused(
                name,
                f"Message system attribute name '{name[:256]}' is invalid. The only one is {TRACE_HEADER}.",
            )
        if value.DataType != "String" or not value.StringValue:
            raise errors.AttributeRefused(
                name, f"Message (system) attribute '{name}' must contain a non-empty value of type 'String'."
            )
    return attributes[TRACE_HEADER].StringValue or ""


# ---- batches

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
# All of a batch, a line each: one match is a third of the work of one for each.
_ENTRY_IDS: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,80}\n)+\Z")

_Entry = TypeVar("_Entry", shapes.SendEntry, shapes.ReceiptEntry, shapes.VisibilityEntry, shapes.RedriveEntry)
_Read = TypeVar("_Read")
_Done = TypeVar("_Done")
_Shown = TypeVar("_Shown", bound=shapes.Shape)


async def in_batch(
    call: Call,
    entries: list[_Entry],
    read: Callable[[_Entry], _Read],
    do: Callable[[list[_Read]], Awaitable[Sequence[_Done | VeilError]]],
    show: Callable[[_Entry, _Read, _Done], _Shown],
) -> tuple[list[_Shown] | None, list[shapes.FailedEntry] | None]:
    """Read each entry, do all together, show what became of each: those that succeeded and those that failed, each alone."""
    outcomes: list[_Read | VeilError] = []
    for entry in entries:
        try:
            outcomes.append(read(entry))
        except VeilError as refusal:
            outcomes.append(refusal)
    answers = iter(await do([each for each in outcomes if not isinstance(each, VeilError)]))
    successful: list[_Shown] = []
    failed: list[shapes.FailedEntry] = []
    for entry, outcome in zip(entries, outcomes, strict=True):
        if isinstance(outcome, VeilError):
            failed.append(_failed(call, entry.Id, outcome))
        elif isinstance(answer := next(answers), VeilError):
            failed.append(_failed(call, entry.Id, answer))
        else:
            successful.append(show(entry, outcome, answer))
    return successful or None, failed or None


async def send_message_batch(
    call: Call, given: shapes.SendMessageBatchInput
) -> shapes.SendMessageBatchOutput:
    queue = await call.queue(given.QueueUrl)
    entries = checked_entries(given.Entries, call.count_max(len(given.Entries or ())))
    trace = call.request.headers.get("x-amzn-trace-id")
    sizes_bytes: list[int] = []

    def read(entry: shapes.SendEntry) -> Draft:
        try:
            draft = read_draft(entry, trace)
            sizes_bytes.append(size_bytes(draft))
        except VeilError:
            sizes_bytes.append(len(entry.MessageBody))
            raise
        return draft

    async def do(drafts: list[Draft]) -> Sequence[Sent | VeilError]:
        if sum(sizes_bytes) > limits.BATCH_BYTES_MAX:
            raise errors.BatchTooLong(sum(sizes_bytes), limits.BATCH_BYTES_MAX)
        return await send(
            call.service, queue, drafts, sender=call.sender, retry_key=call.retry_key(), caller=call.caller
        )

    def show(entry: shapes.SendEntry, draft: Draft, sent: Sent) -> shapes.SentEntry:
        return shapes.SentEntry(entry.Id, *_sent_facts(queue, entry, draft, sent))

    return shapes.SendMessageBatchOutput(*await in_batch(call, entries, read, do, show))


async def delete_message_batch(call: Call, given: shapes.DeleteMessageBatchInput) -> shapes.BatchOutput:
    queue = await call.queue(given.QueueUrl)
    entries = checked_entries(given.Entries, call.count_max(len(given.Entries or ())))
    reported = call.reported(queue, entries)
    handles = [entry.ReceiptHandle for entry in entries]
    answers = await delete(call.service, queue, handles, caller=call.caller, reported=reported)
    return _settled(call, entries, _refused(entries, answers))


async def change_message_visibility_batch(
    call: Call, given: shapes.ChangeMessageVisibilityBatchInput
) -> shapes.BatchOutput:
    queue = await call.queue(given.QueueUrl)
    call.announce_grace(queue)
    entries = checked_entries(given.Entries, call.count_max(len(given.Entries or ())))
    asked: list[shapes.VisibilityEntry] = []
    changes: list[tuple[str, int]] = []
    refusals: dict[str, VeilError] = {}
    for entry in entries:
        visibility_s = entry.VisibilityTimeout
        if visibility_s is None or not 0 <= visibility_s <= limits.VISIBILITY_MAX_S:
            refusals[entry.Id] = _visibility_refusal(visibility_s)
        else:
            asked.append(entry)
            changes.append((entry.ReceiptHandle, visibility_s))
    reported = call.reported(queue, asked)
    answers = await extend_lease(call.service, queue, changes, caller=call.caller, reported=reported)
    return _settled(call, entries, refusals | _refused(asked, answers))


def _refused(
    entries: Sequence[shapes.ReceiptEntry], answers: Sequence[VeilError | None]
) -> dict[str, VeilError]:
    """The refusals among the answers, by the ids of their entries."""
    if answers.count(None) == len(answers):
        return {}
    return {entry.Id: told for entry, told in zip(entries, answers, strict=True) if told is not None}


def _settled(
    call: Call, entries: Sequence[shapes.ReceiptEntry], refusals: dict[str, VeilError]
) -> shapes.BatchOutput:
    done = [shapes.DoneEntry(entry.Id) for entry in entries if entry.Id not in refusals]
    if not refusals:
        return shapes.BatchOutput(done)
    failed = [_failed(call, entry.Id, refusals[entry.Id]) for entry in entries if entry.Id in refusals]
    return shapes.BatchOutput(done or None, failed)


def checked_entries(entries: list[_Entry] | None, count_max: int) -> list[_Entry]:
    """The entries, each with an id of its own; raises a BatchRefused member."""
    if not entries:
        raise errors.BatchEmpty
    if len(entries) > count_max:
        raise errors.BatchTooMany(len(entries), count_max)
    ids = [entry.Id for entry in entries]
    lines = "\n".join(ids) + "\n"
    if lines.count("\n") != len(ids) or not _ENTRY_IDS.match(lines):
        refused = next(entry_id for entry_id in ids if not _ENTRY_ID.match(entry_id))
        raise errors.BatchIdRefused(refused[:1024])
    if len(set(ids)) < len(ids):
        raise errors.BatchIdRepeated(next(each for at, each in enumerate(ids) if each in ids[:at]))
    return entries


def _failed(call: Call, entry_id: str, error: VeilError) -> shapes.FailedEntry:
    # Codes of entries are in the Query spelling, in JSON too.
    code, message = worded(error, Situation(call.action, call.query, entry=True))
    return shapes.FailedEntry(entry_id, code.status < 500, code.query_code, message)


# ---- received messages

_SEQUENCE_NUMBER: Final = "SequenceNumber"  # on FIFO queues alone
SYSTEM_ATTRIBUTES: Final[dict[str, Callable[[StoredMessage], str | None]]] = {
    "SenderId": lambda message: message.sender or None,
    "SentTimestamp": lambda message: str(message.sent_wall_ms),
    "ApproximateReceiveCount": lambda message: str(message.receive_count),
    "ApproximateFirstReceiveTimestamp": lambda message: (
        None if message.first_received_wall_ms is None else str(message.first_received_wall_ms)
    ),
    "AWSTraceHeader": attrgetter("trace_header"),
    "MessageGroupId": attrgetter("group"),
    "MessageDeduplicationId": attrgetter("deduplication_id"),
    _SEQUENCE_NUMBER: lambda message: sequence_text(message.seq),
    "DeadLetterQueueSourceArn": attrgetter("dead_letter_source"),
}
_EVERY: Final = tuple(SYSTEM_ATTRIBUTES)


class ReceivedForm:
    """The form that one receive asked for, applied to each of its messages."""

    __slots__ = ("_all", "_names", "_prefixes", "_system")

    def __init__(self, given: shapes.ReceiveMessageInput) -> None:
        self._system = _system_names(given)
        self._names, self._prefixes = _attribute_filter(given.MessageAttributeNames)
        self._all = "" in self._prefixes

    def messages(
        self, service: Service, queue: Queue, messages: list[StoredMessage]
    ) -> list[shapes.ReceivedMessage]:
        """The messages as they are answered; many of them are work for a thread."""
        return [self.message(service, queue, message) for message in messages]

    def message(self, service: Service, queue: Queue, message: StoredMessage) -> shapes.ReceivedMessage:
        shown = shapes.ReceivedMessage(
            message.message_id, receipt_text(service, queue, message), message.body_md5, message.body
        )
        if self._system:
            shown.Attributes = system_attributes(message, queue.settings.fifo, self._system) or None
        if message.attributes and (self._names or self._prefixes):
            chosen = self._chosen(message.attributes)
            if chosen:
                shown.MessageAttributes = attribute_values(chosen)
                # Over what is returned, not what is stored: SDKs compare it with what they got.
                shown.MD5OfMessageAttributes = attributes_md5(chosen)
        return shown

    def _chosen(self, attributes: dict[str, MessageAttribute]) -> dict[str, MessageAttribute]:
        if self._all:
            return attributes
        return {
            name: value
            for name, value in attributes.items()
            if name in self._names or (self._prefixes and self._is_wanted(name))
        }

    def _is_wanted(self, name: str) -> bool:
        # The beginnings of the name are looked up, not the prefixes tried: a client may send thousands of them.
        return any(name[:end] in self._prefixes for end in range(1, len(name) + 1))


def system_attributes(message: StoredMessage, fifo: bool, names: tuple[str, ...] = _EVERY) -> dict[str, str]:
    """Those of the system attributes that the message has."""
    found: dict[str, str] = {}
    for name in names:
        value = SYSTEM_ATTRIBUTES[name](message) if fifo or name != _SEQUENCE_NUMBER else None
        if value is not None:
            found[name] = value
    return found


def in_columns(messages: Sequence[StoredMessage], fifo: bool) -> shapes.MessageColumns:
    """The messages for a reader of thousands, with everything but receipts and digests: a hold needs neither."""
    # Column by column and not through SYSTEM_ATTRIBUTES: 0.21 µs a message instead of 0.34.
    system: dict[str, list[str | None]] = {
        "SenderId": [each.sender or None for each in messages],
        "SentTimestamp": _texts([each.sent_wall_ms for each in messages]),
        "ApproximateReceiveCount": _texts([each.receive_count for each in messages]),
        "ApproximateFirstReceiveTimestamp": _texts([each.first_received_wall_ms for each in messages]),
        "AWSTraceHeader": [each.trace_header for each in messages],
        "MessageGroupId": [each.group for each in messages],
        "MessageDeduplicationId": [each.deduplication_id for each in messages],
    }
    if fifo:
        system[_SEQUENCE_NUMBER] = [sequence_text(each.seq) for each in messages]
    system["DeadLetterQueueSourceArn"] = [each.dead_letter_source for each in messages]
    shown = shapes.MessageColumns(
        [message.message_id for message in messages],
        [message.body for message in messages],
        {name: values for name, values in system.items() if values.count(None) < len(values)},
    )
    attributes = [message.attributes for message in messages]
    if any(attributes):
        shown.MessageAttributes = [attribute_values(each) if each else None for each in attributes]
    return shown


def _texts(numbers: Sequence[int | None]) -> list[str | None]:
    # What is received together was mostly sent and received at the same few instants: each is written once.
    known = {number: None if number is None else str(number) for number in set(numbers)}
    return [known[number] for number in numbers]


def attribute_values(attributes: dict[str, MessageAttribute]) -> shapes.AttributeValues:
    return {
        name: shapes.AttributeValue(data_type, BinaryValue=value)
        if isinstance(value, bytes)
        else shapes.AttributeValue(data_type, value)
        for name, (data_type, value) in attributes.items()
    }


def _system_names(given: shapes.ReceiveMessageInput) -> tuple[str, ...]:
    # The old parameter and the new one are united. Unknown names have no value, so they are passed over.
    names = (given.AttributeNames or []) + (given.MessageSystemAttributeNames or [])
    if not names:
        return ()
    if "All" in names:
        return _EVERY
    return tuple(name for name in _EVERY if name in names)


def _attribute_filter(names: list[str] | None) -> tuple[frozenset[str], frozenset[str]]:
    if not names:
        return frozenset(), frozenset()
    exact: set[str] = set()
    prefixes: set[str] = set()
    for name in names:
        if name in ("All", "*"):
            prefixes.add("")
        elif name.endswith(".*"):
            prefixes.add(name[:-2])
        else:
            exact.add(name)
    return frozenset(exact), frozenset(prefixes)
