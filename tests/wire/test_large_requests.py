"""Requests and answers that are too large for the event loop: the same answers as ever, and nothing lost on the way."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any
from urllib.parse import quote

import pytest

from tests.signing import sign
from tests.wire.kit import Refused, Wire, read_json
from veil.wire import aws_json, aws_query, large
from veil.wire.sigv4 import AccessKey, Verifier

_MIB = 1 << 20


def _counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """The names of the threads in which the function of that name has run."""
    threads: list[str] = []
    function = getattr(module, name)

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return function(*given)

    monkeypatch.setattr(module, name, noted)
    return threads


async def test_a_large_body_is_decoded_beside_the_loop_and_a_small_one_on_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = _counted(monkeypatch, aws_json, "read_input")
    await wire.call("CreateQueue", QueueName="q")
    body = "é\n" * (100 * 1024)
    sent = await wire.call("SendMessage", QueueUrl="q", MessageBody=body)

    assert [name.startswith("veil-large") for name in threads] == [False, True]
    (received,) = (await wire.call("ReceiveMessage", QueueUrl="q"))["Messages"]
    assert received["Body"] == body
    assert received["MD5OfBody"] == sent["MD5OfMessageBody"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"QueueUrl":"q","Entries":[' + b"{}," * 200_000 + b"{}]}",
        b'{"QueueUrl":"q","a":{' + b",".join(b'"%d":""' % n for n in range(100_000)) + b"}}",
        b'{"QueueUrl":"q","a":["\\\\",' + b'"\\"",' * 200_000 + b"1]}",
        b'{"QueueUrl":"q",' + b'"a":1,' * 100_000 + b'"b":1}',
    ],
    ids=["structures", "members", "texts", "unknown"],
)
async def test_more_values_than_any_request_has_are_refused_before_they_are_decoded(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    await wire.call("CreateQueue", QueueName="q")
    decoded: list[bytes] = []
    batch = aws_json.TARGETS["AmazonSQS.SendMessageBatch"]._replace(decode=decoded.append)
    monkeypatch.setitem(aws_json.TARGETS, "AmazonSQS.SendMessageBatch", batch)

    with pytest.raises(Refused, match="too many values: at most 131072 bytes"):
        read_json(await wire.post("SendMessageBatch", body))
    assert decoded == []


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2]},' * 40_000, "\\" * 300_001 + '"', " " * 300_000 + '"[{,}]"' * 9]
)
async def test_the_texts_of_a_large_body_may_hold_whatever_they_like(wire: Wire, text: str) -> None:
    await wire.call("CreateQueue", QueueName="q")
    await wire.call("SendMessage", QueueUrl="q", MessageBody=text)

    (received,) = (await wire.call("ReceiveMessage", QueueUrl="q"))["Messages"]
    assert received["Body"] == text


async def test_a_bulk_batch_of_a_thousand_fits_however_it_is_printed() -> None:
    async with Wire(bulk=True) as wire:
        await wire.call("CreateQueue", QueueName="q")
        entries = [
            {"Id": str(n), "ReceiptHandle": "x" * 300, "VisibilityTimeout": 43_200} for n in range(1_000)
        ]
        body = json.dumps({"QueueUrl": "q", "Entries": entries}, indent=8).encode()
        assert len(body) > large.LARGE_BYTES

        answer = read_json(await wire.post("ChangeMessageVisibilityBatch", body))
        assert len(answer["Failed"]) == 1_000


async def test_a_large_form_is_read_beside_the_loop(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = _counted(monkeypatch, aws_query, "read_parameters")
    await wire.call("CreateQueue", QueueName="q")
    body = "é" * 100_000
    await wire.query("SendMessage", {"QueueUrl": "q", "MessageBody": body})

    assert [name.startswith("veil-large") for name in threads] == [True]
    (received,) = (await wire.call("ReceiveMessage", QueueUrl="q"))["Messages"]
    assert received["Body"] == body


KEYS = {"known": AccessKey("known", "secret", "000000000000")}


@pytest.mark.parametrize("size", [10, 600_000])
async def test_what_a_stranger_sends_is_not_read(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = _counted(monkeypatch, aws_query, "read_parameters")
    async with Wire(verifier=Verifier(KEYS)) as wire:
        authorization = "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
        answer = await wire.form("SendMessage", {"MessageBody": "%" * size}, authorization=authorization)

    assert answer.status in (400, 403)
    assert threads == []


async def test_a_large_request_is_verified_and_a_tampered_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Wire(verifier=Verifier(KEYS)) as wire:
        body = f"Action=CreateQueue&QueueName=q&Version={quote('é' * 100_000)}".encode()
        host = "localhost:9324"
        signed = sign(
            method="POST", host=host, path="/", headers={}, body=body, key_id="known", secret="secret",
            region="us-east-1", now_ms=wire.clock.wall_ms(),
        )  # fmt: skip
        headers = {name.lower().replace("-", "_"): value for name, value in signed.items()}

        assert (await wire.request("POST", "/", "", body, **headers)).status == 200
        assert (await wire.request("POST", "/", "", body + b"&a=b", **headers)).status == 403


async def _with_large_messages(wire: Wire, count: int) -> None:
    await wire.call("CreateQueue", QueueName="q")
    attributes = {"a": {"DataType": "Binary", "BinaryValue": "AAAA"}}
    for number in range(count):
        body = f"{number}" + '"&\n<é' * 100_000
        await wire.call("SendMessage", QueueUrl="q", MessageBody=body, MessageAttributes=attributes)


async def test_a_large_answer_reads_like_a_small_one(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await _with_large_messages(wire, 3)
    given = {
        "QueueUrl": "q",
        "MaxNumberOfMessages": 3,
        "VisibilityTimeout": 0,
        "MessageAttributeNames": ["All"],
    }
    form = {
        "QueueUrl": "q",
        "MaxNumberOfMessages": "3",
        "VisibilityTimeout": "0",
        "AttributeName.1": "SenderId",
    }
    answers = []
    for limit in (1 << 30, 1):
        monkeypatch.setattr("veil.wire.front_end.LARGE_BYTES", limit)
        by_json = (await wire.post("ReceiveMessage", given)).body
        peeked = (await wire.post("Veil.PeekMessages", {"QueueUrl": "q", "MaxResults": 2})).body
        by_form = (await wire.form("ReceiveMessage", form)).body.partition(b"<ResponseMetadata>")[0]
        # A receipt tells the delivery, so no two are alike; so does the count of receives.
        answers.append(
            [_without_receipts(json.loads(by_json)), _without_counts(json.loads(peeked)), len(by_form)]
        )

    assert answers[0] == answers[1]


def _without_receipts(answer: Any) -> Any:
    return [
        {name: value for name, value in each.items() if name != "ReceiptHandle"}
        for each in answer["Messages"]
    ]


def _without_counts(answer: Any) -> Any:
    for each in answer["Messages"]:
        del each["Attributes"]["ApproximateReceiveCount"]
    return answer


@pytest.mark.parametrize("protocol", ["json", "query"])
async def test_who_goes_away_while_a_large_answer_is_encoded_leaves_nothing_hidden(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    await _with_large_messages(wire, 2)
    encoding, go_on = threading.Event(), threading.Event()
    module, name = (aws_json if protocol == "json" else aws_query), "answer"
    encode = getattr(module, name)

    def slow(*given: Any) -> Any:
        encoding.set()
        go_on.wait(120)
        return encode(*given)

    monkeypatch.setattr(module, name, slow)
    given = {"QueueUrl": "q", "MaxNumberOfMessages": 10}
    if protocol == "json":
        asked = asyncio.ensure_future(wire.post("ReceiveMessage", given))
    else:
        asked = asyncio.ensure_future(
            wire.form("ReceiveMessage", {name: str(value) for name, value in given.items()})
        )
    await asyncio.to_thread(encoding.wait, 30)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    go_on.set()
    monkeypatch.undo()

    received = await wire.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10, AttributeNames=["All"])
    assert [each["Attributes"]["ApproximateReceiveCount"] for each in received["Messages"]] == ["1", "1"]


async def test_a_bulk_receive_stops_at_ten_mebibytes_of_bodies() -> None:
    async with Wire(bulk=True) as wire:
        await wire.call("CreateQueue", QueueName="q")
        for _ in range(13):
            await wire.call("SendMessage", QueueUrl="q", MessageBody="a" * _MIB)

        first = await wire.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=1_000)
        second = await wire.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=1_000)
        assert (len(first["Messages"]), len(second["Messages"])) == (10, 3)


async def test_attribute_names_by_the_thousand_are_looked_up_not_tried(wire: Wire) -> None:
    await wire.call("CreateQueue", QueueName="q")
    attributes = {f"kind.{n}": {"DataType": "String", "StringValue": "v"} for n in range(3)}
    await wire.call(
        "SendMessage",
        QueueUrl="q",
        MessageBody="b",
        MessageAttributes=attributes | {"other": {"DataType": "String", "StringValue": "v"}},
    )
    names = [*(f"n{n}.*" for n in range(9_000)), "kind.*"]

    (received,) = (await wire.call("ReceiveMessage", QueueUrl="q", MessageAttributeNames=names))["Messages"]
    assert sorted(received["MessageAttributes"]) == sorted(attributes)


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("AddPermission", {"Label": "l" * 140_000, "AWSAccountIds": ["123456789012"], "Actions": ["*"]}),
        ("DeleteMessage", {"ReceiptHandle": "r" * 140_000}),
        ("SendMessage", {"MessageBody": "b", "MessageGroupId": "g" * 140_000}),
        ("TagQueue", {"Tags": {"k" * 140_000: "v"}}),
        ("ReceiveMessage", {"MessageAttributeNames": ["a"] * 10_001}),
    ],
)
async def test_names_beyond_any_limit_are_refused_before_anything_looks_at_them(
    wire: Wire, action: str, given: dict[str, Any]
) -> None:
    await wire.call("CreateQueue", QueueName="q")

    with pytest.raises(Refused, match=r"Expected `(str|array)` of length <= (131072|10000)"):
        await wire.call(action, QueueUrl="q", **given)


async def test_a_form_of_many_parameters_is_read_beside_the_loop(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = _counted(monkeypatch, aws_query, "read_input")
    await wire.call("CreateQueue", QueueName="q")
    entries = {f"DeleteMessageBatchRequestEntry.{n}.Id": f"e{n}" for n in range(1, 600)}
    answer = await wire.form("DeleteMessageBatch", {"QueueUrl": "q"} | entries)

    assert answer.status == 400
    assert b"TooManyEntriesInBatchRequest" in answer.body
    assert [name.startswith("veil-large") for name in threads] == [True]
