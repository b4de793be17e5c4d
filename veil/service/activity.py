"""How much of what happens at the moment, and before: counters and rates of every queue.

Kept in memory, from the start of the server on. Adding to a counter costs next to nothing; everything that can wait is
done when somebody looks, or once a second. Who does it is told by `attempts`.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from veil.core.clock import Clock, Timer
from veil.service.attempts import LiveAttempts

# ---- counters


class Tallies(defaultdict[tuple[str, int], int]):
    """Counters by event and queue id; `tallies["sent", queue_id] += 1` costs next to nothing.

    The service counts `sent`, `received`, `empty_receive`, `deleted`, `extended`, `released`, `undone`, `purged`, and the
    outcomes of attempts (`core.attempt.Outcome`) as they are judged; the store, through `counted`, what only it sees: `lapsed`,
    `dead_lettered`, `arrived`, `expired`, `stale_receipt`, `duplicate`, `repeated_send`. What stands in the dictionary itself is
    what is new since `take_fresh`; `of` and `totals` tell of all.
    """

    def __init__(self) -> None:
        super().__init__(int)
        self._taken: defaultdict[tuple[str, int], int] = defaultdict(int)

    def take_fresh(self) -> Mapping[tuple[str, int], int]:
        """What was counted since this was last asked."""
        fresh = dict(self)
        self.clear()
        for key, count in fresh.items():
            self._taken[key] += count
        return fresh

    def of(self, event: str, queue_id: int) -> int:
        """How often the event happened in that queue since the server started."""
        key = (event, queue_id)
        return self._taken.get(key, 0) + self.get(key, 0)

    def totals(self) -> list[tuple[str, int, int]]:
        """Every counter as event, queue id and count since the server started."""
        return [(*key, self._taken.get(key, 0) + self.get(key, 0)) for key in self._taken | self]

    def forget(self, queue_id: int) -> None:
        """Drop the counters of a queue that no longer exists."""
        for counts in (self._taken, self):
            for key in [key for key in counts if key[1] == queue_id]:
                del counts[key]


TICK_MS: Final = 1_000
FINE_S: Final = 5  # seconds of one bucket: ten minutes of them
COARSE_S: Final = 60  # four hours of these
_FINE_BUCKETS: Final = 120
_COARSE_BUCKETS: Final = 240
# What is beyond this bound is forgotten, oldest first.
SERIES_MAX: Final = 20_000


class _Ring:
    """Counts in buckets of equal length, the latest ones only."""

    __slots__ = ("_counts", "_latest")

    def __init__(self, buckets: int) -> None:
        self._counts = array("L", bytes(array("L").itemsize * buckets))
        self._latest = 0  # the number of the bucket that was written last

    def add(self, bucket: int, count: int) -> None:
        counts = self._counts
        size = len(counts)
        for skipped in range(max(self._latest + 1, bucket - size + 1), bucket + 1):
            counts[skipped % size] = 0
        self._latest = max(self._latest, bucket)
        counts[bucket % size] += count

    def last(self, bucket: int, buckets: int) -> list[int]:
        counts, size = self._counts, len(self._counts)
        wanted = bucket - buckets + 1
        first = min(max(wanted, self._latest - size + 1), bucket + 1)
        after = max(min(bucket, self._latest) + 1, first)  # those from first up to here are kept
        begin, end = first % size, after % size
        if first == after:
            kept = counts[:0]
        elif begin < end:
            kept = counts[begin:end]
        else:
            kept = counts[begin:] + counts[:end]
        return [0] * (first - wanted) + kept.tolist() + [0] * (bucket + 1 - after)


class Activity:
    """Rates of every queue, and who works on what (`attempts`); all of it bounded."""

    def __init__(
        self, clock: Clock, tallies: Tallies, each_second: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        self._tallies = tallies
        self._each_second = each_second
        self.attempts = LiveAttempts(clock, tallies)
        self._fine: dict[tuple[str, int], _Ring] = {}
        self._coarse: dict[tuple[str, int], _Ring] = {}
        self._timer: Timer | None = None

    def fine(self, event: str, queue_id: int, buckets: int = _FINE_BUCKETS) -> list[int]:
        """How often the event happened in each of the last spans of FINE_S seconds, the oldest first."""
        return self._last(self._fine, FINE_S, event, queue_id, buckets)

    def coarse(self, event: str, queue_id: int, buckets: int = _COARSE_BUCKETS) -> list[int]:
        """The same in spans of COARSE_S seconds."""
        return self._last(self._coarse, COARSE_S, event, queue_id, buckets)

    def is_quiet(self, events: Iterable[str], queue_id: int) -> bool:
        """Whether none of the events has happened in the queue for as long as is remembered."""
        self.tick()
        return not any((event, queue_id) in self._fine for event in events)

    def forget(self, queue_id: int) -> None:
        """Drop what is known about a queue that no longer exists."""
        self.attempts.emptied(queue_id)
        for rings in (self._fine, self._coarse):
            for key in [key for key in rings if key[1] == queue_id]:
                del rings[key]

    # ---- once a second

    def start(self) -> None:
        """Note from now on how much happens when."""
        self._timer = self._clock.call_at(self._clock.now_ms() + TICK_MS, self._again)

    def stop(self) -> None:
        """Note no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Put what was counted since the last tick into the present buckets."""
        now_s = self._clock.now_ms() // 1000
        for key, count in self._tallies.take_fresh().items():
            for rings, span_s, buckets in (
                (self._fine, FINE_S, _FINE_BUCKETS),
                (self._coarse, COARSE_S, _COARSE_BUCKETS),
            ):
                ring = rings.get(key)
                if ring is None:
                    if len(rings) >= SERIES_MAX:
                        del rings[next(iter(rings))]
                    ring = rings[key] = _Ring(buckets)
                ring.add(now_s // span_s, count)

    def _again(self) -> None:
        self.tick()
        self._each_second()
        self.start()

    def _last(
        self, rings: dict[tuple[str, int], _Ring], span_s: int, event: str, queue_id: int, buckets: int
    ) -> list[int]:
        self.tick()
        ring = rings.get((event, queue_id))
        bucket = self._clock.now_ms() // 1000 // span_s
        return [0] * buckets if ring is None else ring.last(bucket, buckets)
