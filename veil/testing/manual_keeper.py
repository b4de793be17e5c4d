"""The keeper of leases on a manual clock: renewals happen when the test lets time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from veil.client.api import QueueApi
from veil.consumer.renewal.keeper import KeeperEvents, LeaseKeeper
from veil.consumer.renewal.policies import RenewalPolicy
from veil.core.clock import Timer
from veil.testing.in_process import ManualTime


class ManualKeeper(LeaseKeeper):
    """The real keeper, whose timers run on the test's clock instead of the event loop's."""

    def __init__(self, api: QueueApi, policy: RenewalPolicy, events: KeeperEvents, clock: ManualTime) -> None:
        super().__init__(api, policy, monotonic=clock.monotonic_s, events=events)
        self._clock = clock

    async def start(self) -> None:
        await super().start()
        self._loop = _LoopOnClock(asyncio.get_running_loop(), self._clock)  # type: ignore[assignment]


class _LoopOnClock:
    """The part of an event loop that the keeper uses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: ManualTime) -> None:
        self.create_task = loop.create_task
        self.call_soon_threadsafe = loop.call_soon_threadsafe
        self._clock = clock

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        # Rounded up: woken a fraction of a millisecond early, the keeper would find nothing due and ask again for ever.
        due_ms = self._clock.now_ms() + -int(-delay_s * 1000 // 1)
        return self._clock.call_at(due_ms, lambda: call(*args))
