"""The clock of a running server: engine time on CLOCK_BOOTTIME, timers on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from veil.core.clock import ClockMark, Timer, resumed_engine_ms

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# CLOCK_BOOTTIME counts suspend, so a laptop that slept does not stretch windows; where it is missing (macOS), the monotonic
# clock is the nearest thing.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _boot_ms() -> int:
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"  # never equal to a real one; two "unknown" boots are told apart by boot_ms running backwards


class SystemClock:
    """Engine time starts as the wall clock's and from then on knows only elapsed time: wall-clock steps do not reach it."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - _boot_ms()
        self._boot_id = _boot_id()

    def now_ms(self) -> int:
        return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000 + self._offset_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        # One millisecond on top: the loop may fire a hair early, and a timer that fires before its instant fires twice.
        delay_s = max(0, due_ms - self.now_ms() + 1) / 1000
        return asyncio.get_running_loop().call_later(delay_s, call)

    def mark(self) -> ClockMark:
        boot_ms = time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000
        return ClockMark(boot_ms + self._offset_ms, time.time_ns() // 1_000_000, boot_ms, self._boot_id)

    def resume(self, saved: ClockMark) -> None:
        present = self.mark()
        self._offset_ms = resumed_engine_ms(saved, present) - present.boot_ms
