"""The visibility window: who sees a message when."""

from __future__ import annotations

from tests.service.kit import Desk, open_desk, quiet
from veil.core.clock import ManualClock
from veil.service.service import Service


async def test_the_window_is_thirty_seconds_unless_somebody_says_otherwise(
    orders: Desk, clock: ManualClock
) -> None:
    await orders.send()
    await orders.receive_one()
    clock.advance(29_999)
    assert await orders.receive() == []
    clock.advance(1)
    assert len(await orders.receive()) == 1


async def test_the_queues_own_timeout_is_used_when_the_receive_names_none(
    service: Service, clock: ManualClock
) -> None:
    desk = await open_desk(service, "slow", visibility_s=300)
    await desk.send()
    await desk.receive_one()
    clock.advance(seconds=299)
    assert await desk.receive() == []
    clock.advance(seconds=1)
    assert len(await desk.receive()) == 1


async def test_changing_the_queues_timeout_does_not_touch_open_windows(
    orders: Desk, clock: ManualClock
) -> None:
    await orders.send()
    await orders.receive_one()
    await orders.change(visibility_s=5)
    clock.advance(seconds=29)
    assert await orders.receive() == []
    clock.advance(seconds=1)
    await orders.receive_one()
    clock.advance(seconds=5)
    assert len(await orders.receive()) == 1


async def test_releasing_makes_it_visible_at_once(orders: Desk) -> None:
    await orders.send()
    receipt = orders.receipt(await orders.receive_one())
    assert await orders.release(receipt) is None
    assert len(await orders.receive()) == 1
    assert orders.tally("released") == 1


async def test_it_comes_back_at_its_old_place_with_a_higher_count_and_a_new_receipt(
    orders: Desk, clock: ManualClock
) -> None:
    await orders.send("first")
    first = await orders.receive_one()
    await orders.send("second")
    clock.advance(seconds=30)
    again, second = await orders.receive()
    assert (again.body, second.body) == ("first", "second")
    assert (first.receive_count, again.receive_count) == (1, 2)
    assert orders.receipt(again) != orders.receipt(first)
    assert again.first_received_wall_ms == first.first_received_wall_ms


async def test_peeking_neither_counts_nor_hides(orders: Desk) -> None:
    await orders.send("a")
    (seen,) = await orders.service.store.peek(orders.queue)
    assert (seen.body, seen.receive_count) == ("a", 0)
    assert (await orders.receive_one()).receive_count == 1
    assert len(await orders.service.store.peek(orders.queue)) == 1


async def test_a_lapse_is_counted_though_nobody_looks(orders: Desk, clock: ManualClock) -> None:
    await orders.send()
    await orders.receive_one()
    clock.advance(seconds=30)
    await quiet(orders.service)
    assert orders.tally("lapsed") == 1


async def test_an_expired_message_is_gone_though_somebody_holds_it(
    service: Service, clock: ManualClock
) -> None:
    desk = await open_desk(service, "brief", retention_s=60)
    await desk.send()
    receipt = desk.receipt(await desk.receive_one(visibility_s=600))
    clock.advance(seconds=61)
    await quiet(service)
    assert desk.tally("expired") == 1
    assert await desk.counts() == (0, 0, 0)
    assert await desk.delete(receipt) is None
    clock.advance(seconds=600)
    assert await desk.receive() == []
