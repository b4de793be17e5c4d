"""Message properties: SMQ's user and system properties are the message attributes that SQS's clients see.

A boolean is a String with a label, since SQS has none. System properties stand among the attributes under their own
names; those of tracing are the ones that consumers look for there.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

from veil.core.message import MessageAttribute, StoredMessage
from veil.wire.smq.refusals import ArgumentRefused
from veil.wire.smq.xml_in import local_name, texts
from veil.wire.smq.xml_out import element

_DATA_TYPES: Final = {
    "STRING": "String",
    "NUMBER": "Number",
    "BOOLEAN": "String.BOOLEAN",
    "BINARY": "Binary",
}
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
            system += _printed("SystemPropertyValue", name, value, "STRING")
        else:
            text = b64encode(value).decode("ascii") if isinstance(value, bytes) else value
            user += _printed("PropertyValue", name, text, _kind(data_type))
    if message.dead_letter_source is not None and _DLQ_SOURCE not in (message.attributes or {}):
        system += _printed("SystemPropertyValue", _DLQ_SOURCE, message.dead_letter_source, "STRING")
    return (f"<UserProperties>{user}</UserProperties>" if user else "") + (
        f"<SystemProperties>{system}</SystemProperties>" if system else ""
    )


def _printed(entry: str, name: str, value: str, kind: str) -> str:
    return f"<{entry}>{element('Name', name)}{element('Value', value)}{element('Type', kind)}</{entry}>"


def _kind(data_type: str) -> str:
    if data_type == "String.BOOLEAN":
        return "BOOLEAN"
    return data_type.partition(".")[0].upper()
