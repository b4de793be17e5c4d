"""The client against real services: Veil, Veil with keys, and moto's server as a foreign SQS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import uvloop

from tests.consumer.sqs_kit import client_of, failure_of, forget_aws
from veil.client.api import ApiError, Attribute, Failure, RawMessage
from veil.client.client import SqsClient
from veil.client.credentials import Credentials
from veil.core.attempt import GIVEN_BACK, HEADER_BYTES_MAX, ReportedOutcome, write_header
from veil.testing import VeilServer

KEY = Credentials("AKIDCONSUMER", "s3cr3t/with+signs")


@dataclass(frozen=True, slots=True)
class Service:
    """A service to talk to, with a boto3 client of it for what a consumer does not do."""

    name: str
    endpoint: str
    boto: Any
    client: SqsClient

    def queue(self, name: str = "orders", **attributes: str) -> str:
        url: str = self.boto.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[VeilServer]:
    with VeilServer("--store", "memory", environ={"VEIL_KEYS": f"{KEY.key_id}:{KEY.secret}"}) as server:
        yield server


@pytest.fixture(params=["veil", "veil with keys", "moto"])
async def service(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Service]:
    forget_aws(monkeypatch, tmp_path)
    match request.param:
        case "veil":
            endpoint = request.getfixturevalue("veil_server").endpoint_url
        case "veil with keys":
            endpoint = request.getfixturevalue("keyed_server").endpoint_url
        case _:
            endpoint = request.getfixturevalue("moto_endpoint")
    boto = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY.key_id,
        aws_secret_access_key=KEY.secret,
    )
    async with client_of(endpoint, credentials=KEY) as client:
        yield Service(request.param, endpoint, boto, client)
    for url in boto.list_queues().get("QueueUrls", ()):
        boto.delete_queue(QueueUrl=url)
    boto.close()


async def test_a_message_keeps_everything_on_its_way(service: Service) -> None:
    url = service.queue()
    attributes = {
        "text": Attribute.of("String", "grüße"),
        "count": Attribute.of("Number.int", "42"),
        "blob": Attribute.of("Binary", bytes(range(256))),
    }
    body = 'a "body"\r\n\twith é, \U0001f600 and \\'
    sent_id = await service.client.send(url, body, attributes=attributes)
    (message,) = await service.client.receive(url, count=10, wait_s=0)
    assert (message.message_id, message.body) == (sent_id, body)
    assert message.attributes == attributes
    assert message.receive_count == 1
    assert message.group is None
    assert int(message.system["SentTimestamp"]) > 1_700_000_000_000
    # Veil alone promises a grace after its own trouble.
    assert message.grace_s == (0 if service.name == "moto" else 15)
    assert await service.client.delete(url, [message.receipt]) == [None]


async def test_a_queue_is_found_by_name_url_and_arn(service: Service) -> None:
    url = service.queue(VisibilityTimeout="77")
    client = service.client
    assert await client.queue_url("orders") == url
    assert await client.queue_url(url) == url
    attributes = await client.attributes(url)
    assert attributes["VisibilityTimeout"] == "77"
    assert await client.queue_url(attributes["QueueArn"]) == url


async def test_a_queue_that_is_not_there_is_fatal(service: Service) -> None:
    url = service.queue() + "-other"
    client = service.client
    for call in (
        client.queue_url("orders-other"),
        client.attributes(url),
        client.receive(url, count=1, wait_s=0),
        client.delete(url, ["r"]),
        client.extend(url, [("r", 1)]),
        client.send(url, "b"),
    ):
        assert (await failure_of(call))[0] is Failure.FATAL


async def test_ten_are_received_extended_released_and_deleted_in_one_call_each(service: Service) -> None:
    url, client = service.queue(), service.client
    for at in range(10):
        await client.send(url, f"b{at}")
    messages = await receive_all(client, url, 10)
    assert sorted(message.body for message in messages) == sorted(f"b{at}" for at in range(10))
    receipts = [message.receipt for message in messages]
    assert await client.extend(url, [(receipt, 100) for receipt in receipts]) == [None] * 10
    assert await client.receive(url, count=10, wait_s=0) == []
    # What came of the attempts goes with the call, as much of it as there may be, and is nothing to a foreign SQS.
    reported = [
        ReportedOutcome("failed", "shop.NoStock", f"none left of {at}: ∅", "é" * 9_000) for at in range(9)
    ]
    assert len(write_header({str(at): each for at, each in enumerate(reported)})) > HEADER_BYTES_MAX * 0.6
    released = await client.extend(
        url, [(receipt, 0) for receipt in receipts], reported=[*reported, GIVEN_BACK]
    )
    assert released == [None] * 10
    again = await receive_all(client, url, 10)
    assert {message.receive_count for message in again} == {2}
    assert (
        await client.delete(url, [message.receipt for message in again], reported=[None, *reported])
        == [None] * 10
    )
    counts = await client.attributes(url)
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"


async def test_veil_gives_and_takes_more_than_ten_in_one_call(service: Service) -> None:
    url, client = service.queue(), service.client
    for at in range(25):
        await client.send(url, f"b{at}")
    assert client.bulk_max == 10
    first = await client.receive(url, count=1, wait_s=0)
    if service.name == "moto":
        assert client.bulk_max == 10
        return
    assert client.bulk_max == 100
    messages = first + await client.receive(url, count=100, wait_s=0)
    assert len(messages) == 25
    reported = [
        None,
        *(ReportedOutcome("failed", "shop.NoStock", f"none left of {at}", "way") for at in range(24)),
    ]
    assert (
        await client.delete(url, [message.receipt for message in messages], reported=reported) == [None] * 25
    )


async def receive_all(client: SqsClient, url: str, count: int) -> list[RawMessage]:
    found: list[RawMessage] = []
    while len(found) < count:
        found += await client.receive(url, count=10, wait_s=1, visibility_s=60)
    return found


def failures(results: list[ApiError | None]) -> list[Failure | None]:
    return [result.failure if result is not None else None for result in results]


async def test_each_entry_fails_for_its_own_reason(service: Service) -> None:
    url, client = service.queue(), service.client
    for body in ("kept", "gone"):
        await client.send(url, body)
    kept, gone = await receive_all(client, url, 2)
    await client.delete(url, [gone.receipt])
    results = await client.extend(url, [(kept.receipt, 30), (gone.receipt, 30), ("no receipt", 30)])
    assert failures(results) == [None, Failure.LOST, Failure.LOST]


async def test_a_lease_that_cannot_be_made_longer_is_told_apart_from_a_lost_one(service: Service) -> None:
    url, client = service.queue(), service.client
    await client.send(url, "b")
    (message,) = await receive_all(client, url, 1)
    await asyncio.sleep(0.01)  # the twelve hours count from the receive, in milliseconds
    change = client.extend(url, [(message.receipt, 43_200)])
    if service.name == "moto":  # fails the whole batch for one entry
        assert (await failure_of(change))[0] is Failure.CAPPED
    else:
        assert failures(await change) == [Failure.CAPPED]


async def test_a_long_poll_ends_when_a_message_comes(service: Service) -> None:
    url, client = service.queue(), service.client
    poll = asyncio.create_task(client.receive(url, count=1, wait_s=20))
    await asyncio.sleep(0)
    await client.send(url, "b")
    (message,) = await asyncio.wait_for(poll, 60)
    assert message.body == "b"


async def test_a_fifo_group_comes_with_its_name_and_in_order(service: Service) -> None:
    url, client = service.queue("orders.fifo", FifoQueue="true"), service.client
    for body in ("1", "2", "3"):
        await client.send(url, body, group="g", deduplication_id=body)
    first = await client.send(url, "1", group="g", deduplication_id="1")
    messages = await client.receive(url, count=10, wait_s=0, visibility_s=30, attempt_id="attempt-1")
    assert [(message.body, message.group) for message in messages] == [("1", "g"), ("2", "g"), ("3", "g")]
    if service.name != "moto":  # which gives every send an id of its own
        assert first == messages[0].message_id


async def test_what_the_service_refuses_is_refused_in_its_words(veil_server: VeilServer) -> None:
    boto = veil_server.client()
    url = boto.create_queue(QueueName="orders")["QueueUrl"]
    boto.close()
    async with client_of(veil_server.endpoint_url) as client:
        failure, words = await failure_of(client.send(url, "b", delay_s=9999))
    assert failure is Failure.REFUSED
    assert "DelaySeconds" in words


async def test_a_wrong_secret_and_an_unknown_key_are_fatal(keyed_server: VeilServer) -> None:
    for wrong in (Credentials(KEY.key_id, "other"), Credentials("AKIDNOBODY", KEY.secret)):
        async with client_of(keyed_server.endpoint_url, credentials=wrong) as client:
            assert (await failure_of(client.queue_url("orders")))[0] is Failure.FATAL


async def test_a_clock_that_is_wrong_is_no_reason_to_stop_for_good(keyed_server: VeilServer) -> None:
    async with client_of(keyed_server.endpoint_url, credentials=KEY, wall_ms=lambda: 10**12) as client:
        failure, words = await failure_of(client.delete("q", ["r"]))
    assert failure is Failure.UNREACHABLE
    assert "Signature expired" in words


async def test_nothing_needs_to_be_set_up_for_a_veil_on_this_machine(
    veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forget_aws(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", veil_server.endpoint_url)
    boto = veil_server.client()
    url = boto.create_queue(QueueName="orders")["QueueUrl"]
    boto.close()
    client = SqsClient()
    assert await client.queue_url("orders") == url
    await client.close()


async def test_a_cancelled_receive_hides_nothing(veil_server: VeilServer) -> None:
    boto = veil_server.client()
    url = boto.create_queue(QueueName="orders")["QueueUrl"]
    boto.close()
    async with client_of(veil_server.endpoint_url) as client, client_of(veil_server.endpoint_url) as other:
        for at in range(40):
            poll = asyncio.create_task(client.receive(url, count=1, wait_s=20))
            send = asyncio.create_task(other.send(url, f"b{at}"))
            await asyncio.sleep(0.0002 * at)  # somewhere between the request and its answer
            poll.cancel()
            await send
            taken = await asyncio.gather(poll, return_exceptions=True)
            if isinstance(taken[0], list) and taken[0]:
                (message,) = taken[0]
            else:
                (message,) = await other.receive(url, count=1, wait_s=20)  # less than a lease
            assert message.body == f"b{at}"
            assert await other.delete(url, [message.receipt]) == [None]


def test_it_works_on_uvloop_as_well(veil_server: VeilServer) -> None:
    boto = veil_server.client()
    url = boto.create_queue(QueueName="orders")["QueueUrl"]
    boto.close()

    async def life() -> list[ApiError | None]:
        async with client_of(veil_server.endpoint_url) as client:
            idle = asyncio.create_task(client.receive(url, count=1, wait_s=20))
            await asyncio.sleep(0.05)
            idle.cancel()
            await asyncio.gather(idle, return_exceptions=True)
            await client.send(url, "b")
            (message,) = await client.receive(url, count=1, wait_s=5)
            return await client.delete(url, [message.receipt])

    assert uvloop.run(life()) == [None]
