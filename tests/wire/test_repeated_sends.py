"""An SDK that got no answer sends the same call again, under the same invocation id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.http_stub import StubAnswer, StubRequest, http_stub, passed_on
from tests.wire.kit import Wire, read_json
from veil.testing import VeilServer

INVOCATION = "8a1a3c1e-3d2c-4b7e-9a58-6b3c7d1f0e55"


async def test_the_same_call_again_is_one_message_and_one_answer(wire: Wire) -> None:
    url = await wire.queue("q")
    given = {"QueueUrl": url, "MessageBody": "x"}
    answers = [
        read_json(await wire.post("SendMessage", given, amz_sdk_invocation_id=INVOCATION)) for _ in range(3)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert [one["Body"] for one in await wire.receive(url, MaxNumberOfMessages=10)] == ["x"]


async def test_a_batch_again_is_answered_entry_by_entry_like_the_first(wire: Wire) -> None:
    url = await wire.queue("q")
    entries = [
        {"Id": "a", "MessageBody": "1"},
        {"Id": "b", "MessageBody": "\ufffe"},
        {"Id": "c", "MessageBody": "3"},
    ]
    given = {"QueueUrl": url, "Entries": entries}
    first, again = [
        read_json(await wire.post("SendMessageBatch", given, amz_sdk_invocation_id=INVOCATION))
        for _ in range(2)
    ]
    assert first == again
    assert [one["Id"] for one in first["Failed"]] == ["b"]
    assert [one["Body"] for one in await wire.receive(url, MaxNumberOfMessages=10)] == ["1", "3"]


async def test_a_batch_again_after_the_size_limit_changed_tells_of_its_own_entries(wire: Wire) -> None:
    """What was refused the first time may be taken the second time, and the other way round."""
    for before, after in (("1024", "2048"), ("2048", "1024")):
        url = await wire.queue(f"from-{before}", MaximumMessageSize=before)
        bodies = {"a": "1", "b": "2" * 1_500, "c": "3"}
        given = {
            "QueueUrl": url,
            "Entries": [{"Id": entry_id, "MessageBody": body} for entry_id, body in bodies.items()],
        }
        await wire.post("SendMessageBatch", given, amz_sdk_invocation_id=INVOCATION)
        await wire.call("SetQueueAttributes", QueueUrl=url, Attributes={"MaximumMessageSize": after})
        again = read_json(await wire.post("SendMessageBatch", given, amz_sdk_invocation_id=INVOCATION))

        stored = {one["MessageId"]: one["Body"] for one in await wire.receive(url, MaxNumberOfMessages=10)}
        told = {one["Id"]: stored[one["MessageId"]] for one in again["Successful"]}
        assert told == {entry_id: bodies[entry_id] for entry_id in told}
        assert len(told) + len(again.get("Failed", [])) == 3


async def test_an_id_that_is_used_for_another_body_brings_no_other_answer(wire: Wire) -> None:
    url = await wire.queue("q")
    for body in ("one", "two"):
        read_json(
            await wire.post(
                "SendMessage", {"QueueUrl": url, "MessageBody": body}, amz_sdk_invocation_id=INVOCATION
            )
        )
    assert len(await wire.receive(url, MaxNumberOfMessages=10)) == 2


async def test_calls_without_an_id_are_always_new(wire: Wire) -> None:
    url = await wire.queue("q")
    for _ in range(2):
        await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    assert len(await wire.receive(url, MaxNumberOfMessages=10)) == 2


@pytest.fixture
def forgetful_proxy(veil_server: VeilServer) -> Iterator[str]:
    """Passes everything on and loses the first answer to each kind of send."""
    lost: set[str] = set()

    def forget(asked: StubRequest) -> StubAnswer | None:
        answer = passed_on(asked, veil_server.endpoint_url)
        if "Send" not in asked.action or asked.action in lost:
            return answer
        lost.add(asked.action)
        return None

    with http_stub(forget) as url:
        yield url


def test_boto3_retries_through_a_lost_answer_and_the_queue_has_one_message(
    veil_server: VeilServer, forgetful_proxy: str
) -> None:
    client: Any = boto3.client(
        "sqs",
        endpoint_url=forgetful_proxy,
        region_name="us-east-1",
        aws_access_key_id="veil",
        aws_secret_access_key="veil",
        config=Config(retries={"max_attempts": 3, "mode": "standard"}),
    )
    url = veil_server.client().create_queue(QueueName="retried")["QueueUrl"]
    sent = client.send_message(QueueUrl=url, MessageBody="once")
    assert sent["ResponseMetadata"]["RetryAttempts"] == 1
    found = veil_server.client().receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [(one["MessageId"], one["Body"]) for one in found] == [(sent["MessageId"], "once")]
