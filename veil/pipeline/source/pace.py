"""How many messages the next batch may take, so that there are no more in a second than were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 1.0


class Pace:
    """An allowance that grows with time, up to one second's worth or one batch; without a rate it is always a batch."""

    def __init__(
        self, rate: float | None, batch_max: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._batch_max, self._monotonic = rate, batch_max, monotonic
        self._at_s = monotonic()
        self._saved = min(float(batch_max), rate * _BURST_S) if rate is not None else 0.0

    def allowance(self) -> int:
        """How many are allowed now."""
        if self._rate is None:
            return self._batch_max
        now_s = self._monotonic()
        # At a rate below one a second a whole message must still come together.
        most = max(1.0, min(float(self._batch_max), self._rate * max(_BURST_S, now_s - self._at_s)))
        self._saved = min(most, self._saved + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        return int(self._saved)

    def wait_s(self) -> float:
        """How long until one message is allowed; 0 where one is already."""
        if self._rate is None or self.allowance() >= 1:
            return 0.0
        return (1.0 - self._saved) / self._rate

    def spend(self, count: int) -> None:
        """So many were taken."""
        self._saved = max(0.0, self._saved - count)
