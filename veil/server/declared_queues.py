"""Queues written down in veil.toml, or named in a flag or a variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veil.core.errors import VeilError
from veil.core.queue import QueueKey, QueueSettings, RedrivePolicy, check_name
from veil.core.text import length_s

# The name in veil.toml, and the setting of a queue that it means.
_LENGTHS = {
    "visibility_timeout": "visibility_s",
    "delay": "delay_s",
    "retention": "retention_s",
    "receive_wait": "wait_s",
}
_WORDS = {
    "fifo": bool,
    "content_deduplication": bool,
    "max_message_bytes": int,
    "dead_letter": str,
    "max_receives": int,
    "tags": dict,
}


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A queue that should exist: only what was written down is set, the rest is the default."""

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)  # fields of QueueSettings, redrive aside
    dead_letter: str | None = None
    receives_max: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


def declared_queues(value: object) -> tuple[DeclaredQueue, ...]:
    """Queues from `[queues.NAME]` tables or from names separated by commas, dead letters before those who use them."""
    if isinstance(value, str):
        value = {name.strip(): {} for name in value.split(",") if name.strip()}
    if isinstance(value, tuple) and all(isinstance(each, DeclaredQueue) for each in value):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("[queues.NAME] tables, or names separated by commas")
    declared: dict[str, DeclaredQueue] = {}
    for name, table in value.items():
        queue = _declared(name, table)
        if queue.name in declared:
            raise ValueError(f"each queue once, but {queue.name} is there twice")
        declared[queue.name] = queue
    for queue in tuple(declared.values()):
        if (
            queue.dead_letter is not None
        ):  # a dead-letter queue with nothing to say about it need not be written down
            declared.setdefault(queue.dead_letter, DeclaredQueue(queue.dead_letter, _fifo(queue.fifo)))
    return _dead_letters_first(declared)


def _declared(name: str, table: object) -> DeclaredQueue:
    if not isinstance(table, Mapping):
        raise ValueError(f"[queues.{name}] to be a table")
    for word, entry in table.items():
        if word not in _LENGTHS and word not in _WORDS:
            raise ValueError(f"in [queues.{name}] only {', '.join((*_LENGTHS, *_WORDS))}, not {word}")
        kind = _WORDS.get(word)
        if kind is not None and (not isinstance(entry, kind) or (kind is int and isinstance(entry, bool))):
            words = {bool: "true or false", int: "a whole number", str: "a text", dict: "a table of texts"}[
                kind
            ]
            raise ValueError(f"{words} for {word} in [queues.{name}], not {entry!r}")
    fifo = table.get("fifo", name.endswith(".fifo"))
    if name.endswith(".fifo") and not fifo:
        raise ValueError(f"fifo = true in [queues.{name}], whose name ends in .fifo")
    given: dict[str, Any] = _fifo(fifo)
    for word, setting in _LENGTHS.items():
        if word in table:
            given[setting] = _length_s(name, word, table[word])
    if "max_message_bytes" in table:
        given["message_bytes_max"] = table["max_message_bytes"]
    if "content_deduplication" in table:
        if not fifo:
            raise ValueError(f"content_deduplication on FIFO queues only, not in [queues.{name}]")
        given["content_deduplication"] = table["content_deduplication"]
    dead_letter = _named(table["dead_letter"], fifo) if "dead_letter" in table else None
    if (dead_letter is None) != ("max_receives" not in table):
        raise ValueError(f"dead_letter and max_receives together in [queues.{name}]")
    receives_max = table.get("max_receives", 0)
    tags = table.get("tags", {})
    if not all(isinstance(each, str) for each in tags.values()):
        raise ValueError(f"a table of texts for tags in [queues.{name}]")
    queue = DeclaredQueue(_named(name, fifo), given, dead_letter, receives_max, tags)
    try:
        check_name(queue.name, fifo)
        if dead_letter is not None:
            check_name(dead_letter, fifo)
        settings_given(queue, QueueKey("", "", queue.name))
    except VeilError as refusal:
        raise ValueError(f"a queue that can exist in [queues.{name}]: {refusal}") from None
    return queue


def _fifo(fifo: bool) -> dict[str, Any]:
    return {"fifo": True} if fifo else {}


def _named(name: str, fifo: bool) -> str:
    # A dot in a TOML key needs quotes, so `[queues.orders]` with fifo = true means orders.fifo.
    return name if not fifo or name.endswith(".fifo") else f"{name}.fifo"


def _length_s(name: str, word: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    seconds = length_s(value) if isinstance(value, str) and not value.isdigit() else None
    if seconds is None:
        raise ValueError(f'seconds or a text such as "30s", "5m", "12h", "4d" for {word} in [queues.{name}]')
    return seconds


def _dead_letters_first(declared: dict[str, DeclaredQueue]) -> tuple[DeclaredQueue, ...]:
    ordered: dict[str, DeclaredQueue] = {}
    for queue in declared.values():
        chain = [queue]
        while (after := chain[-1].dead_letter) is not None and after not in ordered:
            if any(each.name == after for each in chain):
                raise ValueError(f"dead letters to end somewhere, but those of {after} come back to it")
            chain.append(declared[after])
        ordered.update((each.name, each) for each in reversed(chain) if each.name not in ordered)
    return tuple(ordered.values())


def settings_given(queue: DeclaredQueue, key: QueueKey) -> dict[str, Any]:
    """What to give for the queue of that key; raises SettingRefused for what is out of range."""
    given = dict(queue.given)
    if queue.dead_letter is not None:
        dead_letters = QueueKey(key.region, key.account, queue.dead_letter)
        given["redrive"] = RedrivePolicy(dead_letters, queue.receives_max)
    QueueSettings(**given)
    return given
