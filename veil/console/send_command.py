"""The aws command that sends the same messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

from veil.console.aws_command import aws_command, queue_url
from veil.console.visit import Visit
from veil.core.limits import BATCH_ENTRIES_MAX
from veil.core.message_rules import Draft
from veil.core.queue import Queue

# A longer command is of no use to anybody: the text is then to be put into a file.
_COMMAND_CHARS_MAX: Final = 4_000
# What the aws command would take for an option, a file or an address to fetch instead of a text.
_AWKWARD: Final = ("-", "file://", "fileb://", "http://", "https://")


def send_commands(visit: Visit, queue: Queue, drafts: Sequence[Draft]) -> list[str]:
    """One message as it is; of several the first batch."""
    url = queue_url(visit.endpoint_url, queue)
    options: dict[str, str | None] = {"--queue-url": url}
    if len(drafts) == 1:
        entry = _entry(drafts[0])
        if any(isinstance(value, str) and value.startswith(_AWKWARD) for value in entry.values()):
            options = {"--cli-input-json": json.dumps({"QueueUrl": url, **entry}, ensure_ascii=False)}
            entry = {}
        elif len(entry["MessageBody"]) > _COMMAND_CHARS_MAX:
            entry["MessageBody"] = "file://body.txt"
        for name, value in entry.items():
            option = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
            options[f"-{option}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return [aws_command("send-message", visit.endpoint_url, queue.key.region, options)]
    # As many of a batch as are worth showing; the file has them all.
    entries = [
        {"Id": str(number), **_entry(draft)} for number, draft in enumerate(drafts[:BATCH_ENTRIES_MAX], 1)
    ]
    text = json.dumps(entries, ensure_ascii=False)
    options["--entries"] = text if len(text) <= _COMMAND_CHARS_MAX else "file://entries.json"
    return [aws_command("send-message-batch", visit.endpoint_url, queue.key.region, options)]


def _entry(draft: Draft) -> dict[str, Any]:
    entry: dict[str, Any] = {"MessageBody": draft.body}
    if draft.attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": value.data_type}
            | (
                {"StringValue": value.value}
                if isinstance(value.value, str)
                else {"BinaryValue": base64.b64encode(value.value).decode()}
            )
            for name, value in draft.attributes.items()
        }
    if draft.group is not None:
        entry["MessageGroupId"] = draft.group
    if draft.deduplication_id is not None:
        entry["MessageDeduplicationId"] = draft.deduplication_id
    if draft.delay_s is not None:
        entry["DelaySeconds"] = draft.delay_s
    return entry
