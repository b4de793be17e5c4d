"""Sending with `veil.Queue`: against a real server, and against one that breaks off after it has stored."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import multiprocessing
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pydantic
import pytest

from tests.http_stub import StubAnswer, StubRequest, http_stub, passed_on
from tests.waiting import until_async
from veil import Consumer, Outgoing, Queue, SendFailed
from veil.client.api import ApiError, Failure, RetryBackoff
from veil.client.client import SqsClient
from veil.client.queue import _Sender, _Waiting
from veil.testing.process import VeilServer


@pytest.fixture(scope="module")
def server() -> Iterator[VeilServer]:
    with VeilServer() as running:
        yield running


@pytest.fixture
def sqs(server: VeilServer) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="veil",
        aws_secret_access_key="veil",
    )


@pytest.fixture
def url(sqs: Any, request: pytest.FixtureRequest) -> str:
    name = f"q-{abs(hash(request.node.name))}"
    return str(sqs.create_queue(QueueName=name)["QueueUrl"])


def queue_at(url: str, **settings: Any) -> Queue:
    endpoint = url.rsplit("/", 2)[0]
    return Queue(url.rsplit("/", 1)[1], endpoint=endpoint, **settings)


def everything_in(sqs: Any, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        some = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
        if not some.get("Messages"):
            return found
        found += some["Messages"]


@dataclasses.dataclass
class Order:
    id: int


class Model(pydantic.BaseModel):
    id: int


@pytest.mark.parametrize("payload", [{"id": 7}, Order(7), Model(id=7)], ids=["dict", "dataclass", "pydantic"])
def test_a_payload_is_sent_as_json_with_its_type_and_attributes(sqs: Any, url: str, payload: Any) -> None:
    with queue_at(url) as queue:
        sent = queue.send(payload, type="order.paid", attributes={"tries": 3, "raw": b"\x00", "by": "shop"})
    (message,) = everything_in(sqs, url)
    assert message["MessageId"] == sent
    assert json.loads(message["Body"]) == {"id": 7}
    values = {
        name: value.get("StringValue", value.get("BinaryValue"))
        for name, value in message["MessageAttributes"].items()
    }
    assert values == {"type": "order.paid", "tries": "3", "raw": b"\x00", "by": "shop"}


def test_text_is_sent_as_it_is_and_may_be_delayed(sqs: Any, url: str) -> None:
    with queue_at(url) as queue:
        queue.send("cat.jpg")
        queue.send("later", delay=timedelta(minutes=5))
    assert [message["Body"] for message in everything_in(sqs, url)] == ["cat.jpg"]
    said = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert said["ApproximateNumberOfMessagesDelayed"] == "1"


def requests(server: VeilServer, action: str) -> float:
    with urllib.request.urlopen(f"{server.endpoint_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    wanted = f'veil_requests_total{{action="{action}",status="2xx"}} '
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def test_what_is_sent_together_travels_by_tens(server: VeilServer, sqs: Any, url: str) -> None:
    before = requests(server, "SendMessageBatch")
    with queue_at(url) as queue:
        ids = queue.send_many({"id": number} for number in range(100))
    # The first turns of the loop find fewer than ten.
    assert requests(server, "SendMessageBatch") - before <= 20
    found = everything_in(sqs, url)
    assert {message["MessageId"] for message in found} == set(ids)
    by_id = {message["MessageId"]: json.loads(message["Body"])["id"] for message in found}
    assert [by_id[each] for each in ids] == list(range(100))


def test_coroutines_and_threads_send_through_one_queue(sqs: Any, url: str) -> None:
    async def many() -> list[str]:
        async with queue_at(url) as queue:
            sent = await asyncio.gather(*(queue.asend(str(number)) for number in range(30)))
            return sent + await queue.asend_many(["a", "b"])

    ids = asyncio.run(many())
    with queue_at(url) as queue:
        threads = [threading.Thread(target=queue.send, args=(f"thread {number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = everything_in(sqs, url)
    assert len(found) == 40
    assert set(ids) <= {message["MessageId"] for message in found}


class GatedClient:
    """Answers its first batch only when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    async def queue_url(self, name: str) -> str:
        return name

    async def send_batch(self, url: str, entries: list[Any], *, invocation: str) -> list[str]:
        self.asked.set()
        await asyncio.to_thread(self.answer.wait)
        return [entry["MessageBody"] for entry in entries]

    async def close(self) -> None:
        pass


def test_whoever_gives_up_waiting_for_a_send_does_not_spoil_it_for_those_beside_it() -> None:
    client = GatedClient()

    async def three() -> list[str | BaseException]:
        queue = Queue("orders")
        queue._client_for = lambda: client  # type: ignore[assignment, return-value]
        sends = [asyncio.ensure_future(queue.asend(body)) for body in "abc"]
        await asyncio.to_thread(client.asked.wait)
        sends[1].cancel()
        client.answer.set()
        async with asyncio.timeout(60):
            found = await asyncio.gather(*sends, return_exceptions=True)
        await asyncio.to_thread(queue.close)
        return found

    first, second, third = asyncio.run(three())
    assert (first, third) == ("a", "c")
    assert isinstance(second, asyncio.CancelledError)


def test_send_in_a_coroutine_says_what_to_call_instead(url: str) -> None:
    async def wrong() -> None:
        queue_at(url).send("x")

    with pytest.raises(RuntimeError, match="asend"):
        asyncio.run(wrong())


def test_groups_keep_their_order(sqs: Any, server: VeilServer) -> None:
    url = sqs.create_queue(
        QueueName="steps.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    )["QueueUrl"]
    with queue_at(url) as queue:
        queue.send_many(Outgoing(str(number), group="one") for number in range(45))
        with pytest.raises(ValueError, match=r"steps\.fifo is a FIFO queue, expected a message group"):
            queue.send("nobody's")
    bodies = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            bodies.append(message["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert bodies == [str(number) for number in range(45)]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"payload": b"raw"}, TypeError, "body is text"),
        ({"payload": object()}, TypeError, "object: cannot be sent as JSON"),
        ({"payload": "x" * (1 << 20) + "x"}, ValueError, "expected at most 1,048,576"),
        ({"payload": "x", "delay": 901}, ValueError, "delay=901: expected whole seconds from 0 to 900"),
        ({"payload": "x", "delay": "5"}, ValueError, "delay='5': expected whole seconds from 0 to 900"),
        ({"payload": "x", "attributes": {"a": None}}, TypeError, "attribute a=None: expected text"),
        (
            {"payload": "x", "type": "t", "attributes": {str(n): "" for n in range(10)}},
            ValueError,
            "11 attributes",
        ),
    ],
)
def test_what_cannot_be_sent_is_said_before_it_travels(
    url: str, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with queue_at(url) as queue, pytest.raises(error, match=words):
        queue.send(**arguments)


def test_a_queue_that_does_not_exist_and_a_message_that_is_refused_are_named(
    server: VeilServer, url: str
) -> None:
    with (
        Queue("nowhere", endpoint=server.endpoint_url) as queue,
        pytest.raises(ApiError, match=r"(NonExistentQueue|QueueDoesNotExist): queue nowhere: ") as raised,
    ):
        queue.send("x")
    assert raised.value.failure is Failure.FATAL
    with (
        queue_at(url) as queue,
        pytest.raises(SendFailed, match="1 of 3 messages were not sent; number 1") as some,
    ):
        queue.send_many(["good", "bad \x00", "good too"])
    assert list(some.value.errors) == [1]
    assert [each is not None for each in some.value.ids] == [True, False, True]


def test_of_many_none_is_sent_where_one_cannot_be(sqs: Any, url: str) -> None:
    def some() -> Iterator[Any]:
        yield from ("one", "two")
        yield "x" * (1 << 20) + "y"

    with (
        queue_at(url) as queue,
        pytest.raises(
            ValueError, match="message number 2, so that none was sent: a message of 1,048,577 bytes"
        ),
    ):
        queue.send_many(some())
    assert everything_in(sqs, url) == []


def test_a_message_for_which_a_whole_call_is_refused_does_not_spoil_those_beside_it(
    sqs: Any, server: VeilServer
) -> None:
    url = sqs.create_queue(QueueName="beside.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    with queue_at(url) as queue:
        messages = [Outgoing(str(each), group="g", deduplication_id=str(each)) for each in range(4)]
        messages[1] = dataclasses.replace(messages[1], deduplication_id=None)
        with pytest.raises(
            SendFailed, match=r"1 of 4 messages were not sent; number 1: .*MessageDeduplicationId"
        ):
            queue.send_many(messages)
    assert [each["Body"] for each in everything_in(sqs, url)] == ["0", "2", "3"]


@pytest.mark.parametrize("wrong", [{"timeout": "5"}, {"timeout": None}, {"timeout": 0}])
def test_a_timeout_that_is_none_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"timeout=.*: expected more than 0 seconds"):
        Queue("orders", **wrong)


def test_those_behind_many_wait_no_longer_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tries = [100.0], []

    async def never(client: SqsClient, name: str) -> str:
        now[0] += 20.0
        tries.append(name)
        raise ApiError(Failure.UNREACHABLE, "", "no answer")

    monkeypatch.setattr(SqsClient, "queue_url", never)
    monkeypatch.setattr("veil.client.queue.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("veil.client.queue._BACKOFF", RetryBackoff(first_s=0.0, max_s=0.0, throttled=1.0))
    with (
        Queue("steps.fifo", endpoint="http://127.0.0.1:1") as queue,
        pytest.raises(SendFailed, match="500 of 500 messages were not sent; number 0: no answer"),
    ):
        queue.send_many(Outgoing("x", group=str(number)) for number in range(500))
    assert len(tries) == 2


def test_an_answer_that_was_lost_does_not_store_the_message_twice(
    server: VeilServer, sqs: Any, url: str
) -> None:
    sends = 0

    def forget_twice(asked: StubRequest) -> StubAnswer | None:
        nonlocal sends
        answer = passed_on(asked, server.endpoint_url)
        sends += asked.action == "SendMessageBatch"
        return None if asked.action == "SendMessageBatch" and sends <= 2 else answer

    with http_stub(forget_twice) as endpoint:
        with Queue(url.rsplit("/", 1)[1], endpoint=endpoint) as queue:
            sent = queue.send("once")
        assert sends == 3
    assert [message["MessageId"] for message in everything_in(sqs, url)] == [sent]


def test_a_server_that_is_away_is_tried_for_as_long_as_was_said() -> None:
    with (
        Queue("orders", endpoint="http://127.0.0.1:1", timeout=0.5) as queue,
        pytest.raises(ApiError) as raised,
    ):
        queue.send("x")
    assert raised.value.failure is Failure.UNREACHABLE


def test_each_message_is_tried_for_as_long_as_was_said_also_beside_an_older_one() -> None:
    class AwayAtFirst:
        calls = 0

        async def queue_url(self, name: str) -> str:
            return name

        async def send_batch(self, url: str, entries: list[Any], *, invocation: str) -> list[str]:
            self.calls += 1
            if self.calls == 1:
                raise ApiError(Failure.UNREACHABLE, "", "away")
            return ["an-id"] * len(entries)

        async def close(self) -> None: ...

    sender = _Sender("orders", AwayAtFirst)  # type: ignore[arg-type]
    older = _Waiting({}, 2, time.monotonic())
    younger = _Waiting({}, 2, time.monotonic() + 3_600)
    sender._thread.run(sender._send([older, younger]))
    sender.close()
    with pytest.raises(ApiError, match="away"):
        older.future.result(0)
    assert younger.future.result(0) == "an-id"


def send_in_child(queue: Queue) -> None:
    queue.send("child")


def close_and_send_in_child(queue: Queue) -> None:
    queue.close()
    send_in_child(queue)


@pytest.mark.parametrize("work", [send_in_child, close_and_send_in_child])
def test_a_child_of_fork_sends_on_its_own(sqs: Any, url: str, work: Callable[[Queue], None]) -> None:
    with queue_at(url) as queue:
        queue.send("parent")
        child = multiprocessing.get_context("fork").Process(target=work, args=(queue,), daemon=True)
        child.start()
        child.join(120)
        assert child.exitcode == 0
        queue.send("parent again")
    assert {message["Body"] for message in everything_in(sqs, url)} == {"parent", "child", "parent again"}


def test_a_consumer_sends_to_its_own_queue(sqs: Any, url: str) -> None:
    app = Consumer(url, endpoint=url.rsplit("/", 2)[0])
    handled: list[dict[str, Any]] = []

    @app.handler
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order)
        if order["id"] < 3:
            await app.asend({"id": order["id"] + 1})

    async def until_three() -> None:
        async with app:
            await until_async(lambda: len(handled) >= 3)

    app.send({"id": 1})
    asyncio.run(until_three())
    assert [order["id"] for order in handled] == [1, 2, 3]
