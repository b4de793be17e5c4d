"""Time is handed in: the two readings every layer may take, and the clock that tests own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple, Protocol


class ClockMark(NamedTuple):
    """One reading of every clock, kept with the data so that engine time can go on after a restart."""

    engine_ms: int
    wall_ms: int
    boot_ms: int  # time since boot, suspend included
    boot_id: str


def resumed_engine_ms(saved: ClockMark, present: ClockMark) -> int:
    """Engine time at the present readings, going on from a saved mark; `present.engine_ms` is not looked at.

    Within one boot the time since boot says exactly how long the server was away, whatever happened to the wall clock.
    After a reboot only the wall clock can tell; if it lies behind the mark, time goes on from the mark: windows then
    last longer than promised, never shorter.
    """
    if present.boot_id == saved.boot_id and present.boot_ms >= saved.boot_ms:
        return saved.engine_ms + present.boot_ms - saved.boot_ms
    return saved.engine_ms + max(0, present.wall_ms - saved.wall_ms)


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has already run."""


class Clock(Protocol):
    """Engine time runs every deadline and never steps; wall time is only shown to people and checked in signatures."""

    def now_ms(self) -> int:
        """Engine time: monotone over restarts, moved by nothing but elapsed time."""

    def wall_ms(self) -> int:
        """Wall time, UTC, milliseconds since 1970; may step."""

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        """Run the call once engine time has reached `due_ms`; never in the middle of the caller."""

    def mark(self) -> ClockMark:
        """All readings now, for `resume` after a restart."""

    def resume(self, saved: ClockMark) -> None:
        """Go on from a mark that was kept with the data; called once, before any reading is used."""


class ManualClock:
    """A clock that stands still until the test moves it; timers run inside `advance`, in the order of their instants."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._wall_offset_ms = 0
        self._order = itertools.count()
        self._timers: list[tuple[int, int, _ManualTimer]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._now_ms + self._wall_offset_ms

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        timer = _ManualTimer(call)
        heapq.heappush(self._timers, (due_ms, next(self._order), timer))
        return timer

    def mark(self) -> ClockMark:
        return ClockMark(self._now_ms, self.wall_ms(), self._now_ms, "manual")

    def resume(self, saved: ClockMark) -> None:
        self._now_ms = max(self._now_ms, saved.engine_ms)

    def advance(self, ms: int = 0, *, seconds: float = 0) -> None:
        """Let time pass, running each timer at its own instant."""
        target_ms = self._now_ms + ms + round(seconds * 1000)
        while self._timers and self._timers[0][0] <= target_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, due_ms)
            timer.run()
        self._now_ms = target_ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; engine time does not notice."""
        self._wall_offset_ms += ms


class _ManualTimer:
    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def run(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
