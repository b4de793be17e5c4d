"""The harness that ships with the package: real rules, manual time, nothing hidden from the test."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from veil import Consumer, Lease, Message
from veil.client.api import Failure
from veil.testing import ConsumerHarness, NotSettled


async def test_a_message_that_is_sent_is_handled_and_deleted():
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(order: dict) -> None:
        seen.append(order)

    async with ConsumerHarness(app) as harness:
        await harness.send({"id": 7})
        await harness.settle()
        assert seen == [{"id": 7}]
        assert harness.deleted == ['{"id": 7}']
        assert await harness.visible() == await harness.in_flight() == []


async def test_time_passes_only_when_the_test_says_so():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(3_600)

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(3_599)  # a real hour would be longer than a test may take
        assert await harness.in_flight() == ["hello"]  # a lease of 30 s, renewed for an hour
        await harness.advance(1)
        assert harness.deleted == ["hello"]


async def test_a_stopped_process_is_the_clock_moved_alone():
    app, leases = Consumer("orders"), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        leases.append(lease)
        await harness.sleep(50)

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        harness.clock.advance(seconds=45)  # nobody was awake to renew
        await harness.settle()
        first, second = leases
        assert first.lost and not second.lost
        assert (first.token, second.token) == (1, 2)


async def test_settling_waits_for_handlers_in_threads():
    app, seen = Consumer("orders"), []

    @app.handler
    def handle(body: str) -> None:
        time.sleep(0.05)
        seen.append(body)

    async with ConsumerHarness(app) as harness:
        await harness.send("one")
        await harness.settle()
        assert seen == harness.deleted == ["one"]


async def test_settling_can_leave_handlers_at_work_and_says_who_is_when_it_cannot(monkeypatch):
    app, free = Consumer("orders"), asyncio.Event()

    @app.handler
    async def handle(message: Message) -> None:
        await free.wait()

    async with ConsumerHarness(app) as harness:
        sent = await harness.send()
        await harness.settle(running=1)
        with monkeypatch.context() as impatient, pytest.raises(NotSettled, match=sent):
            impatient.setattr("veil.testing.harness._PATIENCE_S", 0.1)
            await harness.settle()
        free.set()
        await harness.settle()
        assert harness.running == 0


async def test_a_delayed_message_comes_when_its_delay_ends():
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)

    async with ConsumerHarness(app) as harness:
        await harness.send(delay_s=60)
        await harness.advance(59)
        assert seen == []
        await harness.advance(1)
        await harness.settle()
        assert seen == ["hello"]


async def test_calls_can_be_made_to_fail():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        harness.fail("delete", Failure.THROTTLED)
        await harness.send()
        await harness.settle()
        assert harness.deleted == []
        await harness.advance(3)
        assert harness.deleted == ["hello"]


async def test_a_harness_can_stop_its_consumer_and_start_it_again():
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        await harness.send()
        assert await harness.visible() == ["hello"]
        await harness.start()
        await harness.settle()
        assert seen == ["hello"]


async def test_a_harness_opens_no_port_and_writes_no_journal(tmp_path: Path):
    app = Consumer("orders", health_port=0, journal=str(tmp_path / "journal"))
    given = app.settings

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        assert harness.deleted == ["hello"]
        assert app.health_port is None
    assert not (tmp_path / "journal").exists()
    assert app.settings == given


async def test_what_handlers_send_to_their_own_queue_stays_in_the_harness():
    app = Consumer("orders", endpoint="http://127.0.0.1:1")  # where nobody listens

    @app.handler(type="first")
    async def first(message: Message) -> None:
        await app.asend({"id": 2}, type="second", attributes={"tenant": "acme"}, delay=60)

    @app.handler(type="second")
    def second(order: dict, message: Message) -> None:
        app.send(f"{order['id']} for {message.attributes['tenant'].value}", type="third")

    @app.handler
    async def others(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.send("1", type="first")
        await harness.settle()
        assert harness.deleted == ["1"]
        await harness.advance(60)
        await harness.settle()
        assert set(harness.deleted) == {"1", '{"id":2}', "2 for acme"}


@pytest.mark.parametrize(
    "queue",
    [
        "arn:aws:sqs:eu-west-1:123456789012:orders",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
        "orders",
    ],
)
async def test_a_queue_may_be_named_as_it_is_where_the_consumer_is_used(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "of-another-machine")
    app = Consumer(queue, endpoint="https://sqs.eu-west-1.amazonaws.com", region="eu-west-1")

    @app.handler
    async def handle(body: str) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.send("here")
        await harness.settle()
        assert harness.deleted == ["here"]
