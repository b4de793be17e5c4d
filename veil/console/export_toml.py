"""Queues as the tables of veil.toml, which `veil serve` creates at its start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from veil.core.queue import Queue, QueueSettings

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_LENGTHS: Final = {
    "visibility_timeout": "visibility_s",
    "retention": "retention_s",
    "delay": "delay_s",
    "receive_wait": "wait_s",
}
# What a veil.toml cannot say.
_UNSAID: Final = {
    "redrive_allow": "its redrive allow policy",
    "policy": "its policy",
    "kms_key": "its KMS key",
    "deduplication_scope": "its deduplication scope",
    "throughput_limit": "its throughput limit",
}


def as_toml(queues: Sequence[Queue]) -> Iterator[str]:
    """The tables, each a piece, and in comments what they leave out."""
    for place, queue in enumerate(queues):
        yield ("\n" if place else "") + _table(queue)


def _table(queue: Queue) -> str:
    settings, default = queue.settings, QueueSettings(fifo=queue.settings.fifo)
    lines = [f"[queues.{_key(queue.name)}]"]
    for word, setting in _LENGTHS.items():
        value = getattr(settings, setting)
        if setting == "visibility_s" or value != getattr(default, setting):
            lines.append(f"{word} = {_length(value)}")
    if settings.message_bytes_max != default.message_bytes_max:
        lines.append(f"max_message_bytes = {settings.message_bytes_max}")
    if settings.fifo:
        lines.append("fifo = true")
    if settings.content_deduplication:
        lines.append("content_deduplication = true")
    if settings.redrive is not None:
        lines.append(f"dead_letter = {_text(settings.redrive.dead_letters.name)}")
        lines.append(f"max_receives = {settings.redrive.receives_max}")
    if queue.tags:
        pairs = ", ".join(f"{_key(name)} = {_text(value)}" for name, value in queue.tags.items())
        lines.append(f"tags = {{ {pairs} }}")
    unsaid = [
        words for setting, words in _UNSAID.items() if getattr(settings, setting) != getattr(default, setting)
    ]
    if unsaid:
        lines.append(f"# Not here, because veil.toml cannot say it: {', '.join(unsaid)}.")
    return "\n".join(lines) + "\n"


def _length(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f'"{seconds // size}{unit}"'
    return f'"{seconds}s"'


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a basic TOML string, but for DEL, which TOML wants escaped, and surrogate pairs, which it has none of.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
