"""FIFO queues, dead letters and move tasks, as clients see them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from typing import Any

import pytest

from tests.wire.kit import Refused, Wire

ARN = "arn:aws:sqs:us-east-1:000000000000:"


async def test_a_fifo_message_shows_sequence_group_and_deduplication(wire: Wire) -> None:
    url = await wire.queue("q.fifo", ContentBasedDeduplication="true")
    first = await wire.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    again = await wire.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    second = await wire.call("SendMessage", QueueUrl=url, MessageBody="y", MessageGroupId="g")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert len(first["SequenceNumber"]) == 20
    assert first["SequenceNumber"] < second["SequenceNumber"]
    found = await wire.receive(url, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert [one["Body"] for one in found] == ["x", "y"]
    attributes = found[0]["Attributes"]
    assert attributes["SequenceNumber"] == first["SequenceNumber"]
    assert attributes["MessageGroupId"] == "g"
    assert attributes["MessageDeduplicationId"] == hashlib.sha256(b"x").hexdigest()


async def test_a_fifo_batch_keeps_its_order_and_answers_sequence_numbers(wire: Wire) -> None:
    url = await wire.queue("q.fifo", ContentBasedDeduplication="true")
    entries = [{"Id": str(i), "MessageBody": str(i), "MessageGroupId": "g"} for i in range(10)]
    sent = (await wire.call("SendMessageBatch", QueueUrl=url, Entries=entries))["Successful"]
    numbers = [one["SequenceNumber"] for one in sent]
    assert numbers == sorted(numbers)
    found = await wire.receive(url, MaxNumberOfMessages=10)
    assert [one["Body"] for one in found] == [str(i) for i in range(10)]


async def test_a_repeated_attempt_gets_the_same_receipts(wire: Wire) -> None:
    url = await wire.queue("q.fifo", ContentBasedDeduplication="true")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    first = await wire.receive(url, ReceiveRequestAttemptId="a")
    assert first
    assert await wire.receive(url, ReceiveRequestAttemptId="a") == first
    with pytest.raises(Refused) as caught:
        await wire.receive(url, ReceiveRequestAttemptId="a b")
    assert "for parameter ReceiveRequestAttemptId is invalid" in caught.value.message


async def dead_letters(wire: Wire, count: int = 1) -> tuple[str, str]:
    """URLs of a queue and of its dead-letter queue, which holds that many messages."""
    dead = await wire.queue("dead")
    redrive = json.dumps({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 1})
    source = await wire.queue("source", RedrivePolicy=redrive, VisibilityTimeout="0")
    for number in range(count):
        await wire.call("SendMessage", QueueUrl=source, MessageBody=str(number))
    for _ in range(2):
        for _ in range(count):
            await wire.receive(source, MaxNumberOfMessages=10)
    return source, dead


async def test_a_spent_message_shows_where_it_came_from(wire: Wire) -> None:
    source, dead = await dead_letters(wire)
    assert await wire.receive(source) == []
    (found,) = await wire.receive(dead, AttributeNames=["All"], VisibilityTimeout=0)
    assert found["Attributes"]["DeadLetterQueueSourceArn"] == ARN + "source"
    assert found["Attributes"]["ApproximateReceiveCount"] == "2"
    assert await wire.call("ListDeadLetterSourceQueues", QueueUrl=dead) == {"queueUrls": [source]}
    assert await wire.call("ListDeadLetterSourceQueues", QueueUrl=source) == {"queueUrls": []}


async def settled(wire: Wire, status: str) -> dict[str, Any]:
    for _ in range(200):
        (task,) = (await wire.call("ListMessageMoveTasks", SourceArn=ARN + "dead"))["Results"]
        if task["Status"] == status:
            found: dict[str, Any] = task
            return found
        await asyncio.sleep(0)
        wire.clock.advance(100)
    raise AssertionError(f"the task is {task['Status']}, not {status}")


async def test_a_move_task_brings_dead_letters_back(wire: Wire) -> None:
    source, _ = await dead_letters(wire, 3)
    handle = (await wire.call("StartMessageMoveTask", SourceArn=ARN + "dead"))["TaskHandle"]
    assert json.loads(base64.b64decode(handle))["sourceArn"] == ARN + "dead"
    done = await settled(wire, "COMPLETED")
    assert done["ApproximateNumberOfMessagesMoved"] == 3
    assert done["ApproximateNumberOfMessagesToMove"] == 3
    assert done["SourceArn"] == ARN + "dead"
    assert done["StartedTimestamp"] >= 1_700_000_000_000
    assert not {"TaskHandle", "DestinationArn", "MaxNumberOfMessagesPerSecond", "FailureReason"} & set(done)
    assert len(await wire.receive(source, MaxNumberOfMessages=10)) == 3


async def test_a_running_task_has_a_handle_and_can_be_cancelled_once(wire: Wire) -> None:
    await dead_letters(wire, 5)
    handle = (
        await wire.call(
            "StartMessageMoveTask",
            SourceArn=ARN + "dead",
            DestinationArn=ARN + "source",
            MaxNumberOfMessagesPerSecond=1,
        )
    )["TaskHandle"]
    (running,) = (await wire.call("ListMessageMoveTasks", SourceArn=ARN + "dead", MaxResults=10))["Results"]
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", handle)
    assert (running["DestinationArn"], running["MaxNumberOfMessagesPerSecond"]) == (ARN + "source", 1)
    with pytest.raises(Refused) as caught:
        await wire.call("StartMessageMoveTask", SourceArn=ARN + "dead")
    assert caught.value.message == (
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    )
    moved = await wire.call("CancelMessageMoveTask", TaskHandle=handle)
    assert moved["ApproximateNumberOfMessagesMoved"] < 5
    await settled(wire, "CANCELLED")
    with pytest.raises(Refused) as caught:
        await wire.call("CancelMessageMoveTask", TaskHandle=handle)
    assert caught.value.code == "InvalidParameterValue"


def a_handle(task_id: str, arn: str) -> str:
    return base64.b64encode(json.dumps({"taskId": task_id, "sourceArn": arn}).encode()).decode()


@pytest.mark.parametrize(
    ("action", "given", "code", "status", "message"),
    [
        (
            "StartMessageMoveTask",
            {},
            "MissingParameter",
            400,
            "The request must contain the parameter SourceArn.",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "none"},
            "ResourceNotFoundException",
            404,
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dead", "DestinationArn": ARN + "none"},
            "ResourceNotFoundException",
            404,
            "The resource that you specified for the DestinationArn parameter doesn't exist.",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "source"},
            "InvalidParameterValue",
            400,
            "Source queue must be configured as a Dead Letter Queue.",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": "dead"},
            "InvalidParameterValue",
            400,
            "You must use this format to specify the SourceArn: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>",
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dead", "MaxNumberOfMessagesPerSecond": 501},
            "InvalidParameterValue",
            400,
            "Value 501 for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: "
            "Must be between 1 and 500, if provided.",
        ),
        (
            "ListMessageMoveTasks",
            {"SourceArn": ARN + "dead", "MaxResults": 11},
            "InvalidParameterValue",
            400,
            "Value 11 for parameter MaxResults is invalid. Reason: Must be between 1 and 10, if provided.",
        ),
        (
            "ListMessageMoveTasks",
            {"SourceArn": ARN + "none"},
            "ResourceNotFoundException",
            404,
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
        (
            "CancelMessageMoveTask",
            {"TaskHandle": "nonsense"},
            "InvalidParameterValue",
            400,
            "Value for parameter TaskHandle is invalid.",
        ),
        (
            "CancelMessageMoveTask",
            {"TaskHandle": "x" * 100_000},
            "InvalidParameterValue",
            400,
            "Value for parameter TaskHandle is invalid.",
        ),
        (
            "CancelMessageMoveTask",
            {"TaskHandle": a_handle("d1e0ab44-1b8a-4a7b-8c0e-000000000000", ARN + "dead")},
            "ResourceNotFoundException",
            404,
            "Task does not exist.",
        ),
    ],
)
async def test_move_tasks_are_refused_in_these_words(
    wire: Wire, action: str, given: dict[str, Any], code: str, status: int, message: str
) -> None:
    await dead_letters(wire)
    with pytest.raises(Refused) as caught:
        await wire.call(action, **given)
    assert (caught.value.code, caught.value.status, caught.value.message) == (code, status, message)


async def test_a_queue_may_be_its_own_dead_letter_queue_and_goes_on_delivering(wire: Wire) -> None:
    url = await wire.queue("q")
    own = json.dumps({"deadLetterTargetArn": ARN + "q", "maxReceiveCount": 1}, separators=(",", ":"))
    await wire.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": own})
    other = await wire.queue("p")
    parameters = {"Attribute.1.Name": "RedrivePolicy", "Attribute.1.Value": own.replace(":q", ":p")}
    await wire.query("SetQueueAttributes", {"QueueUrl": other} | parameters)
    found = await wire.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert found["Attributes"] == {"RedrivePolicy": own}
    sources = await wire.call("ListDeadLetterSourceQueues", QueueUrl=url)
    assert sources["queueUrls"] == [url]

    await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    for times in range(1, 5):
        (message,) = await wire.receive(url, VisibilityTimeout=0, AttributeNames=["All"])
        assert message["Attributes"]["ApproximateReceiveCount"] == str(times)
        assert "DeadLetterQueueSourceArn" not in message["Attributes"]
    with pytest.raises(Refused, match="must be different queues") as caught:
        await wire.call("StartMessageMoveTask", SourceArn=ARN + "q", DestinationArn=ARN + "q")
    assert caught.value.code == "InvalidParameterValue"


@pytest.mark.parametrize("parameter", ["SourceArn", "DestinationArn"])
async def test_to_a_move_task_the_queue_of_another_account_does_not_exist(wire: Wire, parameter: str) -> None:
    await dead_letters(wire)
    given = {"SourceArn": ARN + "dead", parameter: "arn:aws:sqs:us-east-1:111111111111:dead"}
    text = f"The resource that you specified for the {parameter} parameter doesn't exist."
    for action in ("StartMessageMoveTask", "ListMessageMoveTasks"):
        if parameter == "DestinationArn" and action == "ListMessageMoveTasks":
            continue
        with pytest.raises(Refused) as caught:
            await wire.call(action, **given)
        assert (caught.value.status, caught.value.code) == (404, "ResourceNotFoundException")
        assert caught.value.message == text
        with pytest.raises(Refused) as caught:
            await wire.query(action, given)
        assert (caught.value.status, caught.value.code) == (404, "ResourceNotFoundException")
