"""A queue's settings between the command line and SQS's attributes, and what an edit would change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import typer

from veil.cli.client import Client
from veil.cli.failures import CommandFailed, QueueMissing
from veil.cli.output import seconds


class Change(NamedTuple):
    """One setting before and after, as people read it; None where it was or will be absent."""

    setting: str
    before: str | None
    after: str | None


_LABELS = {
    "VisibilityTimeout": "visibility timeout",
    "DelaySeconds": "delay",
    "MessageRetentionPeriod": "retention",
    "MaximumMessageSize": "maximum message size",
    "ReceiveMessageWaitTimeSeconds": "wait",
    "ContentBasedDeduplication": "content deduplication",
    "RedrivePolicy": "dead letters",
    "FifoQueue": "FIFO",
    "DeduplicationScope": "deduplication scope",
    "FifoThroughputLimit": "throughput limit",
    "RedriveAllowPolicy": "may be dead letters of",
    "Policy": "policy",
}
SHOWN = tuple(_LABELS)
_SECONDS = {"VisibilityTimeout", "DelaySeconds", "MessageRetentionPeriod", "ReceiveMessageWaitTimeSeconds"}


def given_attributes(**given: int | bool | None) -> dict[str, str]:
    """The attributes that were given, as SQS writes their values."""
    return {name: str(value).lower() for name, value in given.items() if value is not None}


def redrive_policy(client: Client, dead_letter: str, max_receives: int) -> str:
    """The redrive policy that names a dead-letter queue, by name or ARN."""
    try:
        arn = dead_letter if dead_letter.startswith("arn:") else client.arn(dead_letter)
    except QueueMissing as missing:
        raise CommandFailed(f"--dead-letter: {missing}") from None
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_receives})


def read_redrive(attributes: Mapping[str, str]) -> tuple[str, int] | None:
    """The dead-letter queue's name and the maximum of receives, or None."""
    text = attributes.get("RedrivePolicy")
    if not text:
        return None
    policy = json.loads(text)
    return str(policy["deadLetterTargetArn"]).rpartition(":")[2], int(policy["maxReceiveCount"])


def dead_letter_queues(client: Client) -> dict[str, list[str]]:
    """The queues that are named as dead letters, each with those that name it."""
    sources: dict[str, list[str]] = {}
    for name, attributes in client.each_queue():
        if (redrive := read_redrive(attributes)) is not None:
            sources.setdefault(redrive[0], []).append(name)
    return dict(sorted(sources.items()))


def read_tags(options: Sequence[str]) -> dict[str, str]:
    """Tags from KEY=VALUE texts."""
    tags: dict[str, str] = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r}: expected KEY=VALUE", param_hint="--tag")
        tags[key] = value
    return tags


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """What setting the attributes `after` would change; attributes it does not name stay."""
    found = []
    for name, value in after.items():
        old, new = readable(name, before.get(name)), readable(name, value)
        if old != new:
            found.append(Change(label(name), old, new))
    return found


def tag_changes(before: Mapping[str, str], added: Mapping[str, str], removed: Sequence[str]) -> list[Change]:
    """What adding and then removing tags would change."""
    after = {**before, **added}
    for key in removed:
        after.pop(key, None)
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [Change(f"tag {key}", before.get(key), after.get(key)) for key in keys]


def label(attribute: str) -> str:
    return _LABELS.get(attribute, attribute)


def readable(attribute: str, value: str | None) -> str | None:
    """The attribute's value for people; None when it has none."""
    if not value:
        return None
    if attribute in _SECONDS:
        return seconds(value)
    if attribute == "MaximumMessageSize":
        return f"{value} bytes"
    if attribute == "RedrivePolicy":
        name, receives = read_redrive({"RedrivePolicy": value}) or ("", 0)
        return f"{name} after {receives} receives"
    return value


def summary(name: str, url: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    """One queue as an object for scripts: plain names, numbers as numbers."""
    redrive = read_redrive(attributes)
    return {
        "name": name,
        "url": url,
        "visible": int(attributes["ApproximateNumberOfMessages"]),
        "in_flight": int(attributes["ApproximateNumberOfMessagesNotVisible"]),
        "delayed": int(attributes["ApproximateNumberOfMessagesDelayed"]),
        "visibility_timeout_s": int(attributes["VisibilityTimeout"]),
        "delay_s": int(attributes["DelaySeconds"]),
        "retention_s": int(attributes["MessageRetentionPeriod"]),
        "wait_s": int(attributes["ReceiveMessageWaitTimeSeconds"]),
        "max_message_bytes": int(attributes["MaximumMessageSize"]),
        "fifo": attributes.get("FifoQueue") == "true",
        "content_deduplication": attributes.get("ContentBasedDeduplication") == "true",
        "dead_letters": redrive[0] if redrive else None,
        "max_receives": redrive[1] if redrive else None,
        "arn": attributes["QueueArn"],
    }
