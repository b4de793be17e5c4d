"""The copy of a message that goes to the dead letters, with what happened written on it as attributes.

A message has at most ten attributes and a limited size. The sender's own stay; ours follow in the order of their use to
whoever looks at the dead letters, as many as there is room for, the long ones cut to fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from veil.client.api import Attribute
from veil.consumer.message import Message
from veil.consumer.outcomes import DeadLetter, class_name, held_s, traceback_text
from veil.core.limits import ATTRIBUTES_MAX, BODY_BYTES_MAX
from veil.core.message import (
    ERROR_TYPE,
    FIRST_RECEIVED_AT,
    HANDLER,
    LAST_RECEIVED_AT,
    MESSAGE_ID,
    PREFIX,
    REASON,
    RECEIVE_COUNT,
    SOURCE_QUEUE,
    TRACEBACK,
)

REASON_BYTES_MAX: Final = 1_024
TRACEBACK_BYTES_MAX: Final = 8_192
_TEXT_BYTES_MAX: Final = 256
# Below this, what is left of a cut text tells nothing.
_TEXT_BYTES_MIN: Final = 16

# What SQS refuses in a text: what XML 1.0 has no place for.
_REFUSED: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def dead_letter_copy(
    message: Message, outcome: DeadLetter, *, now: datetime, bytes_max: int = BODY_BYTES_MAX
) -> tuple[str, dict[str, Attribute]]:
    """Body and attributes of the copy, which the dead letters take if they take up to `bytes_max`."""
    # What an earlier stay among the dead letters wrote is ours to write again, not the sender's.
    attributes = {
        name: attribute for name, attribute in message.attributes.items() if not name.startswith(PREFIX)
    }
    left = bytes_max - _bytes(message.body) - sum(map(_attribute_bytes, attributes.items()))
    for name, data_type, text, most in _ours(message, outcome, now):
        if len(attributes) >= ATTRIBUTES_MAX:
            break
        room = min(most, left - _bytes(name) - _bytes(data_type))
        value = _fitted(_REFUSED.sub("\ufffd", text), room, keep_end=name == TRACEBACK)
        if not value or (value != text and data_type == "Number"):
            continue
        attributes[name] = Attribute(data_type, value)
        left -= _attribute_bytes((name, attributes[name]))
    return message.body, attributes


def _ours(message: Message, outcome: DeadLetter, now: datetime) -> Iterator[tuple[str, str, str, int]]:
    error = outcome.error
    if error is not None:
        yield ERROR_TYPE, "String", class_name(error), _TEXT_BYTES_MAX
    yield REASON, "String", outcome.reason, REASON_BYTES_MAX
    yield SOURCE_QUEUE, "String", message.queue, _TEXT_BYTES_MAX
    # After a redrive the message has a new id: the first one is what the sender's records know.
    yield MESSAGE_ID, "String", _first_id(message.attributes) or message.id, _TEXT_BYTES_MAX
    yield RECEIVE_COUNT, "Number", str(message.receive_count), _TEXT_BYTES_MAX
    yield HANDLER, "String", outcome.handler, _TEXT_BYTES_MAX
    if error is not None and (trace := traceback_text(error)):
        yield TRACEBACK, "String", trace, TRACEBACK_BYTES_MAX
    first_at, last_at = message.first_received_at, now - timedelta(seconds=held_s(message.lease))
    if first_at is not None:
        yield FIRST_RECEIVED_AT, "String", _iso(first_at), _TEXT_BYTES_MAX
        # The one is told by the service's clock, the other by this one's, from before the request was sent.
        last_at = first_at if message.receive_count == 1 else max(first_at, last_at)
    yield LAST_RECEIVED_AT, "String", _iso(last_at), _TEXT_BYTES_MAX


def _first_id(attributes: Mapping[str, Attribute]) -> str | None:
    known = attributes.get(MESSAGE_ID)
    return known.value if known is not None and isinstance(known.value, str) else None


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fitted(text: str, room: int, *, keep_end: bool) -> str:
    """The text, or as much of it as fits; of a traceback the end, where the error is."""
    utf8 = text.encode()
    if len(utf8) <= room:
        return text
    if room < _TEXT_BYTES_MIN:
        return ""
    kept = room - len("…".encode())
    if keep_end:
        return "…" + utf8[-kept:].decode(errors="ignore")
    return utf8[:kept].decode(errors="ignore") + "…"


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _attribute_bytes(item: tuple[str, Attribute]) -> int:
    name, (data_type, value) = item
    return _bytes(name) + _bytes(data_type) + (len(value) if isinstance(value, bytes) else _bytes(value))
