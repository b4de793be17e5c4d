"""Veil's own actions on dead letters: look without receiving, a thousand at a time, and redrive what was chosen."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from tests.wire.kit import Refused, Wire
from veil.wire.actions import extensions as wire_peek

BASE = "http://localhost:9324/000000000000"
ARN = "arn:aws:sqs:us-east-1:000000000000:dead"


async def dead_letters(wire: Wire, *bodies: str, suffix: str = "", **attributes: Any) -> tuple[str, str]:
    """The URLs of a queue and of its dead letters, where those messages are."""
    dead = await wire.queue(f"dead{suffix}")
    redrive = json.dumps({"deadLetterTargetArn": ARN + suffix, "maxReceiveCount": 1})
    url = await wire.queue(f"q{suffix}", RedrivePolicy=redrive)
    for number, body in enumerate(bodies):
        fifo = {"MessageGroupId": "g", "MessageDeduplicationId": f"d{number}"} if suffix else {}
        await wire.call("SendMessage", QueueUrl=url, MessageBody=body, **fifo, **attributes)
    await wire.receive(url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    assert await wire.receive(url, MaxNumberOfMessages=10) == []
    return url, dead


async def peeked(wire: Wire, url: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await wire.call("Veil.PeekMessages", QueueUrl=url, **more)).get(
        "Messages", []
    )
    return found


def entry(letter: dict[str, Any], entry_id: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "Id": entry_id, "MessageId": letter["MessageId"], "SequenceNumber": letter["SequenceNumber"], **more
    }  # fmt: skip


async def redrive(wire: Wire, dead: str, *entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return await wire.call("Veil.RedriveMessages", QueueUrl=dead, Entries=list(entries), **more)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
async def test_chosen_letters_go_back_as_new_messages(wire: Wire, suffix: str) -> None:
    url, dead = await dead_letters(wire, "a", "b", "c", suffix=suffix)
    letters = await peeked(wire, dead)
    assert [letter["Attributes"]["DeadLetterQueueSourceArn"][-len(f"q{suffix}") :] for letter in letters] == [
        f"q{suffix}"
    ] * 3
    answer = await redrive(wire, dead, entry(letters[2], "c"), entry(letters[0], "a"))

    assert "Failed" not in answer
    back = await peeked(wire, url)
    assert [(message["Body"], message["MessageId"]) for message in back] == [
        (one["Id"], one["NewMessageId"]) for one in answer["Successful"]
    ]
    assert [message["SequenceNumber"] for message in back] == [
        one["NewSequenceNumber"] for one in answer["Successful"]
    ]
    assert [message["Attributes"]["ApproximateReceiveCount"] for message in back] == ["0", "0"]
    assert [letter["Body"] for letter in await peeked(wire, dead)] == ["b"]
    received = await wire.receive(url, MaxNumberOfMessages=10)
    assert [message["Body"] for message in received] == ["c", "a"]


async def test_a_letter_can_go_elsewhere_changed_and_marked(wire: Wire) -> None:
    colour = {"DataType": "String", "StringValue": "blue"}
    _, dead = await dead_letters(wire, "a", "b", MessageAttributes={"colour": colour})
    other = await wire.queue("other")
    [a, b] = await peeked(wire, dead)
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}}
    await redrive(
        wire,
        dead,
        entry(a, "a", DestinationQueueUrl=other, MessageBody="mended ä"),
        entry(b, "b", DestinationQueueUrl=other, MessageAttributes=attributes),
        MarkRedriven=True,
    )

    [first, second] = await wire.receive(other, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert first["Body"] == "mended ä"
    assert first["MD5OfBody"] == hashlib.md5("mended ä".encode()).hexdigest()
    mark = {"DataType": "String", "StringValue": a["MessageId"]}
    assert first["MessageAttributes"] == {"colour": colour, "Veil.RedrivenFrom": mark}
    assert second["Body"] == "b"
    assert second["MessageAttributes"].keys() == {"n", "Veil.RedrivenFrom"}


async def test_the_mark_finds_room_where_a_consumer_has_written_why_and_gives_way_to_the_sender(
    wire: Wire,
) -> None:
    def texts(*names: str) -> dict[str, dict[str, str]]:
        return {name: {"DataType": "String", "StringValue": "x"} for name in names}

    ours = ("veil.error_type", "veil.reason", "veil.source_queue", "veil.message_id", "veil.receive_count",
            "veil.handler", "veil.traceback", "veil.first_received_at", "veil.last_received_at")  # fmt: skip
    url, dead = await dead_letters(wire, "a", MessageAttributes=texts("type", *ours))
    full = texts(*(f"a{number}" for number in range(10)))
    [letter] = await peeked(wire, dead)

    answer = await redrive(wire, dead, entry(letter, "one"), MarkRedriven=True)
    assert [one["Id"] for one in answer["Successful"]] == ["one"]
    [back] = await wire.receive(url, MessageAttributeNames=["All"])
    found = set(back["MessageAttributes"])
    assert found == {"type", "Veil.RedrivenFrom", *ours} - {"veil.last_received_at"}

    await wire.call("DeleteMessage", QueueUrl=url, ReceiptHandle=back["ReceiptHandle"])
    await dead_letters(wire, "b", MessageAttributes=full)
    [letter] = await peeked(wire, dead)
    answer = await redrive(wire, dead, entry(letter, "two"), MarkRedriven=True)
    assert [one["Id"] for one in answer["Successful"]] == ["two"]


async def test_a_wrong_entry_fails_alone_and_says_why(wire: Wire) -> None:
    url, dead = await dead_letters(wire, "a", "b")
    small = await wire.queue("small", MaximumMessageSize="1024")
    fifo = await wire.queue("other.fifo")
    await wire.call("SendMessage", QueueUrl=dead, MessageBody="sent here")
    await wire.receive(dead)
    [held, good, sent_here] = await peeked(wire, dead)
    eleven = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}
    answer = await redrive(
        wire,
        dead,
        entry(held, "held"),
        entry(good | {"SequenceNumber": "7"}, "elsewhere"),
        entry(good | {"SequenceNumber": "x"}, "unreadable"),
        {"Id": "nothing", "MessageId": "m"},
        entry(sent_here, "nowhere"),
        entry(good, "no-queue", DestinationQueueUrl=f"{BASE}/none"),
        entry(good, "not-mine", DestinationQueueUrl="http://localhost:9324/999999999999/q"),
        entry(good, "other-type", DestinationQueueUrl=fifo),
        entry(good, "too-long", DestinationQueueUrl=small, MessageBody="x" * 1_025),
        entry(good, "characters", MessageBody="\x01"),
        entry(good, "empty", MessageBody=""),
        entry(good, "attributes", MessageAttributes=eleven),
        entry(good, "good"),
        entry(good, "again"),
    )

    assert [one["Id"] for one in answer["Successful"]] == ["good"]
    failed = {one["Id"]: one for one in answer["Failed"]}
    assert {name: one["Code"] for name, one in failed.items()} == {
        "held": "Veil.MessageNotVisible",
        "elsewhere": "Veil.MessageMissing",
        "unreadable": "InvalidParameterValue",
        "nothing": "MissingParameter",
        "nowhere": "Veil.SourceUnknown",
        "no-queue": "AWS.SimpleQueueService.NonExistentQueue",
        "not-mine": "AccessDenied",
        "other-type": "InvalidParameterValue",
        "too-long": "InvalidParameterValue",
        "characters": "InvalidMessageContents",
        "empty": "MissingParameter",
        "attributes": "InvalidParameterValue",
        "again": "Veil.MessageMissing",
    }
    assert all(one["SenderFault"] for one in failed.values())
    assert failed["held"]["Message"] == (
        f"Value {held['MessageId']} for parameter MessageId is invalid. "
        "Reason: The message is in flight; must be visible to be moved."
    )
    assert failed["unreadable"]["Message"].startswith(
        "Value x for parameter SequenceNumber is invalid. Reason: Must be"
    )
    assert [message["Body"] for message in await peeked(wire, url)] == ["b"]


async def test_a_batch_that_makes_no_sense_is_refused_as_a_whole(wire: Wire) -> None:
    _, dead = await dead_letters(wire, "a")
    [letter] = await peeked(wire, dead)
    with pytest.raises(Refused, match="EmptyBatchRequest"):
        await redrive(wire, dead)
    with pytest.raises(Refused, match="BatchEntryIdsNotDistinct"):
        await redrive(wire, dead, entry(letter), entry(letter))
    with pytest.raises(Refused, match=r"are 1000\. You have sent 1001"):
        await redrive(wire, dead, *(entry(letter, str(number)) for number in range(1_001)))


# ---- peeking


async def test_pages_may_have_a_thousand_messages(wire: Wire) -> None:
    url = await wire.queue()
    for start in range(0, 1_010, 10):
        entries = [{"Id": str(n), "MessageBody": f"m{start + n}"} for n in range(10)]
        await wire.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    first = await wire.call("Veil.PeekMessages", QueueUrl=url, MaxResults=1_000)
    rest = await wire.call("Veil.PeekMessages", QueueUrl=url, MaxResults=1_000, NextToken=first["NextToken"])

    assert [len(first["Messages"]), len(rest["Messages"])] == [1_000, 10]
    numbers = [int(message["SequenceNumber"]) for message in first["Messages"] + rest["Messages"]]
    assert numbers == sorted(set(numbers))
    assert "NextToken" not in rest


async def test_a_page_that_has_become_large_ends_early(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_peek, "PEEK_BYTES_MAX", 3)
    url = await wire.queue()
    for body in ("aa", "bb", "cc"):
        await wire.call("SendMessage", QueueUrl=url, MessageBody=body)
    first = await wire.call("Veil.PeekMessages", QueueUrl=url)
    rest = await wire.call("Veil.PeekMessages", QueueUrl=url, NextToken=first["NextToken"])

    assert [message["Body"] for message in first["Messages"]] == ["aa", "bb"]
    assert [message["Body"] for message in rest["Messages"]] == ["cc"]
    assert "NextToken" not in rest


async def test_a_look_can_be_bounded_by_time_and_by_what_was_there(wire: Wire) -> None:
    url = await wire.queue()
    for body in "abcd":
        await wire.call("SendMessage", QueueUrl=url, MessageBody=body)
        wire.clock.advance(seconds=1)
    every = await peeked(wire, url)
    times = [int(message["Attributes"]["SentTimestamp"]) for message in every]

    async def seen(**given: Any) -> str:
        return "".join(message["Body"] for message in await peeked(wire, url, **given))

    assert await seen(SentAfter=times[1]) == "bcd"
    assert await seen(SentAfter=times[1], SentBefore=times[2]) == "bc"
    assert await seen(SentBefore=times[1] - 1) == "a"
    assert await seen(UpTo=every[2]["SequenceNumber"]) == "abc"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"MaxResults": 1_001},
            "Value 1001 for parameter MaxResults is invalid. Reason: Must be between 1 and 1000",
        ),
        ({"SentAfter": -1}, "Value -1 for parameter SentAfter is invalid. Reason: Must be milliseconds"),
        ({"SentBefore": -1}, "Value -1 for parameter SentBefore is invalid. Reason: Must be milliseconds"),
        ({"UpTo": "1e9"}, "Value 1e9 for parameter UpTo is invalid. Reason: Must be a whole number"),
        ({"UpTo": str(1 << 63)}, f"Value {1 << 63} for parameter UpTo is invalid."),
    ],
)
async def test_a_wrong_bound_is_named(wire: Wire, given: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as refused:
        await peeked(wire, await wire.queue(), **given)
    assert refused.value.message.startswith(words)


async def test_a_redrive_of_what_matches_is_a_move_task(wire: Wire) -> None:
    url, dead = await dead_letters(wire, "apple", "pear")
    wire.clock.advance(1)
    await wire.call("Veil.StartRedrive", QueueUrl=dead, ContainedText="PEAR", RedrivenBefore=False)
    for _ in range(100):
        (task,) = (await wire.call("ListMessageMoveTasks", SourceArn=ARN))["Results"]
        if task["Status"] == "COMPLETED":
            break
        wire.clock.advance(100)
        await asyncio.sleep(0)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    assert [message["Body"] for message in await peeked(wire, url)] == ["pear"]
    with pytest.raises(Refused, match="MaxNumberOfMessagesPerSecond"):
        await wire.call("Veil.StartRedrive", QueueUrl=dead, MaxNumberOfMessagesPerSecond=501)
