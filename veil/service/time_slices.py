"""Cooperative scheduling: a page with much to do works in time slices, so that it never keeps the event loop for longer.

While a page looks through messages or draws a long list, nobody else is served. So each yields once it has worked for a
slice, and among all that wait one goes on with each pass of the loop: what else the server has to do waits for one slice
of one page, however many pages are asked for at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Final

SLICE_S: Final = 0.008
BYTES_AT_ONCE: Final = 1 << 20  # of messages, read from the store within one slice


class TimeSlices:
    """Gives out one time slice with each pass of the event loop, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._give, loop)
        await mine

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # a visitor who has gone wants none
                first.set_result(None)
                break
        if self._waiting:
            loop.call_soon(self._give, loop)


class TimeSlice:
    def __init__(self, time_slices: TimeSlices) -> None:
        self._time_slices = time_slices
        self._since_s = perf_counter()

    async def yield_if_spent(self) -> None:
        """Let others go on, if this request has worked for a whole slice."""
        if perf_counter() - self._since_s >= SLICE_S:
            await self._time_slices.next()
            self._since_s = perf_counter()
