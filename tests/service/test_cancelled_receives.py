"""A receiver that goes away leaves no message hidden behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tests.service.kit import Desk, HeldAnswers, quiet, until
from veil.service.receive import give_back, receive, undisturbed

T = TypeVar("T")


@pytest.mark.parametrize("wait_s", [0, 20])
async def test_what_was_claimed_for_a_cancelled_receiver_is_given_back_uncounted(
    orders: Desk, wait_s: int
) -> None:
    await orders.send("a")
    held = HeldAnswers(orders.service)
    gone = asyncio.create_task(orders.receive(wait_s=wait_s))
    await until(lambda: bool(held.claimed))
    gone.cancel()
    held.let_go()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await quiet(orders.service)
    message = await orders.receive_one()
    assert (message.body, message.receive_count) == ("a", 1)
    assert (orders.tally("received"), orders.tally("undone")) == (1, 1)


async def test_a_message_given_back_wakes_the_next_receiver(orders: Desk) -> None:
    await orders.send("a")
    held = HeldAnswers(orders.service)
    gone = asyncio.create_task(orders.receive())
    await until(lambda: bool(held.claimed))
    poll = await orders.poll()
    gone.cancel()
    held.let_go()
    (message,) = await poll
    assert (message.body, message.receive_count) == ("a", 1)
    assert gone.cancelled()


async def test_an_answer_that_could_not_be_written_is_given_back(orders: Desk) -> None:
    await orders.send("a")
    messages = await orders.receive()
    poll = await orders.poll()
    give_back(orders.service, orders.queue, messages)
    (again,) = await poll
    assert (again.body, again.receive_count) == ("a", 1)
    assert orders.receipt(again) != orders.receipt(messages[0])


async def test_a_receipt_that_was_given_back_does_not_disturb_the_next_holder(orders: Desk) -> None:
    await orders.send("a")
    messages = await orders.receive()
    give_back(orders.service, orders.queue, messages)
    await quiet(orders.service)
    await orders.receive_one()
    give_back(orders.service, orders.queue, messages)
    await quiet(orders.service)
    assert (await orders.counts()).in_flight == 1


async def test_giving_back_nothing_is_nothing(orders: Desk) -> None:
    give_back(orders.service, orders.queue, [])
    assert orders.tally("undone") == 0


async def test_stopping_waits_until_everything_is_given_back(orders: Desk) -> None:
    await orders.send("a")
    messages = await orders.receive()
    give_back(orders.service, orders.queue, messages)
    await orders.service.stop()
    assert orders.tally("undone") == 1


async def test_many_cancellations_at_any_point_lose_nothing(orders: Desk) -> None:
    """Receivers are cancelled after 0, 1, 2, … turns of the loop; every message still reaches somebody who stays."""
    got: list[str] = []
    for turns in range(12):
        await orders.send(str(turns))
        gone = asyncio.create_task(
            receive(orders.service, orders.queue, count=1, visibility_s=None, wait_s=20)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        gone.cancel()
        try:
            got += [message.body for message in await gone]
        except asyncio.CancelledError:
            await quiet(orders.service)
            got.append((await orders.receive_one()).body)
    assert got == [str(turns) for turns in range(12)]


# ---- the awaiting itself


async def test_undisturbed_work_gives_its_result_or_its_error() -> None:
    async def works() -> int:
        await asyncio.sleep(0)
        return 7

    async def fails() -> int:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("no"))
        await future
        return 0

    undone: list[int] = []
    assert await undisturbed(works(), undone.append) == 7
    with pytest.raises(ValueError, match="no"):
        await undisturbed(fails(), undone.append)
    assert undone == []


async def test_undisturbed_work_runs_to_its_end_through_repeated_cancellation() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        await first.wait()
        await asyncio.sleep(0)
        await second.wait()
        return 7

    undone: list[int] = []
    caller = asyncio.ensure_future(_awaits(work(), undone))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    first.set()
    for _ in range(3):
        await asyncio.sleep(0)
    caller.cancel()
    second.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert undone == [7]


async def test_a_failure_of_work_whose_caller_left_undoes_nothing() -> None:
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        raise ValueError("no")

    undone: list[int] = []
    caller = asyncio.ensure_future(_awaits(work(), undone))
    await asyncio.sleep(0)
    caller.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert undone == []


async def test_a_cancellation_of_the_works_own_future_reaches_the_work() -> None:
    future = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await future
        except asyncio.CancelledError:
            return "told"
        return "not told"

    undone: list[str] = []
    caller = asyncio.ensure_future(_awaits(work(), undone))
    await asyncio.sleep(0)
    future.cancel()
    assert await caller == "told"
    assert undone == []


async def _awaits(work: Coroutine[Any, Any, T], undone: list[T]) -> T:
    return await undisturbed(work, undone.append)
