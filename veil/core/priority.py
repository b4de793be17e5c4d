"""Priority: which of a standard queue's visible messages goes first, before age counts.

The lowest number goes first. A message keeps its priority for life: when it lapses, when it is dead-lettered, when it is
redriven. FIFO queues have none, since there the order within the group is the promise.
"""

from __future__ import annotations

from typing import Final

from veil.core.errors import PriorityRefused

PRIORITY_FIRST: Final = 1
PRIORITY_LAST: Final = 16
PRIORITY_DEFAULT: Final = 8


def check_priority(priority: int) -> None:
    """Raise PriorityRefused unless a message may have that priority."""
    if not PRIORITY_FIRST <= priority <= PRIORITY_LAST:
        raise PriorityRefused(priority)
