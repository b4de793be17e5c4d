"""How large the groups of a group commit are, and how long a commit takes: counted where it happens, read by metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Powers of two: a fixed number of buckets from one operation to a full group, and from a fast disk to a sick
# one.
GROUP_BOUNDS: Final = tuple(1 << power for power in range(13))  # 1 … 4,096 operations
SECONDS_BOUNDS: Final = tuple(0.000_125 * (1 << power) for power in range(17))  # 0.125 ms … 8.192 s


class CommitStats:
    """Two histograms in plain numbers: recorded by one, read by anybody at any time, at worst one commit behind."""

    __slots__ = ("commits", "group_buckets", "operations", "seconds", "seconds_buckets")

    def __init__(self) -> None:
        self.commits = 0
        self.operations = 0
        self.seconds = 0.0
        self.group_buckets = [0] * (
            len(GROUP_BOUNDS) + 1
        )  # not cumulative; the last is everything above the bounds
        self.seconds_buckets = [0] * (len(SECONDS_BOUNDS) + 1)

    def record(self, group_size: int, seconds: float) -> None:
        """One commit of so many operations, which took so long from its begin to its fsync's end."""
        self.commits += 1
        self.operations += group_size
        self.seconds += seconds
        self.group_buckets[bisect_left(GROUP_BOUNDS, group_size)] += 1
        self.seconds_buckets[bisect_left(SECONDS_BOUNDS, seconds)] += 1
