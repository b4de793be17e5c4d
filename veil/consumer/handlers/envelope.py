"""What senders wrap around a payload: CloudEvents always, SNS and EventBridge when asked for.

Only the outermost names are read; the payload stays the bytes it was, for the handler's own type to decode once.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

_T = TypeVar("_T")


class Content(NamedTuple):
    """What is left once the wrapping is off: the message's type, if it said one, and the payload.

    One of the others is set: `text` is a body as it is, `json` and `binary` are what an envelope carried, `problem` is
    why it cannot be read.
    """

    type: str | None
    text: str | None = None
    json: bytes | None = None
    binary: bytes | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Where a message's type is found, and which wrappings are taken off.

    The attribute wins over what the body says. CloudEvents are recognised by their `specversion`; SNS and EventBridge
    have no such mark, so a body that merely looks like theirs would be mistaken: they are off unless asked for.
    """

    type_attribute: str = "type"
    cloudevents: bool = True
    sns: bool = False
    eventbridge: bool = False

    def open(self, body: str) -> Content:
        """The content of a body; one that is in no envelope is its own content."""
        # A look for the mark costs next to nothing, decoding does: most bodies are in no envelope.
        if self.sns and '"TopicArn"' in body:
            notification = _decoded(_SNS, body)
            if notification is not None and notification.kind == "Notification":
                inner = self._opened(notification.message)
                if inner.type is None:
                    said = notification.attributes.get(self.type_attribute)
                    inner = inner._replace(type=said.value if said else None)
                return inner
        return self._opened(body)

    def _opened(self, body: str) -> Content:
        if self.cloudevents and '"specversion"' in body:
            event = _decoded(_CLOUD_EVENT, body)
            if event is not None:
                return _content(event)
        if self.eventbridge and '"detail-type"' in body:
            bus_event = _decoded(_EVENT_BRIDGE, body)
            if bus_event is not None:
                return Content(bus_event.detail_type, json=bytes(bus_event.detail))
        return Content(None, text=body)


class _CloudEvent(msgspec.Struct):
    specversion: str
    type: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    data_base64: str | None = None


class _SnsValue(msgspec.Struct, rename="pascal"):
    type: str = ""
    value: str = ""


class _SnsNotification(msgspec.Struct):
    kind: str = msgspec.field(name="Type")
    topic: str = msgspec.field(name="TopicArn")
    message: str = msgspec.field(name="Message")
    attributes: dict[str, _SnsValue] = msgspec.field(name="MessageAttributes", default_factory=dict)


class _BusEvent(msgspec.Struct):
    detail_type: str = msgspec.field(name="detail-type")
    source: str
    detail: msgspec.Raw


_CLOUD_EVENT: Final = msgspec.json.Decoder(_CloudEvent)
_SNS: Final = msgspec.json.Decoder(_SnsNotification)
_EVENT_BRIDGE: Final = msgspec.json.Decoder(_BusEvent)


def _decoded(decoder: msgspec.json.Decoder[_T], body: str) -> _T | None:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None  # it only looked like one


def _content(event: _CloudEvent) -> Content:
    if event.data_base64 is not None:
        try:
            return Content(event.type, binary=base64.b64decode(event.data_base64, validate=True))
        except binascii.Error:
            return Content(event.type, problem="data_base64 is not base64")
    return Content(event.type, json=bytes(event.data))
