"""Queue attributes: what was set is read back, in one normal form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.wire.kit import Refused, Wire

ARN = "arn:aws:sqs:us-east-1:000000000000:"
ALWAYS = {
    "VisibilityTimeout": "30",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
    "CreatedTimestamp": "1700000000",
    "LastModifiedTimestamp": "1700000000",
}


async def attributes(wire: Wire, url: str, *names: str) -> dict[str, str]:
    found = await wire.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names or ["All"]))
    return found.get("Attributes", {})


async def test_all_on_a_standard_queue_has_neither_fifo_attributes_nor_what_is_not_set(wire: Wire) -> None:
    url = await wire.queue("q")
    assert await attributes(wire, url) == ALWAYS | {"QueueArn": ARN + "q"}


async def test_all_on_a_fifo_queue_has_the_four_fifo_attributes(wire: Wire) -> None:
    url = await wire.queue("q.fifo")
    assert await attributes(wire, url) == ALWAYS | {
        "QueueArn": ARN + "q.fifo",
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }


async def test_a_known_name_without_a_value_is_left_out(wire: Wire) -> None:
    url = await wire.queue("q")
    assert await attributes(wire, url, "Policy", "FifoQueue", "DelaySeconds") == {"DelaySeconds": "0"}


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("VisibilityTimeout", "0", "0"),
        ("VisibilityTimeout", "43200", "43200"),
        ("DelaySeconds", "900", "900"),
        ("MaximumMessageSize", "1024", "1024"),
        ("MessageRetentionPeriod", "60", "60"),
        ("MessageRetentionPeriod", "1209600", "1209600"),
        ("ReceiveMessageWaitTimeSeconds", "20", "20"),
        ("SqsManagedSseEnabled", "False", "false"),
        ("SqsManagedSseEnabled", "True", "true"),
        ("KmsMasterKeyId", "alias/aws/sqs", "alias/aws/sqs"),
        ("KmsDataKeyReusePeriodSeconds", "60", "60"),
        ("KmsDataKeyReusePeriodSeconds", "300", None),
        ("RedriveAllowPolicy", '{"redrivePermission" : "denyAll"}', '{"redrivePermission":"denyAll"}'),
        (
            "RedriveAllowPolicy",
            json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [ARN + "a"]}),
            '{"redrivePermission":"byQueue","sourceQueueArns":["' + ARN + 'a"]}',
        ),
        (
            "RedrivePolicy",
            json.dumps({"maxReceiveCount": "5", "deadLetterTargetArn": ARN + "dead"}),
            '{"deadLetterTargetArn":"' + ARN + 'dead","maxReceiveCount":5}',
        ),
    ],
)
async def test_what_was_set_is_read_back(wire: Wire, name: str, given: str, read: str | None) -> None:
    await wire.queue("dead")
    created = await wire.queue("created", **{name: given})
    changed = await wire.queue("changed")
    await wire.call("SetQueueAttributes", QueueUrl=changed, Attributes={name: given})
    for url in (created, changed):
        assert (await attributes(wire, url)).get(name) == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VisibilityTimeout", "-1"),
        ("VisibilityTimeout", "43201"),
        ("VisibilityTimeout", ""),
        ("VisibilityTimeout", "9" * 5_000),
        ("DelaySeconds", "901"),
        ("MaximumMessageSize", "1023"),
        ("MaximumMessageSize", "1048577"),
        ("MessageRetentionPeriod", "59"),
        ("MessageRetentionPeriod", "1209601"),
        ("ReceiveMessageWaitTimeSeconds", "21"),
        ("KmsDataKeyReusePeriodSeconds", "59"),
        ("SqsManagedSseEnabled", "yes"),
        ("Policy", "nonsense"),
    ],
)
async def test_a_value_out_of_range_is_an_invalid_attribute_value(wire: Wire, name: str, value: str) -> None:
    url = await wire.queue("q")
    for action, given in (
        ("CreateQueue", {"QueueName": "new", "Attributes": {name: value}}),
        ("SetQueueAttributes", {"QueueUrl": url, "Attributes": {name: value}}),
    ):
        with pytest.raises(Refused) as caught:
            await wire.call(action, **given)
        assert (caught.value.code, caught.value.status) == ("InvalidAttributeValue", 400)
        assert f"the parameter {name}." in caught.value.message


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("nonsense", "Redrive policy is not a valid JSON map."),
        ("[]", "Redrive policy is not a valid JSON map."),
        ("[" * 5_000, "Redrive policy is not a valid JSON map."),
        ({"maxReceiveCount": 1}, "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
        ({"deadLetterTargetArn": ARN + "dead"}, "mandatory attribute: maxReceiveCount."),
        ({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 0}, "valid values are from 1 to 1000"),
        ({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 1001}, "valid values are from 1 to 1000"),
        ({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": True}, "valid values are from 1 to 1000"),
        ({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": "x"}, "valid values are from 1 to 1000"),
        (
            {"deadLetterTargetArn": 5, "maxReceiveCount": 1},
            "Must have the ARN of a queue as deadLetterTargetArn.",
        ),
        ({"deadLetterTargetArn": ARN + "none", "maxReceiveCount": 1}, "Dead letter target does not exist."),
        ({"deadLetterTargetArn": ARN + "dead.fifo", "maxReceiveCount": 1}, "must be same type of queue"),
    ],
)
async def test_a_redrive_policy_that_cannot_work_is_an_invalid_parameter(
    wire: Wire, policy: Any, reason: str
) -> None:
    await wire.queue("dead")
    await wire.queue("dead.fifo")
    url = await wire.queue("q")
    text = policy if isinstance(policy, str) else json.dumps(policy)
    with pytest.raises(Refused) as caught:
        await wire.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": text})
    assert caught.value.code == "InvalidParameterValue"
    assert "for parameter RedrivePolicy is invalid. Reason: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({}, "Must have a redrivePermission: allowAll, denyAll or byQueue."),
        ({"redrivePermission": "byQueue"}, "Must have sourceQueueArns with the redrivePermission byQueue."),
        (
            {"redrivePermission": "denyAll", "sourceQueueArns": [ARN + "q"]},
            "May have sourceQueueArns only with the redrivePermission byQueue.",
        ),
    ],
)
async def test_a_redrive_allow_policy_is_refused_in_the_words_that_it_uses(
    wire: Wire, policy: Any, reason: str
) -> None:
    with pytest.raises(Refused) as caught:
        await wire.queue("q", RedriveAllowPolicy=json.dumps(policy))
    assert caught.value.message.endswith(f" for parameter RedriveAllowPolicy is invalid. Reason: {reason}")


async def test_an_empty_text_removes_policies_and_keys(wire: Wire) -> None:
    await wire.queue("dead")
    redrive = json.dumps({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 3})
    url = await wire.queue("q", RedrivePolicy=redrive, KmsMasterKeyId="k")
    assert (await attributes(wire, url))["SqsManagedSseEnabled"] == "false"
    await wire.call(
        "SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": "", "KmsMasterKeyId": ""}
    )
    found = await attributes(wire, url)
    assert "RedrivePolicy" not in found
    assert "KmsMasterKeyId" not in found
    assert found["SqsManagedSseEnabled"] == "false"


async def test_the_managed_encryption_cannot_join_a_key(wire: Wire) -> None:
    url = await wire.queue("q", KmsMasterKeyId="k")
    with pytest.raises(Refused) as caught:
        await wire.call("SetQueueAttributes", QueueUrl=url, Attributes={"SqsManagedSseEnabled": "true"})
    assert caught.value.code == "InvalidAttributeName"


@pytest.mark.parametrize(
    "given", [{"FifoQueue": "false"}, {"ContentBasedDeduplication": "false"}, {"DeduplicationScope": "queue"}]
)
async def test_fifo_attributes_are_unknown_to_a_standard_queue(wire: Wire, given: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        await wire.call("CreateQueue", QueueName="q", Attributes=given)
    assert caught.value.code == "InvalidAttributeName"


async def test_high_throughput_needs_the_scope_of_the_group(wire: Wire) -> None:
    with pytest.raises(Refused) as caught:
        await wire.queue("q.fifo", FifoThroughputLimit="perMessageGroupId")
    assert caught.value.code == "InvalidAttributeValue"
    assert caught.value.message.endswith(
        " FifoThroughputLimit. Reason: Must be perQueue unless the deduplication scope is messageGroup."
    )
    url = await wire.queue(
        "p.fifo", FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup"
    )
    assert (await attributes(wire, url))["FifoThroughputLimit"] == "perMessageGroupId"


async def test_setting_fifo_again_on_a_fifo_queue_is_allowed(wire: Wire) -> None:
    url = await wire.queue("q.fifo")
    await wire.call("SetQueueAttributes", QueueUrl=url, Attributes={"FifoQueue": "true"})


async def test_creating_again_compares_only_what_is_given(wire: Wire) -> None:
    url = await wire.queue("q", VisibilityTimeout="5", DelaySeconds="1")
    assert await wire.queue("q") == url
    assert await wire.queue("q", VisibilityTimeout="5") == url
    await wire.call("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "6"})
    assert await wire.queue("q", VisibilityTimeout="6") == url
    again = await wire.call("CreateQueue", QueueName="q", tags={"other": "tag"})
    assert again["QueueUrl"] == url


async def test_counts_are_exact(wire: Wire) -> None:
    url = await wire.queue("q")
    for delay in (0, 0, 0, 10):
        await wire.call("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    await wire.receive(url)
    found = await attributes(wire, url)
    assert found["ApproximateNumberOfMessages"] == "2"
    assert found["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert found["ApproximateNumberOfMessagesDelayed"] == "1"


async def test_a_policy_is_read_back_without_blanks(wire: Wire) -> None:
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "SQS:*", "Resource": ARN + "q"}],
    }
    url = await wire.queue("q", Policy=json.dumps(policy, indent=2))
    assert (await attributes(wire, url))["Policy"] == json.dumps(policy, separators=(",", ":"))


# ---- Veil's own: how queues stand, and pauses


async def test_a_description_says_how_each_queue_stands_and_no_attribute_tells_of_a_pause(wire: Wire):
    dead = (await wire.call("CreateQueue", QueueName="b-dead"))["QueueUrl"]
    arn = "arn:aws:sqs:us-east-1:000000000000:b-dead"
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})}
    url = (await wire.call("CreateQueue", QueueName="a", Attributes=policy))["QueueUrl"]
    before = await wire.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    await wire.call("Veil.PauseQueue", QueueUrl=url)
    sent_at = wire.clock.wall_ms()
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    wire.clock.advance(seconds=5)
    assert "Messages" not in await wire.call("ReceiveMessage", QueueUrl=url)

    first = await wire.call("Veil.DescribeQueues", MaxResults=1)
    assert first["Queues"] == [
        {
            "QueueName": "a",
            "QueueUrl": url,
            "Paused": True,
            "Visible": 1,
            "InFlight": 0,
            "Delayed": 0,
            "WaitingForRetry": 0,
            "OldestSentAt": sent_at,
            "VisibilityTimeout": 30,
            "DeadLetterQueueName": "b-dead",
            "Sent": 1,
            "Received": 0,
            "Deleted": 0,
            "Lapsed": 0,
            "DeadLettered": 0,
        }
    ]
    rest = await wire.call("Veil.DescribeQueues", NextToken=first["NextToken"])
    assert [queue["QueueUrl"] for queue in rest["Queues"]] == [dead]
    assert "NextToken" not in rest

    await wire.call("Veil.ResumeQueue", QueueUrl=url)
    after = await wire.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    assert after["Attributes"].keys() == before["Attributes"].keys()
    assert len((await wire.call("ReceiveMessage", QueueUrl=url))["Messages"]) == 1
