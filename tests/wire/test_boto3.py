"""boto3, unmodified, over a real socket: every action, signed and verified."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.wire.listening import listening
from veil.wire.sigv4 import AccessKey, Verifier

ACCOUNT = "123456789012"
KEYS = {"AKIDVEIL": AccessKey("AKIDVEIL", "veil secret", ACCOUNT)}
ARN = f"arn:aws:sqs:eu-central-1:{ACCOUNT}:"


@pytest.fixture(scope="module", params=["memory", "postgres"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with listening(Verifier(KEYS), store_name=request.param) as port:
        yield port


def client(port: int, **config: Any) -> Any:
    return boto3.client(
        "sqs",
        region_name="eu-central-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="AKIDVEIL",
        aws_secret_access_key="veil secret",
        config=Config(retries={"max_attempts": 1}, **config),
    )


@pytest.fixture
def sqs(port: int) -> Iterator[Any]:
    made = client(port)
    yield made
    for url in made.list_queues().get("QueueUrls", []):
        made.delete_queue(QueueUrl=url)
    made.close()


def test_a_message_is_sent_received_renewed_and_deleted(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    assert sqs.get_queue_url(QueueName="q")["QueueUrl"] == url
    attributes = {
        "n": {"DataType": "Number", "StringValue": "1"},
        "b": {"DataType": "Binary", "BinaryValue": b"\x00"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="héllo\r\n", MessageAttributes=attributes)
    (found,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"])[
        "Messages"
    ]
    assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "héllo\r\n")
    assert found["MessageAttributes"] == attributes
    assert found["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert found["Attributes"]["SenderId"] == ACCOUNT
    handle = found["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=100)
    deleted = sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)["ResponseMetadata"]
    assert deleted["HTTPHeaders"]["content-length"] == "0"  # as SQS answers where there is nothing to say
    counted = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counted["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_batches(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [one["Body"] for one in found] == [str(n) for n in range(10)]
    handles = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)]
    longer = [entry | {"VisibilityTimeout": 60} for entry in handles]
    assert len(sqs.change_message_visibility_batch(QueueUrl=url, Entries=longer)["Successful"]) == 10
    for at, change in enumerate(({"ReceiptHandle": "x"}, {"VisibilityTimeout": -1}, {"ReceiptHandle": "y"})):
        longer[at + 1] |= change
    changed = sqs.change_message_visibility_batch(QueueUrl=url, Entries=longer)
    assert [(entry["Id"], entry["Code"]) for entry in changed["Failed"]] == [
        ("1", "ReceiptHandleIsInvalid"),
        ("2", "InvalidParameterValue"),
        ("3", "ReceiptHandleIsInvalid"),
    ]
    assert [entry["Id"] for entry in changed["Successful"]] == ["0", "4", "5", "6", "7", "8", "9"]
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 10
    with pytest.raises(sqs.exceptions.EmptyBatchRequest):
        sqs.send_message_batch(QueueUrl=url, Entries=[])


def test_settings_tags_permissions_and_listing(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q", Attributes={"DelaySeconds": "1"}, tags={"a": "1"})["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "DelaySeconds": "0"})
    names = ["VisibilityTimeout", "DelaySeconds", "QueueArn"]
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"] == {
        "VisibilityTimeout": "7",
        "DelaySeconds": "0",
        "QueueArn": ARN + "q",
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/k"})
    encryption = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"].items()
    assert {name: value for name, value in encryption if name.startswith(("Kms", "Sqs"))} == {
        "KmsMasterKeyId": "alias/k",
        "KmsDataKeyReusePeriodSeconds": "300",
        "SqsManagedSseEnabled": "false",
    }
    sqs.tag_queue(QueueUrl=url, Tags={"b": "2"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["a"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"b": "2"}
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["210987654321"], Actions=["SendMessage"])
    sqs.remove_permission(QueueUrl=url, Label="l")
    for name in ("r", "s"):
        sqs.create_queue(QueueName=name)
    pages = sqs.get_paginator("list_queues").paginate(PaginationConfig={"PageSize": 1})
    assert [page["QueueUrls"][0].rsplit("/")[-1] for page in pages] == ["q", "r", "s"]
    sqs.purge_queue(QueueUrl=url)


def test_dead_letters_and_move_tasks(sqs: Any) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 1})
    url = sqs.create_queue(QueueName="q", Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    assert sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == []
    sqs.send_message(QueueUrl=url, MessageBody="x")
    for _ in range(2):
        sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
    handle = sqs.start_message_move_task(SourceArn=ARN + "dead")["TaskHandle"]
    assert len(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]) == 1
    (task,) = sqs.list_message_move_tasks(SourceArn=ARN + "dead")["Results"]
    assert task["ApproximateNumberOfMessagesMoved"] == 1
    until = time.monotonic() + 60
    while sqs.list_message_move_tasks(SourceArn=ARN + "dead")["Results"][0]["Status"] != "COMPLETED":
        assert time.monotonic() < until
    with pytest.raises(ClientError) as caught:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_errors_have_the_code_and_the_class_that_user_code_expects(sqs: Any) -> None:
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as caught:
        sqs.get_queue_url(QueueName="none")
    error = caught.value.response["Error"]
    assert error["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert error["QueryErrorCode"] == "QueueDoesNotExist"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert caught.value.response["ResponseMetadata"]["RequestId"]
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName="q", Attributes={"DelaySeconds": "5"})
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="x")


def test_a_long_poll_wakes_for_a_send(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    found: list[Any] = []
    poll = threading.Thread(
        target=lambda: found.extend(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20).get("Messages", []))
    )
    poll.start()
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    poll.join(15)
    assert [one["MessageId"] for one in found] == [sent["MessageId"]]
    assert len(sent["SequenceNumber"]) == 20


def test_strangers_are_kept_out(port: int, sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    nobody = client(port, signature_version=UNSIGNED)
    with pytest.raises(ClientError) as caught:
        nobody.send_message(QueueUrl=url, MessageBody="x")
    assert caught.value.response["Error"]["Code"] == "AccessDenied"
    with pytest.raises(ClientError, match=f"AccessDenied.* http://127.0.0.1:{port}/ is denied"):
        nobody.list_queues()
    forger = boto3.client(
        "sqs",
        region_name="eu-central-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="AKIDVEIL",
        aws_secret_access_key="a guess",
    )
    with pytest.raises(ClientError) as caught:
        forger.list_queues()
    assert caught.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
    nobody.close()
    forger.close()


def test_a_link_presigned_by_botocore_works_for_anybody(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="behind a link")
    link = AWSRequest("GET", url, params={"Action": "ReceiveMessage", "Version": "2012-11-05"})
    SigV4QueryAuth(Credentials("AKIDVEIL", "veil secret"), "sqs", "eu-central-1", expires=60).add_auth(link)
    with urllib.request.urlopen(link.prepare().url) as answer:
        assert b"<Body>behind a link</Body>" in answer.read()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(link.prepare().url.replace("ReceiveMessage", "PurgeQueue"))
    assert caught.value.code == 403
    caught.value.close()
