"""Names for queues inside a template: made of plain letters and digits, no two the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from veil.core.queue import Queue, QueueKey


def names_for(queues: Sequence[Queue], shape: Callable[[list[str]], str]) -> dict[QueueKey, str]:
    """A name for each queue; `shape` joins the words of a queue's name. Those that come to the same get a number."""
    names: dict[QueueKey, str] = {}
    taken: set[str] = set()
    for queue in queues:
        stem = shape(re.findall(r"[A-Za-z0-9]+", queue.name)) or shape(["queue"])
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}{number}"
        taken.add(name)
        names[queue.key] = name
    return names
