"""From the parameters of a send to the draft of a message."""

from __future__ import annotations

from veil.core.errors import AttributeRefused, BodyMissing
from veil.core.limits import DELAY_MAX_S
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft, attributes_md5
from veil.wire.request_errors import Unsupported, check_range
from veil.wire.shapes import AttributeValue, AttributeValues, SendEntry, SendMessageInput

TRACE_HEADER = "AWSTraceHeader"


def read_draft(given: SendMessageInput | SendEntry, http_trace: str | None) -> Draft:
    """The draft, its delay in range; the trace header of the HTTP request counts unless the message brings its own."""
    body = given.MessageBody
    if not body:
        raise BodyMissing
    delay_s = given.DelaySeconds
    if delay_s:
        check_range(
            "DelaySeconds", delay_s, 0, DELAY_MAX_S, f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}."
        )
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


def read_attributes(given: AttributeValues) -> dict[str, MessageAttribute]:
    """Message attributes as a caller wrote them, not yet checked."""
    return {name: _attribute(value) for name, value in given.items()}


def system_md5(given: SendMessageInput | SendEntry) -> str:
    """The digest of the system attributes as they were sent."""
    return attributes_md5(read_attributes(given.MessageSystemAttributes or {}))


def _attribute(value: AttributeValue) -> MessageAttribute:
    if value.StringListValues or value.BinaryListValues:
        raise Unsupported("Message attribute list values in SendMessage operation are not supported.")
    # A value of the other kind counts as none: the rules then say which kind is expected.
    if value.DataType.startswith("Binary"):
        return MessageAttribute(value.DataType, value.BinaryValue or b"")
    return MessageAttribute(value.DataType, value.StringValue or "")


def _trace_of(attributes: AttributeValues) -> str:
    for name, value in attributes.items():
        if name != TRACE_HEADER:
            raise AttributeRefused(
                name,
                f"Message system attribute name '{name[:256]}' is invalid. The only one is {TRACE_HEADER}.",
            )
        if value.DataType != "String" or not value.StringValue:
            raise AttributeRefused(
                name, f"Message (system) attribute '{name}' must contain a non-empty value of type 'String'."
            )
    return attributes[TRACE_HEADER].StringValue or ""
