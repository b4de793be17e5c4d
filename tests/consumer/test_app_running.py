"""A consumer as a library, over sockets: against Veil, and against a foreign SQS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import until_async
from veil import Consumer, ConsumerFailed, Heartbeat, Lease, Message, Reject, Release
from veil.testing import VeilServer


class Place:
    """A queue service with a queue in it."""

    def __init__(self, client: Any, endpoint: str, *, members: int = 12) -> None:
        self.client, self.endpoint = client, endpoint
        self.members = members  # of a group, in the test of order

    def queue(self, name: str, **attributes: str) -> str:
        return self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def counts(self, url: str) -> tuple[int, int]:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


@pytest.fixture
def aws_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def veil(veil_server: VeilServer, aws_environ: None) -> Place:
    return Place(veil_server.client(), veil_server.endpoint_url)


@pytest.fixture
def moto(aws_environ: None, moto_endpoint: str) -> Iterator[Place]:
    import boto3

    # So few that one receive takes all: a receive that waits there never learns that a group has become free.
    yield Place(
        boto3.client("sqs", endpoint_url=moto_endpoint, region_name="us-east-1"), moto_endpoint, members=4
    )
    reset = urllib.request.Request(f"{moto_endpoint}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset, timeout=60).close()


@pytest.fixture(params=["veil", "moto"])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(request.param)


# Long windows, renewed five times a second: the machine may stand still for a minute.
OFTEN = Heartbeat(timeout=60, threshold=59.5, interval=0.2)


async def test_messages_are_handled_once_and_deleted(place: Place, request: pytest.FixtureRequest):
    url = place.queue("orders")
    app, seen = Consumer("orders", endpoint=place.endpoint), []

    @app.handler
    async def handle(order: dict) -> None:
        seen.append(order["id"])

    for number in range(25):
        place.client.send_message(QueueUrl=url, MessageBody=json.dumps({"id": number}))
    async with app:
        await until_async(lambda: len(seen) >= 25)
    # moto's threads now and then give one message to two receives that come at once; Veil gives it to one.
    is_veil = request.node.callspec.params["place"] == "veil"
    assert sorted(seen if is_veil else set(seen)) == list(range(25))
    assert place.counts(url) == (0, 0)


async def test_a_message_is_renewed_for_as_long_as_it_is_handled(place: Place):
    url = place.queue("orders")
    app = Consumer("orders", endpoint=place.endpoint, renewal=OFTEN)
    begun: list[int] = []
    done: list[int] = []

    @app.handler
    async def handle(message: Message, lease: Lease) -> None:
        begun.append(message.receive_count)
        while lease.extensions < 3:
            await asyncio.sleep(0.01)
        done.append(message.receive_count)

    async with app:
        place.client.send_message(QueueUrl=url, MessageBody="x")
        await until_async(lambda: done)
    assert begun == done == [1]
    assert place.counts(url) == (0, 0)


async def test_a_failed_message_comes_again_and_a_hopeless_one_goes_to_the_dead_letters(place: Place):
    dead_url = place.queue("orders-dead")
    arn = place.client.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    url = place.queue("orders", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 10}))
    app, tries = Consumer("orders", endpoint=place.endpoint, on_failure=Release()), []

    @app.handler
    async def handle(body: str) -> None:
        tries.append(body)
        if body == "hopeless":
            raise Reject("no such customer")
        if tries.count(body) == 1:
            raise ValueError("the first time")

    async with app:
        place.client.send_message(QueueUrl=url, MessageBody="again")
        place.client.send_message(QueueUrl=url, MessageBody="hopeless")
        await until_async(lambda: sum(place.counts(url)) == 0)
    assert sorted(tries) == ["again", "again", "hopeless"]
    (dead,) = place.client.receive_message(QueueUrl=dead_url, MessageAttributeNames=["All"])["Messages"]
    assert dead["Body"] == "hopeless"
    assert dead["MessageAttributes"]["veil.reason"]["StringValue"] == "no such customer"


async def test_a_fifo_queue_is_handled_in_order(place: Place):
    url = place.queue("steps.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    app, seen = Consumer("steps.fifo", endpoint=place.endpoint), []

    @app.handler
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        seen.append((message.group, message.body))

    for number in range(place.members):
        for group in "ab":
            place.client.send_message(QueueUrl=url, MessageBody=f"{group}{number:02}", MessageGroupId=group)
    async with app:
        await until_async(lambda: len(seen) >= 2 * place.members)
    for group in "ab":
        assert [body for of, body in seen if of == group] == [
            f"{group}{number:02}" for number in range(place.members)
        ]


async def test_what_a_stopped_consumer_held_is_visible_at_once(place: Place):
    url = place.queue("orders", VisibilityTimeout="600")
    app = Consumer("orders", endpoint=place.endpoint, concurrency=2, prefetch=3, drain_timeout=0)
    begun: list[str] = []

    @app.handler
    async def handle(body: str) -> None:
        begun.append(body)
        await asyncio.sleep(600)

    for number in range(5):
        place.client.send_message(QueueUrl=url, MessageBody=str(number))
    async with app:
        await until_async(lambda: len(begun) == 2 and place.counts(url) == (0, 5))
    assert place.counts(url) == (5, 0)


async def test_a_waiting_receive_does_not_take_a_message_after_the_stop(veil: Place):
    url = veil.queue("orders")
    app = Consumer("orders", endpoint=veil.endpoint)

    @app.handler
    async def handle(body: str) -> None: ...

    for _ in range(10):
        async with app:
            pass
        veil.client.send_message(QueueUrl=url, MessageBody="x")
        assert veil.counts(url) == (1, 0)
        veil.client.purge_queue(QueueUrl=url)


async def test_a_queue_that_does_not_exist_is_a_failure_with_its_name(place: Place):
    app = Consumer("ordres", endpoint=place.endpoint)

    @app.handler
    async def handle(body: str) -> None: ...

    with pytest.raises(
        ConsumerFailed,
        match=r"queue ordres: .*(does not exist|NonExistentQueue).* \(at http://.* in us-east-1\)",
    ):
        async with app:
            pass


async def test_a_queue_that_is_deleted_under_it_stops_the_consumer(veil: Place):
    url = veil.queue("orders")
    app = Consumer("orders", endpoint=veil.endpoint)

    @app.handler
    async def handle(body: str) -> None: ...

    with pytest.raises(ConsumerFailed, match=r"queue orders: .*not exist"):
        async with app:
            veil.client.delete_queue(QueueUrl=url)
            with contextlib.suppress(ConsumerFailed):
                await asyncio.wait_for(app.wait(), 60)


async def test_sync_handlers_run_side_by_side_and_a_helper_process_keeps_their_leases(veil: Place):
    url = veil.queue("orders")
    app = Consumer("orders", endpoint=veil.endpoint, concurrency=4, helper_process=True, renewal=OFTEN)
    receives: list[int] = []
    side_by_side = threading.Barrier(4)

    @app.handler
    def handle(message: Message, lease: Lease) -> None:
        side_by_side.wait(60)
        while lease.extensions < 2:
            time.sleep(0.01)
        receives.append(message.receive_count)

    for number in range(4):
        veil.client.send_message(QueueUrl=url, MessageBody=str(number))
    async with app:
        await until_async(lambda: len(receives) == 4)
    assert receives == [1, 1, 1, 1]
    assert veil.counts(url) == (0, 0)


async def test_the_health_endpoint_answers_while_it_runs(veil: Place):
    url = veil.queue("orders")
    app = Consumer("orders", endpoint=veil.endpoint, health_port=0)

    @app.handler
    async def handle(body: str) -> None: ...

    def asked(path: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{app.health_port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()

    async with app:
        veil.client.send_message(QueueUrl=url, MessageBody="x")
        await until_async(lambda: sum(veil.counts(url)) == 0)
        assert await asyncio.to_thread(asked, "/healthz") == (200, "ok\n")
        assert await asyncio.to_thread(asked, "/readyz") == (200, "ok\n")
        status, page = await asyncio.to_thread(asked, "/metrics")
    assert status == 200
    assert "veil_consumer_messages_handled_total{handler=" in page
    assert app.health_port is None


async def test_a_health_port_that_is_taken_is_told(veil: Place):
    veil.queue("orders")
    taken = int(veil.endpoint.rsplit(":", 1)[1])
    app = Consumer("orders", endpoint=veil.endpoint, health_port=taken)

    @app.handler
    async def handle(body: str) -> None: ...

    with pytest.raises(
        ConsumerFailed, match=f"health_port={taken}: cannot listen on 127.0.0.1: Address already in use"
    ):
        async with app:
            pass


async def test_an_error_of_the_caller_is_not_covered_by_the_consumers(veil: Place):
    veil.queue("orders")
    app = Consumer("orders", endpoint=veil.endpoint)

    @app.handler
    async def handle(body: str) -> None: ...

    with pytest.raises(ZeroDivisionError):
        async with app:
            raise ZeroDivisionError
    assert not app.is_running


async def test_it_cannot_be_started_twice(veil: Place):
    veil.queue("orders")
    app = Consumer("orders", endpoint=veil.endpoint)

    @app.handler
    async def handle(body: str) -> None: ...

    async with app:
        with pytest.raises(RuntimeError, match="running already"):
            await app.start()
        with pytest.raises(RuntimeError, match="is running"):
            app.configure(concurrency=3)


async def test_run_within_an_event_loop_says_what_to_use_instead(veil: Place):
    app = Consumer("orders", endpoint=veil.endpoint)
    with pytest.raises(RuntimeError, match=r"an event loop is running in this thread.*`async with`"):
        app.run()


async def test_run_in_another_thread_says_what_to_use_instead(veil: Place):
    app = Consumer("orders", endpoint=veil.endpoint)
    with pytest.raises(RuntimeError, match=r"only the main thread can take signals.*`async with`"):
        await asyncio.to_thread(app.run)
