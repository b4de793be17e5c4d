"""How long handlers of one kind usually take, learned from those that have ended."""

from __future__ import annotations

import math

_FINEST_S = 0.001
_STEP = math.log(1.1)  # buckets 10 % apart: nobody needs to know it better
_BUCKETS = 190  # up to twelve hours
_MEMORY = 512  # then everything counts half: what changed is learned within a few hundred messages
_ENOUGH = 10


class UsualTime:
    """Streaming quantiles in a histogram of logarithmic buckets that forgets slowly."""

    __slots__ = ("_counts", "_high", "_known", "_stale", "_total")

    def __init__(self, high: float) -> None:
        self._high = high
        self._counts = [0] * _BUCKETS
        self._total = 0
        self._known: tuple[float, float] | None = None
        self._stale = False

    def add(self, duration_s: float) -> None:
        """One more has ended."""
        bucket = int(math.log(duration_s / _FINEST_S) / _STEP) if duration_s > _FINEST_S else 0
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self._total += 1
        # Seldom once there are many: one more of them moves nothing.
        self._stale = self._stale or self._total <= 64 or self._total % 16 == 0
        if self._total >= _MEMORY:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
            self._stale = True

    @property
    def known_s(self) -> tuple[float, float] | None:
        """The median and the high quantile, at the upper edge of their buckets; None until there is enough to tell."""
        if self._stale:
            self._stale = False
            enough = self._total >= _ENOUGH
            self._known = (self._quantile_s(0.5), self._quantile_s(self._high)) if enough else None
        return self._known

    def _quantile_s(self, quantile: float) -> float:
        wanted, seen = quantile * self._total, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return _FINEST_S * math.exp(_STEP * (bucket + 1))
        raise AssertionError("all that was counted is in some bucket")
