"""How large the groups of a group commit are, and how long a commit takes: counted where it happens, read by metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

# Powers of two: a fixed number of buckets from one operation to a full group, and from a fast disk to a sick
# one.
GROUP_BOUNDS: Final = tuple(1 << power for power in range(13))  # 1 … 4,096 operations
SECONDS_BOUNDS: Final = tuple(0.000_125 * (1 << power) for power in range(17))  # 0.125 ms … 8.192 s


_MINUTES: Final = 60


class SlowCommits(NamedTuple):
    """How slow the commits of the last hour were: nearly all of them, and the slowest."""

    p99_s: float  # not more than this
    worst_s: float


class _Minute:
    """The commits of one minute."""

    __slots__ = ("buckets", "number", "worst_s")

    def __init__(self, number: int) -> None:
        self.number, self.worst_s = number, 0.0
        self.buckets = [0] * (len(SECONDS_BOUNDS) + 1)


class CommitStats:
    """Two histograms in plain numbers: recorded by one, read by anybody at any time, at worst one commit behind."""

    __slots__ = ("_minutes", "commits", "group_buckets", "operations", "seconds", "seconds_buckets")

    def __init__(self) -> None:
        self.commits = 0
        self.operations = 0
        self.seconds = 0.0
        # Not cumulative; the last is everything above the bounds.
        self.group_buckets = [0] * (len(GROUP_BOUNDS) + 1)
        self.seconds_buckets = [0] * (len(SECONDS_BOUNDS) + 1)
        self._minutes: deque[_Minute] = deque(maxlen=_MINUTES)

    @classmethod
    def of_all(cls, parts: Iterable[CommitStats]) -> CommitStats:
        """What several have counted, together."""
        whole = cls()
        minutes: list[_Minute] = []
        for part in parts:
            whole.commits += part.commits
            whole.operations += part.operations
            whole.seconds += part.seconds
            whole.group_buckets = [
                a + b for a, b in zip(whole.group_buckets, part.group_buckets, strict=True)
            ]
            whole.seconds_buckets = [
                a + b for a, b in zip(whole.seconds_buckets, part.seconds_buckets, strict=True)
            ]
            minutes += part._minutes
        whole._minutes = deque(minutes)
        return whole

    def record(self, group_size: int, seconds: float) -> None:
        """One commit of so many operations, which took so long from its begin to its fsync's end."""
        self.commits += 1
        self.operations += group_size
        self.seconds += seconds
        self.group_buckets[bisect_left(GROUP_BOUNDS, group_size)] += 1
        bucket = bisect_left(SECONDS_BOUNDS, seconds)
        self.seconds_buckets[bucket] += 1
        number = int(time.monotonic() // 60)
        if not self._minutes or self._minutes[-1].number != number:
            self._minutes.append(_Minute(number))
        minute = self._minutes[-1]
        minute.buckets[bucket] += 1
        if seconds > minute.worst_s:
            minute.worst_s = seconds

    def last_hour(self) -> SlowCommits | None:
        """How slow the disk was lately; None where nothing was committed."""
        since = int(time.monotonic() // 60) - _MINUTES
        lately = [minute for minute in self._minutes if minute.number > since]
        if not lately:
            return None
        worst_s = max(minute.worst_s for minute in lately)
        counts = [sum(column) for column in zip(*(minute.buckets for minute in lately), strict=True)]
        rest = sum(counts) // 100  # that may be slower
        p99_s = worst_s
        for bound_s, count in zip(reversed((*SECONDS_BOUNDS, worst_s)), reversed(counts), strict=True):
            p99_s = min(bound_s, worst_s)
            rest -= count
            if rest < 0:
                break
        return SlowCommits(p99_s, worst_s)
