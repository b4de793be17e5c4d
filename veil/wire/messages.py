"""Messages as clients see them: what a receive shows of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from veil.core.message import MessageAttribute, StoredMessage
from veil.core.message_rules import attributes_md5
from veil.core.queue import Queue
from veil.core.sequence import sequence_text
from veil.service.receive import receipt_text
from veil.service.service import Service
from veil.wire.request_errors import ParameterRefused
from veil.wire.shapes import (
    AttributeValue,
    AttributeValues,
    ReceivedMessage,
    ReceiveMessageInput,
)

# ---- order keys

_MAX: Final = (1 << 63) - 1


def read_sequence_number(parameter: str, text: str) -> int:
    """The key; raises ParameterRefused for a text that cannot be one."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _MAX:
        return int(text)
    raise ParameterRefused(
        parameter, text, f"Must be a whole number between 0 and {_MAX}, in decimal digits."
    )


# ---- received messages

_SystemAttribute = Callable[[StoredMessage, bool], str | None]


def _millis(instant_ms: int | None) -> str | None:
    return None if instant_ms is None else str(instant_ms)


SYSTEM_ATTRIBUTES: Final[dict[str, _SystemAttribute]] = {
    "SenderId": lambda message, fifo: message.sender or None,
    "SentTimestamp": lambda message, fifo: str(message.sent_wall_ms),
    "ApproximateReceiveCount": lambda message, fifo: str(message.receive_count),
    "ApproximateFirstReceiveTimestamp": lambda message, fifo: _millis(message.first_received_wall_ms),
    "AWSTraceHeader": lambda message, fifo: message.trace_header,
    "MessageGroupId": lambda message, fifo: message.group,
    "MessageDeduplicationId": lambda message, fifo: message.deduplication_id,
    "SequenceNumber": lambda message, fifo: sequence_text(message.seq) if fifo else None,
    "DeadLetterQueueSourceArn": lambda message, fifo: message.dead_letter_source,
}
_EVERY: Final = tuple(SYSTEM_ATTRIBUTES)


class ReceivedForm:
    """The form that one receive asked for, applied to each of its messages."""

    __slots__ = ("_all", "_names", "_prefixes", "_system")

    def __init__(self, given: ReceiveMessageInput) -> None:
        self._system = _system_names(given)
        self._names, self._prefixes = _attribute_filter(given.MessageAttributeNames)
        self._all = "" in self._prefixes

    def messages(
        self, service: Service, queue: Queue, messages: list[StoredMessage]
    ) -> list[ReceivedMessage]:
        """The messages as they are answered; many of them are work for a thread."""
        return [self.message(service, queue, message) for message in messages]

    def message(self, service: Service, queue: Queue, message: StoredMessage) -> ReceivedMessage:
        """The message as it is answered."""
        shown = ReceivedMessage(
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
        value = SYSTEM_ATTRIBUTES[name](message, fifo)
        if value is not None:
            found[name] = value
    return found


def attribute_values(attributes: dict[str, MessageAttribute]) -> AttributeValues:
    """Message attributes in AWS's shape."""
    return {
        name: AttributeValue(data_type, BinaryValue=value)
        if isinstance(value, bytes)
        else AttributeValue(data_type, value)
        for name, (data_type, value) in attributes.items()
    }


def _system_names(given: ReceiveMessageInput) -> tuple[str, ...]:
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
