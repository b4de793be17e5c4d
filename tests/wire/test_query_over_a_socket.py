"""Hand-made requests of the Query protocol over a real socket: every action."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from tests.wire.kit import read_xml
from tests.wire.listening import listening
from veil.wire.actions import ACTIONS
from veil.wire.exchange import Response

ARN = "arn:aws:sqs:us-east-1:000000000000:"


class Client:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.used: set[str] = set()

    def __call__(self, action: str, path: str = "/", **parameters: str) -> ElementTree.Element:
        self.used.add(action)
        named = {name.replace("__", "."): value for name, value in parameters.items()}
        form = urlencode({"Action": action, "Version": "2012-11-05"} | named)
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        self.connection.request("POST", path, form, headers)
        answer = self.connection.getresponse()
        body = answer.read()
        return read_xml(Response(answer.status, body, answer.headers["Content-Type"]))


@pytest.fixture
def call() -> Iterator[Client]:
    with listening() as port:
        client = Client(port)
        yield client
        client.connection.close()


def test_every_action_by_hand(call: Client) -> None:
    def text(root: ElementTree.Element, name: str) -> str:
        found = next(root.iter(name)).text
        assert found is not None
        return found

    dead = text(call("CreateQueue", QueueName="dead"), "QueueUrl")
    redrive = '{"deadLetterTargetArn":"' + ARN + 'dead","maxReceiveCount":"1"}'
    url = text(
        call(
            "CreateQueue",
            QueueName="q",
            Attribute__1__Name="VisibilityTimeout",
            Attribute__1__Value="0",
            Attribute__2__Name="RedrivePolicy",
            Attribute__2__Value=redrive,
            Tag__1__Key="k",
            Tag__1__Value="v",
        ),
        "QueueUrl",
    )
    path = "/000000000000/q"
    assert text(call("GetQueueUrl", QueueName="q"), "QueueUrl") == url
    listed = call("ListQueues", MaxResults="1")
    assert text(listed, "QueueUrl") == dead
    assert text(call("ListQueues", MaxResults="1", NextToken=text(listed, "NextToken")), "QueueUrl") == url
    assert text(call("ListDeadLetterSourceQueues", QueueUrl=dead), "QueueUrl") == url
    call("SetQueueAttributes", path, Attribute__Name="DelaySeconds", Attribute__Value="0")
    found = call(
        "GetQueueAttributes", path, AttributeName__1="VisibilityTimeout", AttributeName__2="QueueArn"
    )
    assert {one.findtext("Name"): one.findtext("Value") for one in found.iter("Attribute")} == {
        "VisibilityTimeout": "0",
        "QueueArn": ARN + "q",
    }
    call("TagQueue", path, Tag__1__Key="a", Tag__1__Value="b")
    call("UntagQueue", path, TagKey__1="k")
    assert text(call("ListQueueTags", path), "Key") == "a"
    call("AddPermission", path, Label="l", AWSAccountId__1="123456789012", ActionName__1="SendMessage")
    call("RemovePermission", path, Label="l")

    sent = call(
        "SendMessage",
        path,
        MessageBody="a\r\n<b>&é",
        MessageAttribute__1__Name="n",
        MessageAttribute__1__Value__DataType="String",
        MessageAttribute__1__Value__StringValue="v",
        MessageSystemAttribute__1__Name="AWSTraceHeader",
        MessageSystemAttribute__1__Value__DataType="String",
        MessageSystemAttribute__1__Value__StringValue="Root=1",
    )
    received = call("ReceiveMessage", path, MessageAttributeName__1="All", AttributeName__1="All")
    assert text(received, "Body") == "a\r\n<b>&é"
    assert text(received, "MD5OfMessageAttributes") == text(sent, "MD5OfMessageAttributes")
    assert "Root=1" in [one.text for one in received.iter("Value")]
    call("ReceiveMessage", path)  # spent: it goes to the dead letters

    batch = call(
        "SendMessageBatch",
        path,
        SendMessageBatchRequestEntry__1__Id="a",
        SendMessageBatchRequestEntry__1__MessageBody="x",
        SendMessageBatchRequestEntry__2__Id="b",
        SendMessageBatchRequestEntry__2__MessageBody="x",
        SendMessageBatchRequestEntry__2__DelaySeconds="901",
    )
    assert text(next(batch.iter("SendMessageBatchResultEntry")), "Id") == "a"
    assert text(next(batch.iter("BatchResultErrorEntry")), "Code") == "InvalidParameterValue"
    handle = text(call("ReceiveMessage", path, VisibilityTimeout="30"), "ReceiptHandle")
    call("ChangeMessageVisibility", path, ReceiptHandle=handle, VisibilityTimeout="60")
    changed = call(
        "ChangeMessageVisibilityBatch",
        path,
        ChangeMessageVisibilityBatchRequestEntry__1__Id="a",
        ChangeMessageVisibilityBatchRequestEntry__1__ReceiptHandle=handle,
        ChangeMessageVisibilityBatchRequestEntry__1__VisibilityTimeout="60",
    )
    assert text(next(changed.iter("ChangeMessageVisibilityBatchResultEntry")), "Id") == "a"
    deleted = call(
        "DeleteMessageBatch",
        path,
        DeleteMessageBatchRequestEntry__1__Id="a",
        DeleteMessageBatchRequestEntry__1__ReceiptHandle=handle,
    )
    assert text(next(deleted.iter("DeleteMessageBatchResultEntry")), "Id") == "a"
    call("DeleteMessage", path, ReceiptHandle=handle)

    for _ in range(3):
        call("SendMessage", QueueUrl=dead, MessageBody="x")
    task = text(
        call(
            "StartMessageMoveTask",
            SourceArn=ARN + "dead",
            DestinationArn=ARN + "q",
            MaxNumberOfMessagesPerSecond="1",
        ),
        "TaskHandle",
    )
    running = call("ListMessageMoveTasks", SourceArn=ARN + "dead")
    assert text(next(running.iter("ListMessageMoveTasksResultEntry")), "TaskHandle") == task
    assert int(text(call("CancelMessageMoveTask", TaskHandle=task), "ApproximateNumberOfMessagesMoved")) <= 3
    call("PurgeQueue", path)
    call("DeleteQueue", path)
    assert call.used == set(ACTIONS)
