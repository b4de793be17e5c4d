"""What a message carries from its sender to its receivers."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from tests.stores.sqlite_kit import turns
from tests.wire.kit import Refused, Wire, read_json

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
TRACE_MD5 = "5ae4d5d7636402d80f4eb6d213245a88"


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


async def test_a_send_answers_id_and_digest_and_nothing_that_was_not_sent(wire: Wire) -> None:
    url = await wire.queue("q")
    sent = await wire.call("SendMessage", QueueUrl=url, MessageBody="é")
    assert set(sent) == {"MessageId", "MD5OfMessageBody"}
    assert sent["MD5OfMessageBody"] == hashlib.md5("é".encode()).hexdigest()


async def test_the_trace_header_has_its_digest_and_comes_back(wire: Wire) -> None:
    url = await wire.queue("q")
    sent = await wire.call(
        "SendMessage", QueueUrl=url, MessageBody="x", MessageSystemAttributes={"AWSTraceHeader": text(TRACE)}
    )
    assert sent["MD5OfMessageSystemAttributes"] == TRACE_MD5
    (found,) = await wire.receive(url, MessageSystemAttributeNames=["AWSTraceHeader"])
    assert found["Attributes"] == {"AWSTraceHeader": TRACE}


async def test_a_trace_header_of_megabytes_is_refused_in_both_protocols(wire: Wire) -> None:
    url, trace = await wire.queue(), "r" * 7_000_000
    with pytest.raises(
        Refused, match="AWSTraceHeader' must be shorter than or equal to 8192 bytes"
    ) as caught:
        await wire.call(
            "SendMessage",
            QueueUrl=url,
            MessageBody="x",
            MessageSystemAttributes={"AWSTraceHeader": text(trace)},
        )
    assert caught.value.code == "InvalidParameterValue"
    parameters = {
        "QueueUrl": url,
        "MessageBody": "x",
        "MessageSystemAttribute.1.Name": "AWSTraceHeader",
        "MessageSystemAttribute.1.Value.DataType": "String",
        "MessageSystemAttribute.1.Value.StringValue": trace,
    }
    with pytest.raises(Refused, match="8192 bytes"):
        await wire.query("SendMessage", parameters)
    assert await wire.receive(url) == []


async def test_the_http_trace_header_counts_unless_the_message_brings_its_own(wire: Wire) -> None:
    url = await wire.queue("q")
    plain = {"QueueUrl": url, "MessageBody": "x"}
    own = plain | {"MessageSystemAttributes": {"AWSTraceHeader": text("Root=own")}}
    for given in (plain, own):
        read_json(await wire.post("SendMessage", given, x_amzn_trace_id="Root=http"))
    entries = [{"Id": "a", "MessageBody": "x"}]
    read_json(
        await wire.post("SendMessageBatch", {"QueueUrl": url, "Entries": entries}, x_amzn_trace_id="Root=b")
    )
    found = await wire.receive(url, MaxNumberOfMessages=10, AttributeNames=["AWSTraceHeader"])
    assert [one["Attributes"]["AWSTraceHeader"] for one in found] == ["Root=http", "Root=own", "Root=b"]


async def test_system_attributes_are_those_asked_for_by_either_parameter(wire: Wire) -> None:
    url = await wire.queue("q")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="fair")
    peek: dict[str, Any] = {"VisibilityTimeout": 0}
    (none,) = await wire.receive(url, **peek)
    assert "Attributes" not in none
    (unknown,) = await wire.receive(url, AttributeNames=["SequenceNumber", "Nonsense"], **peek)
    assert "Attributes" not in unknown
    (both,) = await wire.receive(
        url, AttributeNames=["SenderId"], MessageSystemAttributeNames=["SentTimestamp"], **peek
    )
    assert both["Attributes"] == {"SenderId": "000000000000", "SentTimestamp": "1700000000000"}
    wire.clock.advance(seconds=1)
    (every,) = await wire.receive(url, MessageSystemAttributeNames=["All"], **peek)
    assert every["Attributes"] == {
        "SenderId": "000000000000",
        "SentTimestamp": "1700000000000",
        "ApproximateReceiveCount": "4",
        "ApproximateFirstReceiveTimestamp": "1700000000000",
        "MessageGroupId": "fair",
    }


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["All"], {"Hello", "Help.Me", "other"}),
        ([".*"], {"Hello", "Help.Me", "other"}),
        (["*"], {"Hello", "Help.Me", "other"}),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["other", "Help.Me"], {"Help.Me", "other"}),
        (["Hello", "no such", "!"], {"Hello"}),
        (["hello"], set()),
        ([], set()),
    ],
)
async def test_message_attributes_are_filtered_and_the_digest_is_over_what_is_returned(
    wire: Wire, names: list[str], found: set[str]
) -> None:
    url = await wire.queue("q")
    attributes = {
        "Hello": text("a"),
        "Help.Me": {"DataType": "Number.int", "StringValue": "1"},
        "other": {"DataType": "Binary", "BinaryValue": "aGk="},
    }
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    (message,) = await wire.receive(url, MessageAttributeNames=names)
    assert message.get("MessageAttributes", {}) == {name: attributes[name] for name in found}
    if not found:
        assert "MD5OfMessageAttributes" not in message
        return
    sent = await wire.call(
        "SendMessage",
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes={name: attributes[name] for name in found},
    )
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


async def test_a_batch_fails_by_entry_and_the_good_ones_are_sent(wire: Wire) -> None:
    url = await wire.queue("q", MaximumMessageSize="1024")
    answer = await wire.call(
        "SendMessageBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "x", "MessageAttributes": {"a": text("b")}},
            {"Id": "long", "MessageBody": "x" * 1025},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
            {"Id": "empty"},
            {"Id": "chars", "MessageBody": "\x00"},
            {"Id": "last", "MessageBody": "y", "MessageSystemAttributes": {"AWSTraceHeader": text(TRACE)}},
            {"Id": "system", "MessageBody": "y", "MessageSystemAttributes": {"Other": text(TRACE)}},
        ],
    )
    good, last = answer["Successful"]
    assert (good["Id"], last["Id"]) == ("good", "last")
    assert good["MD5OfMessageAttributes"]
    assert last["MD5OfMessageSystemAttributes"] == TRACE_MD5
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]] == [
        ("long", "InvalidParameterValue", True),
        ("late", "InvalidParameterValue", True),
        ("empty", "MissingParameter", True),
        ("chars", "InvalidMessageContents", True),
        ("system", "InvalidParameterValue", True),
    ]
    assert answer["Failed"][0]["Message"] == (
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    )
    assert [one["Body"] for one in await wire.receive(url, MaxNumberOfMessages=10)] == ["x", "y"]


async def test_size_limits_are_met_exactly(wire: Wire) -> None:
    url = await wire.queue("q")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x" * 1_048_576)
    entries = [{"Id": str(i), "MessageBody": "é" * 262_144} for i in range(2)]
    assert len((await wire.call("SendMessageBatch", QueueUrl=url, Entries=entries))["Successful"]) == 2


async def test_an_answer_that_was_not_delivered_gives_its_messages_back(wire: Wire) -> None:
    url = await wire.queue("q")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    for send in (
        wire.post("ReceiveMessage", {"QueueUrl": url}),
        wire.form("ReceiveMessage", {"QueueUrl": url}),
    ):
        response = await send
        assert await wire.receive(url) == []
        assert response.undelivered is not None
        response.undelivered()
        while wire.service._background:
            await next(iter(wire.service._background))
    (again,) = await wire.receive(url, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "1"}
    assert (await wire.post("ReceiveMessage", {"QueueUrl": url})).undelivered is None


async def test_a_message_that_cannot_be_shown_is_given_back(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await wire.queue("q")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    with monkeypatch.context() as broken:
        broken.setattr("veil.wire.actions.messages.receipt_text", lambda *args: 1 / 0)
        assert (await wire.post("ReceiveMessage", {"QueueUrl": url})).status == 500
    while wire.service._background:
        await next(iter(wire.service._background))
    assert len(await wire.receive(url)) == 1


async def test_peeking_shows_messages_in_any_state_and_changes_nothing(wire: Wire) -> None:
    url = await wire.queue("q")
    for delay in (0, 0, 5):
        await wire.call("SendMessage", QueueUrl=url, MessageBody=str(delay), DelaySeconds=delay)
    await wire.receive(url)
    first = await wire.call("Veil.PeekMessages", QueueUrl=url, MaxResults=2)
    assert [(one["State"], one.get("VisibleAt")) for one in first["Messages"]] == [
        ("in_flight", 1_700_000_030_000),
        ("visible", None),
    ]
    rest = await wire.call("Veil.PeekMessages", QueueUrl=url, MaxResults=2, NextToken=first["NextToken"])
    assert [(one["State"], one["VisibleAt"]) for one in rest["Messages"]] == [("delayed", 1_700_000_005_000)]
    assert "NextToken" not in rest
    assert first["Messages"][1]["Attributes"]["ApproximateReceiveCount"] == "0"
    assert len(await wire.receive(url, MaxNumberOfMessages=10)) == 1


async def test_bulk_is_off_unless_asked_for() -> None:
    async with Wire(bulk=True) as wire:
        url = await wire.queue("q")
        for _ in range(25):
            await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
        found = await wire.receive(url, MaxNumberOfMessages=1_000)
        assert len(found) == 25
        entries = [{"Id": str(i), "ReceiptHandle": one["ReceiptHandle"]} for i, one in enumerate(found)]
        answer = await wire.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
        assert len(answer["Successful"]) == 25


@pytest.mark.parametrize(("waited_s", "told"), [(0, None), (1.2, None), (2.2, "1"), (12.3, "12")])
async def test_a_receive_tells_how_long_it_waited_before_the_window_began(
    wire: Wire, waited_s: float, told: str | None
) -> None:
    url = await wire.queue("q")
    receive = asyncio.ensure_future(wire.post("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}))
    await turns()
    wire.clock.advance(seconds=waited_s)
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    assert dict((await receive).headers).get("x-veil-waited") == told


async def test_a_receive_that_is_repeated_tells_nothing_of_the_wait_of_the_first(wire: Wire) -> None:
    url = await wire.queue("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    asked = {"QueueUrl": url, "WaitTimeSeconds": 20, "ReceiveRequestAttemptId": "a"}
    await wire.post("ReceiveMessage", asked)
    wire.clock.advance(seconds=12)
    answer = await wire.post("ReceiveMessage", asked)
    assert read_json(answer)["Messages"] and "x-veil-waited" not in dict(answer.headers)


async def test_who_asks_for_it_in_a_header_may_name_a_hundred_messages(wire: Wire) -> None:
    url = await wire.queue("q")
    asked = {"x-veil-bulk": "1"}
    answer = await wire.post("GetQueueUrl", {"QueueName": "q"})
    assert ("x-veil-bulk", "100") in answer.headers
    sends = [{"Id": str(i), "MessageBody": "x"} for i in range(25)]
    with pytest.raises(Refused):
        await wire.call("SendMessageBatch", QueueUrl=url, Entries=sends)
    sent = read_json(await wire.post("SendMessageBatch", {"QueueUrl": url, "Entries": sends}, **asked))
    assert len(sent["Successful"]) == 25
    for count, headers in ((11, {}), (101, asked)):
        with pytest.raises(Refused):
            read_json(
                await wire.post("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": count}, **headers)
            )
    answer = await wire.post("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 100}, **asked)
    assert ("x-veil-bulk", "100") in answer.headers
    found = read_json(answer)["Messages"]
    assert len(found) == 25
    entries = [{"Id": str(i), "ReceiptHandle": one["ReceiptHandle"]} for i, one in enumerate(found)]
    longer = [{**entry, "VisibilityTimeout": 60} for entry in entries]
    for action, given in (("ChangeMessageVisibilityBatch", longer), ("DeleteMessageBatch", entries)):
        with pytest.raises(Refused):
            await wire.call(action, QueueUrl=url, Entries=given)
        done = read_json(await wire.post(action, {"QueueUrl": url, "Entries": given}, **asked))
        assert len(done["Successful"]) == 25
