"""A message as a command shows it: a few lines for people, or one object for scripts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from veil.cli.output import inert

Message = dict[str, Any]


def as_object(message: Message) -> Message:
    """The message with plain names, numbers as numbers, absent things left out."""
    system = message.get("Attributes") or {}
    found: dict[str, Any] = {
        "message_id": message["MessageId"],
        "receipt": message.get("ReceiptHandle"),
        "body": message["Body"],
        "body_md5": message.get("MD5OfBody"),
        "state": message.get("State"),
        "visible_at_ms": message.get("VisibleAt"),
        "receive_count": _number(system.get("ApproximateReceiveCount")),
        "sent_at_ms": _number(system.get("SentTimestamp")),
        "first_received_at_ms": _number(system.get("ApproximateFirstReceiveTimestamp")),
        "group": system.get("MessageGroupId"),
        "deduplication_id": system.get("MessageDeduplicationId"),
        "sequence_number": system.get("SequenceNumber"),
        "dead_letter_source": system.get("DeadLetterQueueSourceArn"),
        "attributes": _attributes(message),
    }
    return {name: value for name, value in found.items() if value is not None}


def as_lines(message: Message) -> list[str]:
    """The message for people: who and when, its receipt, its attributes, then its body, indented."""
    facts = as_object(message)
    head = [f"message {facts['message_id']}"]
    if "state" in facts:
        head.append(str(facts["state"]))
    if "receive_count" in facts:
        head.append(f"receive count {facts['receive_count']}")
    if "sent_at_ms" in facts:
        head.append(f"sent {clock_text(facts['sent_at_ms'])}")
    if "visible_at_ms" in facts:
        head.append(f"visible {clock_text(facts['visible_at_ms'])}")
    if "group" in facts:
        head.append(f"group {facts['group']}")
    lines = ["  ".join(inert(part, keep="") for part in head)]
    if "receipt" in facts:
        lines.append(f"receipt {inert(facts['receipt'], keep='')}")
    for name, value in facts.get("attributes", {}).items():
        shown = value.get("value", value.get("base64"))
        text = f"{name}:{value['type']}={shown}"
        lines.append(f"attribute {inert(text, keep='')}")
    lines += [f"  {line}" for line in inert(facts["body"]).split("\n")]
    return lines


def clock_text(wall_ms: int) -> str:
    """A wall-clock instant for people, in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _attributes(message: Message) -> dict[str, dict[str, str]] | None:
    given = message.get("MessageAttributes")
    if not given:
        return None
    return {
        name: {"type": value["DataType"], "value": value["StringValue"]}
        if value.get("StringValue") is not None
        else {"type": value["DataType"], "base64": value.get("BinaryValue", "")}
        for name, value in given.items()
    }


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
