"""The requests of the benchmarks as bytes, the same for every server: only the port they are sent to differs.

The head is as large and as many-headed as what boto3 sends. Host and queue URL name one fixed port, because all
servers here go by the queue's name alone.
"""

from __future__ import annotations

import json
import random
import re
from itertools import count
from typing import Any, Final

BODY_BYTES: Final = 300
BODY: Final = "x" * BODY_BYTES
# Long enough that nothing lapses while it is being measured.
VISIBILITY_S: Final = 3600

_HEAD: Final = (
    b"POST / HTTP/1.1\r\n"
    b"Host: 127.0.0.1:9324\r\n"
    b"amz-sdk-invocation-id: 6f1e0b1e-7c1e-4a52-9d9f-000000000000\r\n"
    b"Accept-Encoding: identity\r\n"
    b"X-Amz-Target: AmazonSQS.%s\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\n"
    b"User-Agent: Boto3/1.44.0 md/Botocore#1.44.0 lang/python#3.11\r\n"
    b"X-Amz-Date: 20260101T000000Z\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=" + b"0" * 64 + b"\r\n"
    b"amz-sdk-request: attempt=1\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)
_CALL_AT: Final = _HEAD.index(b"000000000000")
_calls: Final = count(random.getrandbits(47))
_RECEIPT: Final = re.compile(rb'"ReceiptHandle": ?"([^"]+)"')
# A batch can succeed as a whole and refuse entries: those carry a code.
_REFUSED_ENTRY: Final = re.compile(rb'"SenderFault": ?(?:true|false)')


def request(action: str, given: dict[str, Any]) -> bytes:
    """Any action in AWS JSON 1.0."""
    body = json.dumps(given, separators=(",", ":")).encode()
    return _HEAD % (action.encode(), len(body), body)


def afresh(request: bytes) -> bytes:
    """The same request as another call: under an invocation id of its own, without which a send would be a repetition."""
    return request[:_CALL_AT] + b"%012x" % next(_calls) + request[_CALL_AT + 12 :]


def queue_url(name: str) -> str:
    """The queue's URL as every request of the benchmarks spells it."""
    return f"http://127.0.0.1:9324/000000000000/{name}"


def create_queue(name: str) -> bytes:
    """CreateQueue, with a visibility timeout that outlasts the measurement."""
    return request("CreateQueue", {"QueueName": name, "Attributes": {"VisibilityTimeout": str(VISIBILITY_S)}})


def delete_queue(name: str) -> bytes:
    """DeleteQueue."""
    return request("DeleteQueue", {"QueueUrl": queue_url(name)})


def send(name: str, batch: int, body: str = BODY) -> bytes:
    """SendMessage, or SendMessageBatch for more than one."""
    if batch == 1:
        return request("SendMessage", {"QueueUrl": queue_url(name), "MessageBody": body})
    entries = [{"Id": str(place), "MessageBody": body} for place in range(batch)]
    return request("SendMessageBatch", {"QueueUrl": queue_url(name), "Entries": entries})


def receive(name: str, batch: int, *, wait_s: int = 0, visibility_s: int | None = None) -> bytes:
    """ReceiveMessage for up to so many."""
    given: dict[str, Any] = {
        "QueueUrl": queue_url(name),
        "MaxNumberOfMessages": batch,
        "WaitTimeSeconds": wait_s,
    }
    if visibility_s is not None:
        given["VisibilityTimeout"] = visibility_s
    return request("ReceiveMessage", given)


def delete(name: str, receipts: list[bytes]) -> bytes:
    """DeleteMessage, or DeleteMessageBatch for more than one; quick, because the load makes them as it goes."""
    url = queue_url(name).encode()
    if len(receipts) == 1:
        body = b'{"QueueUrl":"%s","ReceiptHandle":"%s"}' % (url, receipts[0])
        return _HEAD % (b"DeleteMessage", len(body), body)
    entries = b",".join([b'{"Id":"%d","ReceiptHandle":"%s"}' % entry for entry in enumerate(receipts)])
    body = b'{"QueueUrl":"%s","Entries":[%s]}' % (url, entries)
    return _HEAD % (b"DeleteMessageBatch", len(body), body)


def extend(name: str, receipts: list[bytes]) -> bytes:
    """ChangeMessageVisibility, or ChangeMessageVisibilityBatch for more than one."""
    url = queue_url(name).encode()
    if len(receipts) == 1:
        body = b'{"QueueUrl":"%s","ReceiptHandle":"%s","VisibilityTimeout":%d}' % (
            url,
            receipts[0],
            VISIBILITY_S,
        )
        return _HEAD % (b"ChangeMessageVisibility", len(body), body)
    entries = b",".join(
        [
            b'{"Id":"%d","ReceiptHandle":"%s","VisibilityTimeout":%d}' % (*entry, VISIBILITY_S)
            for entry in enumerate(receipts)
        ]
    )
    body = b'{"QueueUrl":"%s","Entries":[%s]}' % (url, entries)
    return _HEAD % (b"ChangeMessageVisibilityBatch", len(body), body)


def receipts_in(body: bytes) -> list[bytes]:
    """The receipts in the answer to a receive."""
    return _RECEIPT.findall(body)


def refused_entries_in(body: bytes) -> int:
    """How many entries of a batch were refused."""
    return len(_REFUSED_ENTRY.findall(body))
