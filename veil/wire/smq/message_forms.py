"""Messages as SMQ writes them: drafts on the way in, received and peeked messages on the way out.

The body is a text to both protocols and is stored as it came. (SMQ's SDKs write base64 there, as a habit among themselves.)
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from veil.core.errors import BodyMissing
from veil.core.limits import DELAY_LONGEST_S
from veil.core.message import StoredMessage
from veil.core.message_rules import Draft
from veil.core.priority import PRIORITY_FIRST, PRIORITY_LAST
from veil.core.queue import Queue
from veil.service.receive import receipt_text
from veil.service.service import Service
from veil.wire.smq.numbers import read_number
from veil.wire.smq.properties import print_properties, read_properties
from veil.wire.smq.xml_in import children
from veil.wire.smq.xml_out import element, escaped


def read_draft(message: Element) -> Draft:
    """The draft of a message to send; raises ArgumentRefused, BodyMissing."""
    given = children(message)
    body = given.get("MessageBody")
    if body is None or not body.text:
        raise BodyMissing
    draft = Draft(body.text)
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
        f"<MessageBody>{escaped(message.body)}</MessageBody>"
        f"<EnqueueTime>{message.sent_wall_ms}</EnqueueTime>"
        f"<FirstDequeueTime>{message.sent_wall_ms if first_ms is None else first_ms}</FirstDequeueTime>"
        f"<DequeueCount>{message.receive_count}</DequeueCount>"
        f"<Priority>{message.priority}</Priority>"
        f"{element('MessageGroupId', message.group) if message.group is not None else ''}"
        f"{print_properties(message)}"
    )
