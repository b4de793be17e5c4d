"""Names for queues inside a template: made of plain letters and digits, no two the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from veil.core.queue import Queue, QueueKey


def names_for(queues: Sequence[Queue], shape: Callable[[list[str]], str]) -> dict[QueueKey, str]:
    """A name for each queue; `shape` joins the words of a queue's name. Those that come to the same get a number."""
    names: dict[QueueKey, str] = {}
    taken: dict[str, int] = {}  # and the last number given behind it
    for queue in queues:
        stem = shape(re.findall(r"[A-Za-z0-9]+", queue.name)) or shape(["queue"])
        name = stem
        while name in taken:
            taken[stem] += 1
            name = f"{stem}{taken[stem]}"
        taken[name] = 1
        names[queue.key] = name
    return names
