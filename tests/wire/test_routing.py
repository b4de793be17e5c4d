"""Which protocol a request speaks, and which action it asks for."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.wire.kit import Refused, Wire, read_json, read_xml
from veil.wire.actions import ACTIONS
from veil.wire.exchange import AnswerCounts

QUEUE = "/000000000000/q"


async def test_json_may_be_posted_to_the_queue_url_which_then_names_the_queue(wire: Wire) -> None:
    await wire.queue("q")
    response = await wire.post("SendMessage", {"MessageBody": "x"}, path=QUEUE)
    assert read_json(response)["MessageId"]


async def test_a_queue_url_in_the_body_wins_over_the_path(wire: Wire) -> None:
    await wire.queue("q")
    other = await wire.queue("other")
    read_json(await wire.post("SendMessage", {"QueueUrl": other, "MessageBody": "x"}, path=QUEUE))
    assert len(await wire.receive(other)) == 1


async def test_an_unknown_target_is_an_unknown_operation(wire: Wire) -> None:
    for target in ("AmazonSQS.Nonsense", "DynamoDB_20120810.SendMessage", "AmazonSQS.PeekMessages", "x"):
        with pytest.raises(Refused) as caught:
            read_json(await wire.post(target if "." in target else f"{target}.", {}))
        assert caught.value.kind == "com.amazon.coral.service#UnknownOperationException"
        assert (caught.value.code, caught.value.status) == ("InvalidAction", 400)


async def test_an_unknown_action_is_not_valid_for_this_endpoint(wire: Wire) -> None:
    with pytest.raises(Refused) as caught:
        await wire.query("Nonsense", {})
    assert (caught.value.code, caught.value.status) == ("InvalidAction", 400)
    assert caught.value.message == "The action Nonsense is not valid for this endpoint."


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "ListMessageMoveTasks"])
async def test_actions_that_are_not_of_one_queue_are_refused_at_a_queue_url(
    wire: Wire, method: str, action: str
) -> None:
    with pytest.raises(Refused) as caught:
        read_xml(await wire.request(method, QUEUE, f"Action={action}&QueueName=x"))
    assert (caught.value.code, caught.value.status) == ("InvalidAction", 400)
    assert caught.value.message == f"The action {action} is not valid for this endpoint."


SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sqs/aws4_request"}


async def test_a_get_on_a_queue_url_acts_on_that_queue(wire: Wire) -> None:
    await wire.queue("q")
    await wire.queue("other")
    read_xml(await wire.request("GET", QUEUE, "Action=SendMessage&MessageBody=x", **SIGNED))
    found = read_xml(await wire.request("GET", QUEUE, "Action=ReceiveMessage&Version=2012-11-05", **SIGNED))
    assert found.findtext("ReceiveMessageResult/Message/Body") == "x"
    url = read_xml(await wire.request("GET", QUEUE, "Action=GetQueueUrl&QueueName=other"))
    assert (url.findtext("GetQueueUrlResult/QueueUrl") or "").endswith("/other")


READS = {
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
}


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - READS))
@pytest.mark.parametrize(
    ("named", "headers"),
    [
        ("Action={}", {}),
        ("%41ction=%{}", {}),
        ("Action={}&X-Amz-Signature=0&X-Amz-Credential=any/20260101/us-east-1/sqs/aws4_request", {}),
        ("Action={}", {"authorization": "Basic dXNlcjpwYXNz"}),
    ],
)
async def test_a_get_that_any_page_could_send_changes_nothing(
    wire: Wire, action: str, named: str, headers: dict[str, str]
) -> None:
    await wire.queue("q")
    path = QUEUE if ACTIONS[action].on_queue else "/"
    spelled = action if "%{}" not in named else f"{ord(action[0]):x}{action[1:]}"
    with pytest.raises(Refused) as caught:
        read_xml(await wire.request("GET", path, named.format(spelled), **headers))
    assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
    assert caught.value.message.startswith(f"{action} by an unsigned GET is refused")
    assert not await wire.receive(QUEUE)


@pytest.mark.parametrize("accept", ["application/json", "*/*"])
@pytest.mark.parametrize("path", ["/", QUEUE])
async def test_no_action_at_all_is_an_unknown_operation_in_xml(wire: Wire, path: str, accept: str) -> None:
    response = await wire.request("GET", path, accept=accept)
    assert (response.status, response.content_type) == (404, "text/xml")
    assert ElementTree.fromstring(response.body).tag == "UnknownOperationException"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
async def test_other_methods_are_not_allowed(wire: Wire, method: str) -> None:
    response = await wire.request(method, "/", "Action=ListQueues")
    assert response.status == 405


async def test_query_can_answer_in_json_with_the_names_that_aws_has_there(wire: Wire) -> None:
    async def result(action: str, parameters: dict[str, str]) -> dict[str, Any]:
        response = await wire.form(action, parameters, accept="application/json")
        assert response.content_type == "application/json"
        (answer,) = json.loads(response.body).values()
        assert answer["ResponseMetadata"]["RequestId"]
        found: dict[str, Any] = answer[f"{action}Result"]
        return found

    assert await result("ListQueues", {}) == {"queueUrls": None, "NextToken": None}
    url = await wire.queue("q", VisibilityTimeout="0")
    assert await result("ListQueues", {}) == {"queueUrls": [url], "NextToken": None}
    found = await result("GetQueueAttributes", {"QueueUrl": url, "AttributeName.1": "QueueArn"})
    assert found == {"Attributes": [{"Name": "QueueArn", "Value": "arn:aws:sqs:us-east-1:000000000000:q"}]}
    assert await result("ReceiveMessage", {"QueueUrl": url}) == {"messages": None}
    attribute = {"Name": "a", "Value.DataType": "Binary", "Value.BinaryValue": "AP8="}
    sent = await result(
        "SendMessage",
        {"QueueUrl": url, "MessageBody": "x"}
        | {f"MessageAttribute.1.{name}": value for name, value in attribute.items()},
    )
    assert set(sent) == {
        "MessageId",
        "MD5OfMessageBody",
        "MD5OfMessageAttributes",
        "MD5OfMessageSystemAttributes",
        "SequenceNumber",
    }
    asked = {"QueueUrl": url, "AttributeName.1": "SenderId", "MessageAttributeName.1": "All"}
    (message,) = (await result("ReceiveMessage", asked))["messages"]
    assert message["Attributes"] == [{"Name": "SenderId", "Value": "000000000000"}]
    ((name, value),) = ((one["Name"], one["Value"]) for one in message["MessageAttributes"])
    assert (name, value["DataType"], value["BinaryValue"], value["StringValue"]) == (
        "a",
        "Binary",
        "AP8=",
        None,
    )
    assert (await result("ReceiveMessage", {"QueueUrl": url}))["messages"][0]["MessageAttributes"] is None
    await wire.call("TagQueue", QueueUrl=url, Tags={"k": "v"})
    assert await result("ListQueueTags", {"QueueUrl": url}) == {"Tags": [{"Key": "k", "Value": "v"}]}
    entries = {"DeleteMessageBatchRequestEntry.1.Id": "a"}
    deleted = await result("DeleteMessageBatch", {"QueueUrl": url} | entries)
    assert (deleted["Successful"], deleted["Failed"][0]["Code"]) == (None, "ReceiptHandleIsInvalid")
    refused = await wire.form("PurgeQueue", {"QueueUrl": "none"}, accept="application/json")
    assert refused.status == 400
    assert json.loads(refused.body)["Error"] == {
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "Message": "The specified queue does not exist for this wsdl version.",
    }


async def test_the_version_may_be_missing(wire: Wire) -> None:
    assert read_xml(await wire.request("POST", "/", "", b"Action=ListQueues")).tag == "ListQueuesResponse"


async def test_actions_without_output_have_no_result_element(wire: Wire) -> None:
    await wire.queue("q")
    root = await wire.query("PurgeQueue", {"QueueUrl": "q"})
    assert [child.tag for child in root] == ["ResponseMetadata"]
    assert root.findtext("ResponseMetadata/RequestId")


async def test_empty_results_leave_things_out(wire: Wire) -> None:
    url = await wire.queue("q")
    assert await wire.call("ReceiveMessage", QueueUrl=url) == {}
    assert await wire.call("ListQueues", QueueNamePrefix="none") == {}
    assert await wire.call("ListQueueTags", QueueUrl=url) == {}
    assert await wire.call("GetQueueAttributes", QueueUrl=url) == {}
    sent = await wire.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "x"}])
    assert set(sent) == {"Successful"}
    failed = await wire.call("DeleteMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": "x"}])
    assert set(failed) == {"Failed"}
    root = await wire.query("ReceiveMessage", {"QueueUrl": url, "VisibilityTimeout": "0"})
    await wire.call("PurgeQueue", QueueUrl=url)
    root = await wire.query("ReceiveMessage", {"QueueUrl": url})
    result = root.find("ReceiveMessageResult")
    assert result is not None
    assert len(result) == 0


async def test_bodies_keep_every_character_in_xml(wire: Wire) -> None:
    url = await wire.queue("q")
    body = "a\r\nb\rc\n\t&quot;<x>&amp;\"'😀 é "
    await wire.query("SendMessage", {"QueueUrl": url, "MessageBody": body})
    response = await wire.form("ReceiveMessage", {"QueueUrl": url, "VisibilityTimeout": "0"})
    assert b"&#13;" in response.body
    assert read_xml(response).findtext("ReceiveMessageResult/Message/Body") == body
    assert (await wire.receive(url))[0]["Body"] == body


async def test_a_single_attribute_may_come_without_its_number(wire: Wire) -> None:
    await wire.query(
        "CreateQueue", {"QueueName": "q", "Attribute.Name": "VisibilityTimeout", "Attribute.Value": "7"}
    )
    found = await wire.call("GetQueueAttributes", QueueUrl="q", AttributeNames=["VisibilityTimeout"])
    assert found == {"Attributes": {"VisibilityTimeout": "7"}}


async def test_numbers_may_come_as_texts(wire: Wire) -> None:
    url = await wire.queue("q")
    assert await wire.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages="5") == {}
    with pytest.raises(Refused) as caught:
        await wire.query("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": "five"})
    assert caught.value.message == (
        "Value five for parameter MaxNumberOfMessages is invalid. Reason: Must be an integer."
    )


async def test_every_answer_has_an_id_of_its_own(wire: Wire) -> None:
    ids = {dict((await wire.post("ListQueues", {})).headers)["x-amzn-RequestId"] for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 36 for one in ids)


async def test_every_answer_is_counted_by_its_action_and_class_of_status() -> None:
    answers = AnswerCounts()
    async with Wire(answers=answers) as wire:
        await wire.queue("q")
        await wire.post("SendMessage", {"QueueUrl": QUEUE, "MessageBody": ""})
        await wire.post("Invented", {})
        await wire.query("ListQueues", {})
        await wire.form("PurgeQueue", {"QueueUrl": "http://localhost:9324/000000000000/missing"})
        await wire.request("PUT")
    assert answers == {
        ("CreateQueue", 2): 1,
        ("SendMessage", 4): 1,
        ("other", 4): 2,
        ("ListQueues", 2): 1,
        ("PurgeQueue", 4): 1,
    }
