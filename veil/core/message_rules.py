"""What may be sent, and the digests clients compare: pure checks of a draft against a queue's settings.

The parameter names inside errors are the ones callers write (`MessageGroupId`, …), because that is what
they must mend.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from veil.core import errors
from veil.core.limits import ATTRIBUTE_NAME_MAX, ATTRIBUTES_MAX, IDENTIFIER_MAX, TRACE_HEADER_BYTES_MAX
from veil.core.message import (
    FIRST_RECEIVED_AT,
    HANDLER,
    LAST_RECEIVED_AT,
    PRIORITY_DEFAULT,
    REDRIVEN_FROM,
    TRACEBACK,
    MessageAttribute,
    NewContent,
    StoredMessage,
    check_priority,
    message_type,
)
from veil.core.queue import ContentChange, QueueSettings

# XML 1.0's set, looked at in UTF-8: the controls below blank except tab, line feed and return, and U+FFFE
# and U+FFFF. Surrogates need no place here, they cannot be encoded.
_CONTROLS: Final = bytes(set(range(0x20)) - {0x09, 0x0A, 0x0D})
_WITHOUT_CONTROLS: Final = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))
_NOT_CHARACTERS: Final = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")

_IDENTIFIER: Final = re.compile(rf"[!-~]{{1,{IDENTIFIER_MAX}}}\Z")
# \w: accented letters pass on AWS. Each period has something else on both sides.
_ATTRIBUTE_NAME: Final = re.compile(rf"(?=.{{1,{ATTRIBUTE_NAME_MAX}}}\Z)[\w-]+(\.[\w-]+)*\Z")
_RESERVED_PREFIXES: Final = ("aws.", "amazon.")
_DATA_TYPE: Final = re.compile(r"(String|Number|Binary)(\.|\Z)")
_DATA_TYPE_MAX: Final = 256
# Each character has one place in the pattern, so that a text that is no number is refused in one pass over it.
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?\Z", re.ASCII)
_NUMBER_CHARS_MAX: Final = 256
_NUMBER_DIGITS_MAX: Final = 38
# Zero is allowed too; a negative number counts without its sign.
_NUMBER_MIN: Final = Decimal("1e-128")
_NUMBER_MAX: Final = Decimal("1e126")
_LENGTH: Final = struct.Struct(">I")


class Draft(msgspec.Struct):
    """A message as a caller wrote it, not yet checked."""

    body: str
    attributes: dict[str, MessageAttribute] | None = None
    trace_header: str | None = None
    delay_s: int | None = None
    group: str | None = None
    deduplication_id: str | None = None
    priority: int | None = None
    body_md5: str = ""  # known once it was sent: clients compare it


def check_draft(draft: Draft, settings: QueueSettings) -> bytes:
    """The body in UTF-8, for its digests; raises a MessageRefused member unless the queue takes the draft."""
    # The rules of the queue's type come first: two of them refuse a whole batch, whatever else is wrong
    # with the entry.
    if settings.fifo:
        if draft.group is None:
            raise errors.GroupMissing
        if draft.deduplication_id is None and not settings.content_deduplication:
            raise errors.DeduplicationMissing
        if draft.delay_s:
            raise errors.NotForQueueType("DelaySeconds", draft.delay_s, "FIFO")
        if draft.priority is not None and draft.priority != PRIORITY_DEFAULT:
            raise errors.NotForQueueType("Priority", draft.priority, "FIFO")
    elif draft.deduplication_id is not None:
        raise errors.NotForQueueType("MessageDeduplicationId", draft.deduplication_id, "standard")
    if draft.priority is not None:
        check_priority(draft.priority)
    if draft.group is not None:
        check_identifier("MessageGroupId", draft.group)
    if draft.deduplication_id is not None:
        check_identifier("MessageDeduplicationId", draft.deduplication_id)

    body = draft.body
    if not body:
        raise errors.BodyMissing
    try:
        body_utf8 = body.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise errors.CharactersRefused from None
    size = len(body_utf8)
    if draft.attributes:
        size += _attributes_bytes(draft.attributes)
    # The size comes first: what is larger than the queue takes is not worth a look at its parts.
    if size > settings.message_bytes_max:
        raise errors.BodyTooLong(size, settings.message_bytes_max)
    if not _is_xml_text(body_utf8):
        raise errors.CharactersRefused
    if draft.attributes:
        _check_attributes(draft.attributes)
    if draft.trace_header is not None:
        # It does not count as part of the message, so it has a limit of its own.
        if _utf8_bytes(draft.trace_header) > TRACE_HEADER_BYTES_MAX:
            raise errors.AttributeRefused(
                "AWSTraceHeader",
                "Message (system) attribute 'AWSTraceHeader' must be shorter than or equal to "
                f"{TRACE_HEADER_BYTES_MAX} bytes.",
            )
        if not _is_text(draft.trace_header):
            raise errors.AttributeRefused(
                "AWSTraceHeader",
                "Message (system) attribute 'AWSTraceHeader' must contain a non-empty value.",
            )
    return body_utf8


# ---- redriving

# What a consumer writes again whenever it gives a message up; the least useful first.
_FOR_A_MARK: Final = (LAST_RECEIVED_AT, FIRST_RECEIVED_AT, TRACEBACK, HANDLER)


def spared_for_mark(attributes: Mapping[str, MessageAttribute]) -> str | None:
    """What gives way to the mark of a redrive: nothing where there is room, None where nothing can."""
    if len(attributes) < ATTRIBUTES_MAX or REDRIVEN_FROM in attributes:
        return ""
    return next((name for name in _FOR_A_MARK if name in attributes), None)


def changed_content(change: ContentChange, message: StoredMessage, target: QueueSettings) -> NewContent:
    """What a message becomes on its way to a queue; raises a MessageRefused member, as a send there would."""
    body = message.body if change.body is None else change.body
    attributes = dict((message.attributes if change.attributes is None else change.attributes) or {})
    # A message that is full of its sender's attributes goes without the mark: better than not at all.
    if change.is_marked and (spare := spared_for_mark(attributes)) is not None:
        attributes.pop(spare, None)
        attributes[REDRIVEN_FROM] = MessageAttribute("String", message.message_id)
    # On a FIFO queue its new id will be its deduplication id, so what stands here is of no account.
    deduplication_id = message.message_id if target.fifo else None
    draft = Draft(body, attributes or None, message.trace_header, None, message.group, deduplication_id)
    body_utf8 = check_draft(draft, target)
    type_ = message_type(attributes, change.type_attributes)
    return NewContent(body, body_md5(body_utf8), len(body_utf8), attributes or None, type_)


def check_identifier(parameter: str, value: str) -> None:
    """Raise IdentifierRefused unless the value can be a group, deduplication or attempt id."""
    if not _IDENTIFIER.match(value):
        raise errors.IdentifierRefused(parameter, value)


def size_bytes(draft: Draft) -> int:
    """What counts against the limits: the body in UTF-8, and name, data type and value of each attribute."""
    size = _utf8_bytes(draft.body)
    return size + _attributes_bytes(draft.attributes) if draft.attributes else size


def body_md5(body_utf8: bytes) -> str:
    """The digest of a body that SDKs verify."""
    return hashlib.md5(body_utf8, usedforsecurity=False).hexdigest()


def content_deduplication_id(body_utf8: bytes) -> str:
    """The deduplication id that a body stands for; attributes do not take part."""
    return hashlib.sha256(body_utf8).hexdigest()


def attributes_md5(attributes: Mapping[str, MessageAttribute]) -> str:
    """The digest of attributes that SDKs verify, over exactly those given."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        data_type, value = attributes[name]
        raw = value if isinstance(value, bytes) else value.encode()
        for part in (name.encode(), data_type.encode()):
            digest.update(_LENGTH.pack(len(part)) + part)
        kind = b"\x02" if data_type.startswith("Binary") else b"\x01"
        digest.update(kind + _LENGTH.pack(len(raw)) + raw)
    return digest.hexdigest()


def _check_attributes(attributes: Mapping[str, MessageAttribute]) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise errors.AttributeRefused(
            "",
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}].",
        )
    for name, attribute in attributes.items():
        problem = _attribute_problem(name, *attribute)
        if problem is not None:
            raise errors.AttributeRefused(name, problem)


def _attribute_problem(name: str, data_type: str, value: str | bytes) -> str | None:
    if not _ATTRIBUTE_NAME.match(name) or name.lower().startswith(_RESERVED_PREFIXES):
        return (
            f"Message (user) attribute name '{name}' is invalid. It can have 1 to {ATTRIBUTE_NAME_MAX} "
            "alphanumeric characters, hyphens, underscores and periods, must not begin with 'AWS.' or "
            "'Amazon.', must not begin or end with a period, and must not contain consecutive periods."
        )
    kind = _DATA_TYPE.match(data_type)
    if kind is None or len(data_type) > _DATA_TYPE_MAX or not _is_text(data_type):
        return (
            f"The type of message (user) attribute '{name}' is invalid. "
            "You must use only the following supported type prefixes: Binary, Number, String."
        )
    if not value or isinstance(value, bytes) != (kind[1] == "Binary"):
        return f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind[1]}'."
    if isinstance(value, bytes):
        return None
    if not _is_text(value):
        return (
            f"Message (user) attribute '{name}' contains characters outside the allowed set: "
            "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF."
        )
    if kind[1] == "Number" and not _is_number(value):
        return f"Can't cast the value of message (user) attribute '{name}' to a number."
    return None


def _attributes_bytes(attributes: Mapping[str, MessageAttribute]) -> int:
    return sum(
        _utf8_bytes(name)
        + _utf8_bytes(data_type)
        + (len(value) if isinstance(value, bytes) else _utf8_bytes(value))
        for name, (data_type, value) in attributes.items()
    )


def _utf8_bytes(text: str) -> int:
    # Sizes are asked before characters are checked, so a lone surrogate must not stop the count.
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _is_text(text: str) -> bool:
    try:
        return bool(text) and _is_xml_text(text.encode())
    except UnicodeEncodeError:
        return False


def _is_xml_text(utf8: bytes) -> bool:
    # Quicker than to look at each character, and than to leave the controls out.
    if utf8.translate(_WITHOUT_CONTROLS) != utf8:
        return False
    return utf8.isascii() or not any(sequence in utf8 for sequence in _NOT_CHARACTERS)


def _is_number(text: str) -> bool:
    if len(text) > _NUMBER_CHARS_MAX or _NUMBER.match(text) is None:
        return False
    mantissa = re.split("[eE]", text)[0].lstrip("+-").replace(".", "")
    if len(mantissa.strip("0")) > _NUMBER_DIGITS_MAX:
        return False
    number = Decimal(text).copy_abs()  # abs() would round
    return not number or _NUMBER_MIN <= number <= _NUMBER_MAX
