"""How often what happened, in each queue, since the server started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator


class Tallies:
    """Plain counters by event and queue id; adding costs next to nothing, and metrics read them when asked.

    The service adds `sent`, `received`, `empty_receive`, `deleted`, `extended`, `released`, `given_back`,
    `purged`; the store, through `counted`, what only it sees: `lapsed`, `dead_lettered`, `expired`,
    `stale_receipt`, `duplicate`, `repeated_send`.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, int], int] = defaultdict(int)

    def add(self, event: str, queue_id: int, count: int = 1) -> None:
        """Count the event that many times more."""
        self._counts[event, queue_id] += count

    def of(self, event: str, queue_id: int) -> int:
        """How often the event happened in that queue."""
        return self._counts.get((event, queue_id), 0)

    def forget(self, queue_id: int) -> None:
        """Drop the counters of a queue that no longer exists."""
        for key in [key for key in self._counts if key[1] == queue_id]:
            del self._counts[key]

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Every counter as event, queue id and count."""
        return iter([(event, queue_id, count) for (event, queue_id), count in self._counts.items()])
