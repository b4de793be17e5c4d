"""The ticker settles the store when something is due, and never more often than it must."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.kit import Desk, tick_done, until
from veil.core.clock import ManualClock
from veil.core.errors import StoreError


class Settlings:
    """Counts how often the store is asked to settle, and fails once if told to."""

    def __init__(self, desk: Desk) -> None:
        self._settle = desk.service.store.settle
        self.count = 0
        self.failure: Exception | None = None  # of the next one
        desk.service.store.settle = self._counted  # type: ignore[method-assign]

    async def _counted(self) -> None:
        self.count += 1
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        await self._settle()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_deadlines_close_together_share_a_tick(orders: Desk, clock: ManualClock) -> None:
    for _ in range(10):
        await orders.send()
    for _ in range(10):
        await orders.receive_one(visibility_s=10)
        clock.advance(1)
    settlings = Settlings(orders)
    clock.advance(9_990)
    await until(lambda: orders.tally("lapsed") == 1)
    await tick_done(orders.service)
    clock.advance(19)
    await turns()
    assert settlings.count == 1
    clock.advance(1)
    await until(lambda: orders.tally("lapsed") == 10)
    assert settlings.count == 2


async def test_nothing_ticks_while_nothing_is_due(orders: Desk, clock: ManualClock) -> None:
    await orders.send()
    await orders.receive_one(visibility_s=600)
    settlings = Settlings(orders)
    for _ in range(59):
        clock.advance(seconds=10)
        await turns()
    assert settlings.count == 0
    clock.advance(seconds=10)
    await until(lambda: orders.tally("lapsed") == 1)


@pytest.mark.parametrize("failure", [StoreError("disk trouble"), RuntimeError("nobody has thought of it")])
async def test_a_failed_tick_is_tried_again_after_a_second(
    orders: Desk, clock: ManualClock, failure: Exception
) -> None:
    await orders.send("a")
    await orders.receive_one(visibility_s=5)
    poll = await orders.poll()
    settlings = Settlings(orders)
    settlings.failure = failure
    clock.advance(seconds=5)
    await turns()
    assert settlings.count == 1
    clock.advance(999)
    await turns()
    assert settlings.count == 1
    clock.advance(1)
    assert [message.body for message in await poll] == ["a"]


async def test_a_stopped_ticker_ticks_no_more(orders: Desk, clock: ManualClock) -> None:
    await orders.send("a")
    await orders.receive_one(visibility_s=5)
    settlings = Settlings(orders)
    await orders.service.ticker.stop()
    clock.advance(seconds=60)
    await turns()
    assert settlings.count == 0
