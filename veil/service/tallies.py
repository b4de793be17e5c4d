"""How often what happened, in each queue, since the server started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping


class Tallies:
    """Plain counters by event and queue id; adding costs next to nothing, and metrics read them when asked.

    The service adds `sent`, `received`, `empty_receive`, `deleted`, `extended`, `released`, `given_back`,
    `purged`; the store, through `counted`, what only it sees: `lapsed`, `dead_lettered`, `expired`,
    `stale_receipt`, `duplicate`, `repeated_send`.
    """

    __slots__ = ("_counts", "_fresh")

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._fresh: defaultdict[tuple[str, int], int] = defaultdict(int)  # not yet in _counts

    def add(self, event: str, queue_id: int, count: int = 1) -> None:
        """Count the event that many times more."""
        self._fresh[event, queue_id] += count

    def fresh(self) -> Mapping[tuple[str, int], int]:
        """What was counted since this was last asked."""
        fresh, self._fresh = self._fresh, defaultdict(int)
        for key, count in fresh.items():
            self._counts[key] += count
        return fresh

    def of(self, event: str, queue_id: int) -> int:
        """How often the event happened in that queue."""
        key = (event, queue_id)
        return self._counts.get(key, 0) + self._fresh.get(key, 0)

    def forget(self, queue_id: int) -> None:
        """Drop the counters of a queue that no longer exists."""
        for counts in (self._counts, self._fresh):
            for key in [key for key in counts if key[1] == queue_id]:
                del counts[key]

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Every counter as event, queue id and count."""
        return iter(
            [(*key, self._counts.get(key, 0) + self._fresh.get(key, 0)) for key in self._counts | self._fresh]
        )
