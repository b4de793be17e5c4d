"""Stopping: nothing new, what was not begun given back, handlers drained with their leases, then the rest given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from veil import Consumer, Lease, Release
from veil.client.api import Failure
from veil.client.client import SqsClient
from veil.consumer.renewal.keeper import KeeperThread
from veil.consumer.runner import Dependencies
from veil.testing import ConsumerHarness


async def test_an_idle_consumer_stops_at_once_and_leaves_no_receive_behind():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.settle()
        await harness.stop()
        assert harness.runner.receiver.under_way == 0
        await harness.send()
        assert await harness.visible() == ["hello"]


async def test_what_was_not_begun_is_given_back_before_the_handlers_have_ended():
    app, begun = Consumer("orders", concurrency=1, prefetch=5), []

    @app.handler
    async def handle(body: str) -> None:
        begun.append(body)
        await harness.sleep(10)

    async with ConsumerHarness(app) as harness:
        for body in "abcd":
            await harness.send(body)
        await harness.settle()
        assert len(await harness.in_flight()) == 4
        stopping = asyncio.ensure_future(app.stop())
        await harness.settle()
        assert await harness.visible() == ["b", "c", "d"]
        assert await harness.in_flight() == ["a"]
        await harness.advance(10)
        await stopping
        assert begun == harness.deleted == ["a"]
        assert await harness.visible() == ["b", "c", "d"]


async def test_leases_are_renewed_while_handlers_are_drained():
    app, lost = Consumer("orders", drain_timeout=300), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        await harness.sleep(200)
        lost.append(lease.lost)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(199)
        assert await harness.in_flight() == ["hello"]
        await harness.advance(2)
        await stopping
        assert lost == [False]
        assert harness.deleted == ["hello"]


async def test_after_the_drain_timeout_handlers_are_interrupted_and_their_messages_given_back():
    app, ends = Consumer("orders", drain_timeout=25), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        try:
            await harness.sleep(1_000)
        finally:
            ends.append(lease.token)

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(24)
        assert not stopping.done()
        await harness.advance(1)
        await stopping
        assert ends == [1]
        assert await harness.visible() == ["hello"]
        assert harness.deleted == []


async def test_a_second_signal_hurries():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(1_000)

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.settle()
        assert not stopping.done()
        app.hurry()
        await stopping
        assert await harness.visible() == ["hello"]


async def test_a_handler_that_was_begun_in_the_moment_of_the_stop_is_not_forgotten():
    app, begun = Consumer("orders"), []

    @app.handler
    async def handle(body: str) -> None:
        begun.append(body)
        await harness.sleep(1_000)

    async with ConsumerHarness(app, receives_max=1_000) as harness:
        await harness.stop()
        await harness.send()
        for turns in range(40):  # whichever step the message has come to
            await harness.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            app.hurry()
            await app.stop()
            assert await harness.visible() == ["hello"], turns
        assert begun  # so the last ones were


async def test_a_sync_handler_that_is_still_at_work_is_told_and_its_message_given_back():
    app, go_on, told = Consumer("orders"), threading.Event(), []

    @app.handler
    def handle(body: str, lease: Lease) -> None:
        told.append(lease.wait_lost(10))
        go_on.set()

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle(running=1)
        app.hurry()
        await app.stop()
        assert await harness.visible() == ["hello"]
        assert await asyncio.to_thread(go_on.wait, 10)
        assert told == [True]
        assert harness.deleted == []


async def test_a_handler_that_will_not_be_interrupted_does_not_keep_its_message(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("veil.consumer.runner._LAST_S", 0.05)
    app, free = Consumer("orders"), asyncio.Event()

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle(running=1)
        app.hurry()
        await app.stop()
        assert await harness.visible() == ["hello"]
        free.set()
        await asyncio.sleep(0.01)
        assert harness.deleted == []


async def test_deletes_under_way_are_waited_for():
    app = Consumer("orders", drain_timeout=60)

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        harness.fail("delete", times=2)
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(5)
        await stopping
        assert harness.deleted == ["hello"]


async def test_a_failure_while_draining_is_settled_as_always():
    app = Consumer("orders", on_failure=Release())

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(5)
        raise ValueError

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(6)
        await stopping
        assert await harness.visible() == ["hello"]


async def test_the_rest_of_a_group_is_given_back_in_order():
    app, begun = Consumer("steps.fifo", concurrency=2), []

    @app.handler
    async def handle(body: str) -> None:
        begun.append(body)
        await harness.sleep(5)

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        for body in ("a1", "a2", "a3", "b1", "b2"):
            await harness.send(body, group=body[0])
        await harness.start()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(6)
        await stopping
        assert sorted(harness.deleted) == ["a1", "b1"]
        assert await harness.visible() == ["a2", "a3", "b2"]
        await harness.start()
        await harness.advance(20)
        assert [body for body in begun if body[0] == "a"] == ["a1", "a2", "a3"]


async def test_stopping_while_the_service_is_away_ends_all_the_same(caplog: pytest.LogCaptureFixture):
    app = Consumer("orders", drain_timeout=1)

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        harness.fail("delete", Failure.UNREACHABLE, times=100)
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(1)
        await stopping
    assert "not deleted" in caplog.text


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_service_that_does_not_answer_does_not_hold_up_the_stop(
    hurried: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("veil.consumer.runner._LAST_S", 0.01)
    app = Consumer("orders", concurrency=1, prefetch=5, drain_timeout=25)

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(3_600)

    async def silent(*_: object, **__: object) -> list[None]:
        await asyncio.Event().wait()
        return []

    async with ConsumerHarness(app) as harness:
        for number in range(4):
            await harness.send(str(number))
        await harness.settle()
        assert harness.runner.dispatch.waiting == 3
        monkeypatch.setattr(harness.runner._api, "extend", silent)
        stopping = asyncio.ensure_future(app.stop())
        await harness.advance(0 if hurried else 25)
        if hurried:
            app.hurry()
        async with asyncio.timeout(60):
            await stopping


async def test_stopping_while_it_waits_after_a_failed_receive():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        harness.fail("receive", times=3)
        await harness.advance(20)
        await harness.stop()
        assert not app.is_running


async def test_stopping_during_the_start():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        harness.fail("queue_url", times=50)
        starting = asyncio.ensure_future(harness.start())
        for _ in range(10):
            await asyncio.sleep(0)
        await app.stop()
        await starting
        assert not app.is_running


async def test_stopping_while_the_keeper_starts_leaves_no_keeper_behind():
    app = Consumer("orders")
    making, go_on = threading.Event(), threading.Event()

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.stop()

        def make_slowly() -> SqsClient:
            making.set()
            go_on.wait(60)
            return harness.service.api()

        dependencies = Dependencies(
            make_api=harness.service.api,
            make_keeper=lambda policy, events: KeeperThread(make_slowly, policy, events=events),
        )
        starting = asyncio.ensure_future(app.start(dependencies))
        await asyncio.to_thread(making.wait, 60)
        stopping = asyncio.ensure_future(app.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(starting, stopping)
        assert "veil-lease-keeper" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("end", ["stop", "hurry", "cancel"])
@pytest.mark.parametrize("turns", [1, 5], ids=["before it is begun", "once it waits"])
async def test_a_lifespan_that_waits_to_be_opened_does_not_hold_up_the_stop(end: str, turns: int):
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Consumer) -> AsyncIterator[None]:
        steps.append("opening")
        try:
            await asyncio.Event().wait()
            yield
        finally:
            steps.append("closed")

    app = Consumer("orders", lifespan=lifespan)

    @app.handler
    async def handle(body: str) -> None: ...

    starting = asyncio.ensure_future(app.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        if end == "stop":
            await app.stop()
        elif end == "hurry":
            app.hurry()
        else:
            starting.cancel()
        await asyncio.wait([starting])
    assert starting.cancelled() == (end == "cancel")
    assert steps == ["opening", "closed"] or (turns == 1 and steps == [])
    assert not app.is_running


@pytest.mark.parametrize("where", ["handler", "task"])
async def test_a_handler_that_stops_the_consumer_is_not_waited_for_by_itself(where: str):
    app, done = Consumer("orders"), []

    @app.handler
    async def handle(body: str) -> None:
        if where == "handler":
            await app.stop()
        else:
            await asyncio.create_task(app.stop())
        done.append(body)

    async with ConsumerHarness(app) as harness:
        await harness.send("last")
        await harness.settle()
        await app.wait()
        assert done == harness.deleted == ["last"]


async def test_a_delete_that_is_refused_while_it_stops_is_no_failure_of_the_consumer():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(5)

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        harness.fail("delete", Failure.FATAL)
        await harness.advance(5)
        await stopping
        assert harness.deleted == []
