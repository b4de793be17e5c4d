"""Lets things happen when they are due: leases lapse, delays end, retention runs out.

The store settles a queue whenever somebody looks at it, so this is for those who do not look: waiting
receivers, and messages that nobody asks for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from veil.core.clock import Clock, Timer
from veil.core.errors import VeilError
from veil.stores.store import Store

logger = logging.getLogger(__name__)

# Deadlines that lie close together share one transaction.
TICK_MIN_MS: Final = 20
AFTER_FAILURE_MS: Final = 1_000


class Ticker:
    """Settles the store at each due instant, at most every 20 milliseconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._timer: Timer | None = None
        self._armed_ms: int | None = None
        self._not_before_ms = 0
        self._settling: asyncio.Task[None] | None = None
        self._stopped = True

    def start(self) -> None:
        """Begin with whatever is due next."""
        self._stopped = False
        self.look()

    def look(self) -> None:
        """Take note of a due instant that may have come nearer; cheap, for it follows every operation."""
        due_ms = self._store.next_due_ms()
        if due_ms is None or self._stopped or self._settling is not None:
            return
        due_ms = max(due_ms, self._not_before_ms)
        if self._armed_ms is not None:
            if due_ms >= self._armed_ms:
                return
            assert self._timer is not None
            self._timer.cancel()
        self._armed_ms = due_ms
        self._timer = self._clock.call_at(due_ms, self._tick)

    async def stop(self) -> None:
        """Tick no more; returns when a settling under way has ended."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_ms = None
        if self._settling is not None:
            await asyncio.wait([self._settling])

    def _tick(self) -> None:
        self._timer = self._armed_ms = None
        self._not_before_ms = self._clock.now_ms() + TICK_MIN_MS
        self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        try:
            await self._store.settle()
        except VeilError as error:
            # Nothing is lost by trying later: every receive settles its own queue before it looks.
            logger.error("settling failed, trying again in %d ms: %s", AFTER_FAILURE_MS, error)
            self._not_before_ms = self._clock.now_ms() + AFTER_FAILURE_MS
        finally:
            self._settling = None
            self.look()
