"""SMQ's operations on messages."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from veil.core.errors import BatchEmpty, BatchTooLong, BatchTooMany, BodyMissing, VeilError
from veil.core.lease import WAITING
from veil.core.limits import DELAY_LONGEST_S, VISIBILITY_MAX_S, WAIT_LONGEST_S
from veil.core.message import PRIORITY_FIRST, PRIORITY_LAST, MessageAttribute, Sent, StoredMessage
from veil.core.message_rules import Draft, size_bytes
from veil.core.queue import Queue
from veil.core.text import xml_text
from veil.service.messages import delete, rotate_receipt, send
from veil.service.receive import receipt_text, receive
from veil.service.service import Service
from veil.wire.exchange import Response
from veil.wire.large import LARGE_BYTES, answer_bytes, check_room, in_thread
from veil.wire.request_errors import SHOWN_CHARS_MAX
from veil.wire.smq.call import BATCH_MAX, SmqCall, read_number
from veil.wire.smq.codes import ArgumentRefused, NothingToReceive, SmqRefused, XmlMalformed, worded
from veil.wire.smq.xml import answer, children, document, element, local_name, text_of, texts

# ---- message properties
#
# A boolean is a String with a label, since SQS has none. System properties stand among the attributes under their own
# names; those of tracing are the ones that consumers look for there.

_DATA_TYPES: Final = {"STRING": "String", "NUMBER": "Number", "BOOLEAN": "String.BOOLEAN", "BINARY": "Binary"}
_DLQ_SOURCE: Final = "DLQSourceArn"
SYSTEM_NAMES: Final = frozenset(
    ("traceparent", "tracestate", "baggage", "DLQMessageType", _DLQ_SOURCE, "DLQOriginMessageId")
)


def read_properties(given: Mapping[str, Element]) -> dict[str, MessageAttribute] | None:
    """The attributes that the properties of a message stand for; None where there are none."""
    attributes: dict[str, MessageAttribute] = {}
    for holder, entry, types in (
        ("UserProperties", "PropertyValue", _DATA_TYPES),
        ("SystemProperties", "SystemPropertyValue", {"STRING": "String"}),
    ):
        for each in given.get(holder, ()):
            if local_name(each) == entry:
                name, attribute = _read(texts(each), types)
                if holder == "SystemProperties" and name not in SYSTEM_NAMES:
                    raise ArgumentRefused(
                        "SystemProperties", name, f"one of {', '.join(sorted(SYSTEM_NAMES))}"
                    )
                attributes[name] = attribute
    return attributes or None


def _read(given: Mapping[str, str], types: Mapping[str, str]) -> tuple[str, MessageAttribute]:
    name, value, kind = given.get("Name", ""), given.get("Value", ""), given.get("Type", "")
    data_type = types.get(kind)
    if data_type is None:
        raise ArgumentRefused(f"Type of property {name[:100]!r}", kind, " or ".join(types))
    if kind == "BOOLEAN" and value.lower() not in ("true", "false"):
        raise ArgumentRefused(f"Value of property {name[:100]!r}", value, "true or false")
    if kind != "BINARY":
        return name, MessageAttribute(data_type, value)
    try:
        return name, MessageAttribute(data_type, b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        raise ArgumentRefused(f"Value of property {name[:100]!r}", value, "bytes in base64") from None


def print_properties(message: StoredMessage) -> str:
    """The elements of the message's properties; nothing where it has none."""
    if not message.attributes and message.dead_letter_source is None:
        return ""
    user, system = "", ""
    for name, (data_type, value) in (message.attributes or {}).items():
        if name in SYSTEM_NAMES and isinstance(value, str):
            system += _printed_value("SystemPropertyValue", name, value, "STRING")
        else:
            text = b64encode(value).decode("ascii") if isinstance(value, bytes) else value
            user += _printed_value("PropertyValue", name, text, _kind(data_type))
    if message.dead_letter_source is not None and _DLQ_SOURCE not in (message.attributes or {}):
        system += _printed_value("SystemPropertyValue", _DLQ_SOURCE, message.dead_letter_source, "STRING")
    return (f"<UserProperties>{user}</UserProperties>" if user else "") + (
        f"<SystemProperties>{system}</SystemProperties>" if system else ""
    )


def _printed_value(entry: str, name: str, value: str, kind: str) -> str:
    return f"<{entry}>{element('Name', name)}{element('Value', value)}{element('Type', kind)}</{entry}>"


def _kind(data_type: str) -> str:
    if data_type == "String.BOOLEAN":
        return "BOOLEAN"
    return data_type.partition(".")[0].upper()


# ---- messages in and out
#
# The body is a text to both protocols and is stored as it came. (SMQ's SDKs write base64 there, as a habit among themselves.)


def read_draft(message: Element) -> Draft:
    """The draft of a message to send; raises ArgumentRefused, BodyMissing."""
    given = children(message)
    body = text_of(given["MessageBody"]) if "MessageBody" in given else ""
    if not body:
        raise BodyMissing
    draft = Draft(body)
    if len(given) == 1:
        return draft
    if "DelaySeconds" in given:
        draft.delay_s = read_number("DelaySeconds", given["DelaySeconds"].text or "", 0, DELAY_LONGEST_S)
    if "Priority" in given:
        text = given["Priority"].text or ""
        draft.priority = read_number("Priority", text, PRIORITY_FIRST, PRIORITY_LAST)
    if "MessageGroupId" in given:
        draft.group = given["MessageGroupId"].text or None
    draft.attributes = read_properties(given)
    return draft


def print_received(service: Service, queue: Queue, message: StoredMessage, wall_offset_ms: int) -> str:
    """The elements of a received message; deadlines run on engine time, clients on the wall clock's."""
    due_at_ms = message.due_at_ms if message.due_at_ms is not None else service.clock.now_ms()
    return (
        f"<ReceiptHandle>{receipt_text(service, queue, message)}</ReceiptHandle>"
        f"<NextVisibleTime>{due_at_ms + wall_offset_ms}</NextVisibleTime>{print_peeked(message)}"
    )


def print_peeked(message: StoredMessage) -> str:
    """The elements that a message shows without being received."""
    first_ms = message.first_received_wall_ms
    return (
        f"<MessageId>{message.message_id}</MessageId>"
        f"<MessageBodyMD5>{message.body_md5.upper()}</MessageBodyMD5>"
        f"<MessageBody>{xml_text(message.body)}</MessageBody>"
        f"<EnqueueTime>{message.sent_wall_ms}</EnqueueTime>"
        f"<FirstDequeueTime>{message.sent_wall_ms if first_ms is None else first_ms}</FirstDequeueTime>"
        f"<DequeueCount>{message.receive_count}</DequeueCount>"
        f"<Priority>{message.priority}</Priority>"
        f"{element('MessageGroupId', message.group) if message.group is not None else ''}"
        f"{print_properties(message)}"
    )


_COUNT: Final = "numofmessages"


async def send_message(call: SmqCall) -> Response:
    """SendMessage and BatchSendMessage: the root of the document tells which."""
    queue = await call.named_queue()
    root = await call.document()
    name = local_name(root)
    if name == "Messages":
        return await _send_batch(call, queue, [each for each in root if local_name(each) == "Message"])
    if name != "Message":
        raise XmlMalformed("the root element must be Message or Messages")
    draft = read_draft(root)
    (sent,) = await send(call.service, queue, [draft], sender=call.sender, caller=call.caller)
    if isinstance(sent, VeilError):
        raise sent
    return answer(
        201,
        document("Message", _printed_sent(sent, draft) + _receipt_while_it_waits(call, queue, draft, sent)),
    )


async def _send_batch(call: SmqCall, queue: Queue, messages: Sequence[Element]) -> Response:
    _check_batch(len(messages))
    outcomes: list[Draft | VeilError] = []
    for message in messages:
        try:
            outcomes.append(read_draft(message))
        except VeilError as refusal:
            outcomes.append(refusal)
    drafts = [outcome for outcome in outcomes if isinstance(outcome, Draft)]
    total_bytes = sum(size_bytes(draft) for draft in drafts)
    if len(drafts) > 1 and total_bytes > queue.settings.message_bytes_max:
        # All of them together must fit where one must.
        raise BatchTooLong(total_bytes, queue.settings.message_bytes_max)
    answers = iter(
        await send(call.service, queue, drafts, sender=call.sender, caller=call.caller) if drafts else ()
    )
    results = [(outcome, next(answers) if isinstance(outcome, Draft) else outcome) for outcome in outcomes]
    refused = [sent for _, sent in results if isinstance(sent, VeilError)]
    entries = []
    for draft, sent in results:
        if isinstance(sent, VeilError):
            entries.append(_printed_error(sent))
        elif isinstance(draft, Draft):
            # Of a batch that failed in part SDKs read id and digest, and stumble over any other element.
            entries.append(_printed_sent(sent, draft, with_group=not refused))
    status = worded(refused[0]).status if refused else 201
    return answer(status, document("Messages", _each("Message", entries)))


def _printed_sent(sent: Sent, draft: Draft, *, with_group: bool = True) -> str:
    group = element("MessageGroupId", draft.group) if with_group and draft.group is not None else ""
    return f"<MessageId>{sent.message_id}</MessageId><MessageBodyMD5>{draft.body_md5.upper()}</MessageBodyMD5>{group}"


def _receipt_while_it_waits(call: SmqCall, queue: Queue, draft: Draft, sent: Sent) -> str:
    delay_s = queue.settings.delay_s if draft.delay_s is None else draft.delay_s
    if not delay_s:
        return ""
    return element("ReceiptHandle", call.service.store.receipts.write(queue.id, sent.seq, WAITING))


async def receive_message(call: SmqCall) -> Response:
    """ReceiveMessage and BatchReceiveMessage; the answer knows how to give the messages back if it cannot be delivered."""
    queue = await call.named_queue()
    parameters = call.route.parameters
    count, is_batch = _count(call)
    wait_text = parameters.get("waitseconds")
    wait_s = None if wait_text is None else read_number("waitseconds", wait_text, 0, WAIT_LONGEST_S)
    service, caller = call.service, call.caller
    messages = await receive(service, queue, count=count, visibility_s=None, wait_s=wait_s, caller=caller)
    if not messages:
        raise NothingToReceive
    call.received(queue, messages, caller)
    wall_offset_ms = service.clock.wall_ms() - service.clock.now_ms()
    return await _printed(
        call, messages, is_batch, lambda message: print_received(service, queue, message, wall_offset_ms)
    )


async def peek_message(call: SmqCall) -> Response:
    """PeekMessage and BatchPeekMessage: what a receive would give, untouched."""
    queue = await call.named_queue()
    count, is_batch = _count(call)
    messages = await call.service.store.peek_next(queue, limit=count)
    if not messages:
        raise NothingToReceive
    return await _printed(call, messages, is_batch, print_peeked)


async def delete_message(call: SmqCall) -> Response:
    queue = await call.named_queue()
    (refusal,) = await delete(call.service, queue, [_handle(call)], strict=True, caller=call.caller)
    if refusal is not None:
        raise refusal
    return answer(204)


async def delete_messages(call: SmqCall) -> Response:
    """BatchDeleteMessage: 204 if all were deleted, else what became of those that were not."""
    queue = await call.named_queue()
    root = await call.document()
    if local_name(root) != "ReceiptHandles":
        raise XmlMalformed("the root element must be ReceiptHandles")
    handles = [each.text or "" for each in root if local_name(each) == "ReceiptHandle"]
    _check_batch(len(handles))
    answers = await delete(call.service, queue, handles, strict=True, caller=call.caller)
    refused = [
        (handle, refusal) for handle, refusal in zip(handles, answers, strict=True) if refusal is not None
    ]
    if not refused:
        return answer(204)
    shown = ((refusal, element("ReceiptHandle", handle[:SHOWN_CHARS_MAX])) for handle, refusal in refused)
    entries = [_printed_error(refusal) + handle for refusal, handle in shown]
    return answer(worded(refused[0][1]).status, document("Errors", _each("Error", entries)))


async def change_visibility(call: SmqCall) -> Response:
    """ChangeMessageVisibility: a new deadline and a new handle; the old one is dead."""
    queue = await call.named_queue()
    handle = _handle(call)
    text = call.route.parameters.get("visibilitytimeout")
    if not text:
        raise SmqRefused("MissingVisibilityTimeout", "VisibilityTimeout is required.")
    # SMQ's own range begins at 1, but its SDK lets 0 pass, which can only mean: now.
    visibility_s = read_number("VisibilityTimeout", text, 0, VISIBILITY_MAX_S)
    receipt, deadline_ms = await rotate_receipt(call.service, queue, handle, visibility_s, caller=call.caller)
    clock = call.service.clock
    next_visible_ms = deadline_ms + clock.wall_ms() - clock.now_ms()
    content = element("ReceiptHandle", receipt) + element("NextVisibleTime", next_visible_ms)
    return answer(200, document("ChangeVisibility", content))


def _count(call: SmqCall) -> tuple[int, bool]:
    text = call.route.parameters.get(_COUNT)
    if text is None:
        return 1, False
    return read_number("numOfMessages", text, 1, BATCH_MAX), True


def _handle(call: SmqCall) -> str:
    handle = call.route.parameters.get("receipthandle")
    if not handle:
        raise SmqRefused("MissingReceiptHandle", "ReceiptHandle is required.")
    return handle


def _check_batch(count: int) -> None:
    if not count:
        raise BatchEmpty
    if count > BATCH_MAX:
        raise BatchTooMany(count, BATCH_MAX)


async def _printed(
    call: SmqCall, messages: list[StoredMessage], is_batch: bool, form: Callable[[StoredMessage], str]
) -> Response:
    size_bytes = answer_bytes(messages)
    check_room(call.request, size_bytes)
    if size_bytes > LARGE_BYTES:
        return await in_thread(_reply, messages, is_batch, form)
    return _reply(messages, is_batch, form)


def _reply(
    messages: Sequence[StoredMessage], is_batch: bool, form: Callable[[StoredMessage], str]
) -> Response:
    printed = [form(message) for message in messages]
    if is_batch:
        return answer(200, document("Messages", _each("Message", printed)))
    return answer(200, document("Message", printed[0]))


def _each(name: str, contents: Sequence[str]) -> str:
    return "".join([f"<{name}>{content}</{name}>" for content in contents])


def _printed_error(refusal: VeilError) -> str:
    said = worded(refusal)
    return f"<ErrorCode>{said.code}</ErrorCode><ErrorMessage>{xml_text(said.message)}</ErrorMessage>"
