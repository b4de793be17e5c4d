"""Tags and permissions of a queue."""

from __future__ import annotations

import json

import pytest

from tests.wire.kit import Refused, Wire

ARN = "arn:aws:sqs:us-east-1:000000000000:q"


async def test_tags_are_added_overwritten_and_removed(wire: Wire) -> None:
    made = await wire.call("CreateQueue", QueueName="q", tags={"a": "1", "b": ""})
    url = made["QueueUrl"]
    await wire.call("TagQueue", QueueUrl=url, Tags={"a": "2", "A": "3"})
    assert await wire.call("ListQueueTags", QueueUrl=url) == {"Tags": {"a": "2", "b": "", "A": "3"}}
    await wire.call("UntagQueue", QueueUrl=url, TagKeys=["a", "A", "none"])
    assert await wire.call("ListQueueTags", QueueUrl=url) == {"Tags": {"b": ""}}


async def test_fifty_tags_are_enough(wire: Wire) -> None:
    url = await wire.queue("q")
    await wire.call("TagQueue", QueueUrl=url, Tags={f"k{n}": "v" for n in range(50)})
    with pytest.raises(Refused) as caught:
        await wire.call("TagQueue", QueueUrl=url, Tags={"one": "more"})
    assert (caught.value.code, caught.value.message) == (
        "InvalidParameterValue",
        "Too many tags added for queue q.",
    )


async def test_tags_in_the_query_protocol(wire: Wire) -> None:
    await wire.query("CreateQueue", {"QueueName": "q", "Tag.1.Key": "a", "Tag.1.Value": "1"})
    await wire.query("TagQueue", {"QueueUrl": "q", "Tag.1.Key": "b", "Tag.1.Value": "2"})
    await wire.query("UntagQueue", {"QueueUrl": "q", "TagKey.1": "a"})
    root = await wire.query("ListQueueTags", {"QueueUrl": "q"})
    assert [(tag.findtext("Key"), tag.findtext("Value")) for tag in root.iter("Tag")] == [("b", "2")]


async def policy(wire: Wire) -> str | None:
    found = await wire.call("GetQueueAttributes", QueueUrl="q", AttributeNames=["Policy"])
    text: str | None = found.get("Attributes", {}).get("Policy")
    return text


async def test_permissions_become_statements_and_the_last_takes_the_policy_with_it(wire: Wire) -> None:
    url = await wire.queue("q")
    accounts, actions = ["123456789012"], ["ReceiveMessage"]
    await wire.call("AddPermission", QueueUrl=url, Label="one", AWSAccountIds=accounts, Actions=actions)
    assert json.loads(await policy(wire) or "") == {
        "Version": "2008-10-17",
        "Id": f"{ARN}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
                "Action": "SQS:ReceiveMessage",
                "Resource": ARN,
            }
        ],
    }
    await wire.query(
        "AddPermission",
        {
            "QueueUrl": url,
            "Label": "two",
            "AWSAccountId.1": "123456789012",
            "AWSAccountId.2": "210987654321",
            "ActionName.1": "SendMessage",
            "ActionName.2": "*",
        },
    )
    second = json.loads(await policy(wire) or "")["Statement"][1]
    assert second["Principal"]["AWS"] == ["arn:aws:iam::123456789012:root", "arn:aws:iam::210987654321:root"]
    assert second["Action"] == ["SQS:SendMessage", "SQS:*"]
    await wire.call("RemovePermission", QueueUrl=url, Label="one")
    await wire.call("RemovePermission", QueueUrl=url, Label="two")
    assert await policy(wire) is None


@pytest.mark.parametrize("action", ["DeleteQueue", "Nonsense", "SendMessageBatch"])
async def test_what_cannot_be_granted_is_refused(wire: Wire, action: str) -> None:
    url = await wire.queue("q")
    with pytest.raises(Refused) as caught:
        await wire.call(
            "AddPermission", QueueUrl=url, Label="l", AWSAccountIds=["123456789012"], Actions=[action]
        )
    assert caught.value.code == "InvalidParameterValue"
    assert f"SQS:{action}" in caught.value.message
