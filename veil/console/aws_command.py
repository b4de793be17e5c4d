"""The aws command that does the same, ready to paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from veil.core.queue import Queue


def aws_command(
    operation: str,
    endpoint_url: str,
    region: str,
    options: Mapping[str, str | None],
    *,
    words: tuple[str, ...] = (),
) -> str:
    """`aws sqs OPERATION …`, an option a line; None is an option without a value."""
    lines = [f"aws sqs {operation}"]
    for name, value in options.items():
        lines.append(name if value is None else f"{name} {shlex.quote(value)}")
    lines += [shlex.quote(word) for word in words]
    lines.append(f"--endpoint-url {shlex.quote(endpoint_url)} --region {shlex.quote(region)}")
    return " \\\n  ".join(lines)


def queue_url(endpoint_url: str, queue: Queue) -> str:
    """The queue's URL, as the visitor's clients would write it."""
    return f"{endpoint_url}/{queue.key.account}/{queue.key.name}"
