"""Which message is handled next, and in which task: quick ones follow each other in one, and notice nothing of it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from veil import Consumer, Reject
from veil.testing import ConsumerHarness

mark: ContextVar[object] = ContextVar("mark", default=None)


class Incomparable:
    """As arrays are."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


async def test_quick_messages_follow_each_other_in_their_order_and_in_few_tasks():
    app, seen = Consumer("orders", concurrency=4), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append((body, id(asyncio.current_task())))

    async with ConsumerHarness(app) as harness:
        for number in range(20):
            await harness.send(str(number))
        await harness.settle()

        assert [body for body, _ in seen] == [str(number) for number in range(20)]
        assert len({task for _, task in seen}) <= 10
        assert harness.deleted == [str(number) for number in range(20)]


async def test_while_handlers_wait_others_are_begun_up_to_the_slots():
    app, begun = Consumer("orders", concurrency=4, prefetch=4), []

    @app.handler
    async def handle(body: str) -> None:
        begun.append(body)
        if body != "quick":
            await harness.sleep(60)

    async with ConsumerHarness(app) as harness:
        for body in ("quick", "a", "quick", "b", "c", "d", "e"):
            await harness.send(body)
        await harness.settle(running=4)
        assert begun == ["quick", "a", "quick", "b", "c", "d"]
        await harness.advance(60)
        assert begun[6:] == ["e"]


@pytest.mark.parametrize("value", ["order 1", Incomparable()], ids=["text", "incomparable"])
async def test_context_variables_of_one_message_are_not_seen_by_the_next(value: object):
    app, seen = Consumer("orders", concurrency=1), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(mark.get())
        mark.set(value)

    async with ConsumerHarness(app) as harness:
        for _ in range(5):
            await harness.send()
        await harness.settle()

    assert seen == [None] * 5


async def test_a_handler_that_cancels_its_own_task_ends_only_its_own_message():
    app, seen = Consumer("orders", concurrency=1), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)
        if body == "1":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        elif body == "2":
            await asyncio.sleep(0)

    async with ConsumerHarness(app) as harness:
        for number in range(4):
            await harness.send(str(number))
        await harness.settle()

        assert seen == ["0", "1", "2", "3"]
        assert harness.deleted == ["0", "1", "2", "3"]


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
async def test_a_message_whose_task_is_cancelled_comes_back_when_its_window_ends(queue: str):
    app, seen = Consumer(queue, concurrency=1), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)
        if len(seen) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send("first")
        await harness.settle()
        assert seen == ["first"]
        await harness.advance(31)
        assert seen == ["first", "first"]
        assert harness.deleted == ["first"]


async def test_a_cancellation_that_a_handler_leaves_behind_does_not_keep_its_message_from_its_end():
    app = Consumer("orders", concurrency=1)

    @app.handler
    async def handle(body: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise Reject("no such customer")

    async with ConsumerHarness(app) as harness:
        send = harness.runner._api.send

        async def slowly(*args: Any, **named: Any) -> str:
            await asyncio.sleep(0)
            return await send(*args, **named)

        harness.runner._api.send = slowly  # type: ignore[method-assign, union-attr]
        await harness.send("1")
        await harness.settle()
        await harness.advance(100)

        assert harness.deleted == ["1"]
        assert [letter.body for letter in await harness.dead_letters()] == ["1"]
