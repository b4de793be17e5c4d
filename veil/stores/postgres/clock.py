"""The database's clock as a node sees it between two round trips."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from veil.core.clock import ClockMark, Timer


class DatabaseClock:
    """Estimates the database's time from what its answers said; nothing is decided by it but when to ask."""

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        # Until the first answer the machine's own clock will do: nobody has asked anything yet.
        self._offset_ms = time.time_ns() // 1_000_000 - _elapsed_ms()

    def heard(self, now_ms: int) -> None:
        """An answer said what time it is there."""
        # A little ago by now: the estimate is behind by less than a round trip, so that a timer rather comes late.
        self._offset_ms = now_ms - _elapsed_ms()

    def now_ms(self) -> int:
        return _elapsed_ms() + self._offset_ms

    def wall_ms(self) -> int:
        return self.now_ms()

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        # The estimate is what counts when the timer comes, so a clock that was set meanwhile costs one more look at most.
        delay_s = max(0, due_ms - self.now_ms()) / 1000
        return asyncio.get_running_loop().call_later(delay_s, call)

    def mark(self) -> ClockMark:
        return ClockMark(self.now_ms(), self.now_ms(), _elapsed_ms(), "database")

    def resume(self, saved: ClockMark) -> None:
        """Nothing to resume: the database's clock has gone on."""


def _elapsed_ms() -> int:
    return time.monotonic_ns() // 1_000_000
