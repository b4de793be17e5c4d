"""An event loop on which time passes only when there is nothing else to do: hours of renewal in a second, exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingToWaitFor(RuntimeError):
    """Everybody waits, and no timer will ever wake anybody."""


class _NoWaiting(selectors.DefaultSelector):
    """Looks at sockets and never waits for them: waiting moves the loop's clock instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise NothingToWaitFor("every task waits for something that no timer will bring")
        self.loop.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which starts at 0 and jumps to the next timer. For one thread only."""

    def __init__(self) -> None:
        selector = _NoWaiting()
        super().__init__(selector)
        selector.loop = self
        self.now_s = 0.0
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s

    def stall(self, for_s: float) -> None:
        """Let time pass while nobody on this loop can run, as in a stopped process."""
        self.now_s += for_s


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time; `asyncio.get_running_loop().time` is the clock to hand to everything inside."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
