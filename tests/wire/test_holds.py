"""Veil's own actions on holds, over a real socket with the pipeline's client and in plain JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.wire.kit import Refused, Wire
from tests.wire.listening import listening
from veil.client.api import ApiError, Attribute, Failure
from veil.pipeline.queues import BrowsedMessage, HoldAnswer, QueueAddress, QueueClient, SourceMessages


@pytest.fixture
def client() -> Iterator[QueueClient]:
    with listening() as port:
        endpoint = f"http://127.0.0.1:{port}"
        with QueueClient(QueueAddress(f"{endpoint}/000000000000/q", endpoint, "us-east-1")) as made:
            made.ask("CreateQueue", {"QueueUrl": None, "QueueName": "q"})
            yield made


def send(client: QueueClient, *bodies: str) -> None:
    for body in bodies:
        attributes = {"colour": {"DataType": "String", "StringValue": "blue"}}
        client.ask("SendMessage", {"MessageBody": body, "MessageAttributes": attributes}, repeatable=False)


def test_the_client_knows_a_veil_by_its_holds(client: QueueClient) -> None:
    assert client.is_veil()


def test_a_batch_is_read_twice_kept_and_acknowledged(client: QueueClient) -> None:
    send(client, "a", "b", "c")
    client.open_stream("epoch", "driver")
    part = 5_000 << 20 | 1  # more than 32 bits
    first = client.receive_hold("epoch", 0, part, 2, 60).result()
    again = client.receive_hold("epoch", 0, part, 2, 60).result()

    found = first.messages
    assert found.body == ["a", "b"]
    assert again == first
    assert found.attributes is not None
    assert [own["colour"].string_value for own in found.attributes if own] == ["blue", "blue"]
    assert found.system["ApproximateReceiveCount"] == ["1", "1"]
    assert found.system.keys() == {
        "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp",
    }  # fmt: skip
    tally = client.extend_holds("epoch", "driver", 60)
    assert (tally.messages, tally.lost) == (2, 0)
    tally = client.delete_holds("epoch", "driver", 0)
    assert (tally.messages, tally.lost) == (2, 0)
    assert client.attributes()["ApproximateNumberOfMessages"] == "1"
    assert client.attributes()["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_a_part_that_found_nothing_finds_nothing_again(client: QueueClient) -> None:
    assert client.receive_hold("epoch", 0, 0, 10).result().messages.body == []
    send(client, "late")
    content = client.receive_hold("epoch", 0, 0, 10).result()
    assert (content.messages.body, content.lost) == ([], 0)


def test_a_late_reader_and_a_driver_that_was_replaced_are_refused(client: QueueClient) -> None:
    client.open_stream("epoch", "old")
    client.receive_hold("epoch", 3, 0, 10).result()
    client.open_stream("epoch", "new")
    with pytest.raises(ApiError, match="Stream epoch has another owner") as taken:
        client.delete_holds("epoch", "old", 3)
    assert (taken.value.failure, taken.value.code) == (Failure.REFUSED, "Veil.StreamTaken")
    client.delete_holds("epoch", "new", 3)
    with pytest.raises(ApiError, match="up to 3 was acknowledged; must be greater") as closed:
        client.receive_hold("epoch", 2, 0, 10).result()
    assert (closed.value.failure, closed.value.code) == (Failure.REFUSED, "Veil.HoldClosed")


def test_a_thousand_messages_are_received_and_deleted_in_two_calls(client: QueueClient) -> None:
    batch = [{"MessageBody": f"m{number}"} for number in range(1_000)]
    client.send(batch)
    content = client.receive_hold("epoch", 0, 0, 1_000, 60).result()
    assert len(content.messages.body) == 1_000
    assert client.delete_holds("epoch", "driver", 0).messages == 1_000


# ---- in plain JSON


async def test_receipts_of_a_hold_work_like_any_others(wire: Wire) -> None:
    url = await wire.queue()
    await wire.call("SendMessage", QueueUrl=url, MessageBody="a")
    named = {"QueueUrl": url, "Stream": "s", "Batch": 0, "Part": 0, "MaxNumberOfMessages": 1}
    held = await wire.call("Veil.ReceiveHold", **named)
    (message,) = held["Messages"]
    assert (held["Lost"], set(message)) == (
        0,
        {"MessageId", "ReceiptHandle", "MD5OfBody", "Body", "Attributes"},
    )
    await wire.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert await wire.call("Veil.ReceiveHold", **named) == {"Messages": [], "Lost": 1}
    assert await wire.call("Veil.OpenStream", QueueUrl=url, Stream="s", Owner="o") == {}
    assert await wire.call("Veil.DeleteHolds", QueueUrl=url, Stream="s", Owner="o", UpToBatch=0) == {
        "Messages": 0,
        "Lost": 1,
    }


async def test_columns_tell_what_the_messages_tell(wire: Wire) -> None:
    url = await wire.queue("q.fifo", FifoQueue="true")
    blue = {"colour": {"DataType": "String", "StringValue": "blue"}}
    picture = {"picture": {"DataType": "Binary", "BinaryValue": "AAE="}}
    for number, own in enumerate([{}, blue, picture]):
        send = {"MessageBody": f"m{number}", "MessageGroupId": "g", "MessageDeduplicationId": str(number)}
        await wire.call("SendMessage", QueueUrl=url, **send, **({"MessageAttributes": own} if own else {}))
    named = {"QueueUrl": url, "Stream": "s", "Batch": 0, "Part": 0, "MaxNumberOfMessages": 10}

    columns = await wire.call("Veil.ReceiveHold", InColumns=True, **named)
    messages = await wire.call("Veil.ReceiveHold", **named)
    as_columns = msgspec.convert(columns, HoldAnswer).messages
    of_messages = SourceMessages.of(msgspec.convert(messages["Messages"], list[BrowsedMessage]))
    of_messages.attributes = [own or None for own in of_messages.attributes or []]
    assert as_columns == of_messages
    assert as_columns.system["MessageGroupId"] == ["g", "g", "g"]
    assert as_columns.attributes == [
        None,
        {"colour": Attribute("String", "blue")},
        {"picture": Attribute("Binary", binary_value=b"\0\1")},
    ]


async def test_the_windows_of_a_hold_are_the_queues_own_unless_given(wire: Wire) -> None:
    url = await wire.queue(VisibilityTimeout="40")
    await wire.call("SendMessage", QueueUrl=url, MessageBody="a")
    named = {"QueueUrl": url, "Stream": "s", "Batch": 0, "Part": 0, "MaxNumberOfMessages": 1}
    await wire.call("Veil.ReceiveHold", **named)
    wire.clock.advance(seconds=39)
    assert await wire.receive(url) == []
    wire.clock.advance(seconds=1)
    assert len(await wire.receive(url)) == 1


INVALID = "InvalidParameterValue"
MISSING = "MissingParameter"
GOOD: dict[str, dict[str, Any]] = {
    "ReceiveHold": {"Stream": "s", "Batch": 0, "Part": 0, "MaxNumberOfMessages": 1},
    "ExtendHolds": {"Stream": "s", "Owner": "o", "VisibilityTimeout": 30},
    "DeleteHolds": {"Stream": "s", "Owner": "o", "UpToBatch": 0},
    "OpenStream": {"Stream": "s", "Owner": "o"},
}
BAD = [
    (action, {parameter: None}, MISSING, f"The request must contain the parameter {parameter}.")
    for action, parameters in GOOD.items()
    for parameter in parameters
] + [
    (action, {"Stream": "a b"}, INVALID, "Value a b for parameter Stream is invalid. Reason: Must be 1 to 80 of A-Z")
    for action in GOOD
] + [
    ("OpenStream", {"Owner": "x" * 81}, INVALID, f"Value {'x' * 81} for parameter Owner is invalid. Reason: Must be 1 to 80"),
    ("ReceiveHold", {"Batch": -1}, INVALID, "Value -1 for parameter Batch is invalid. Reason: Must be a whole number from 0"),
    ("ReceiveHold", {"Part": -5}, INVALID, "Value -5 for parameter Part is invalid. Reason: Must be a whole number from 0"),
    ("DeleteHolds", {"UpToBatch": 1 << 62}, INVALID, f"Value {1 << 62} for parameter UpToBatch is invalid."),
    ("ReceiveHold", {"MaxNumberOfMessages": 1_001}, INVALID, "Value 1001 for parameter MaxNumberOfMessages is invalid."),
    ("ReceiveHold", {"MaxNumberOfMessages": 0}, INVALID, "Value 0 for parameter MaxNumberOfMessages"),
    ("ReceiveHold", {"VisibilityTimeout": 0}, INVALID, "Value 0 for parameter VisibilityTimeout is invalid. Reason: Must be"),
    ("ExtendHolds", {"VisibilityTimeout": 43_201}, INVALID, "Value 43201 for parameter VisibilityTimeout is invalid."),
    ("ReceiveHold", {"Batch": "x"}, "MalformedInput", "Expected `int | null`, got `str`"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "changed", "code", "words"), BAD)
async def test_a_wrong_parameter_is_named_with_its_value_and_what_was_expected(
    wire: Wire, action: str, changed: dict[str, Any], code: str, words: str
) -> None:
    given = {"QueueUrl": await wire.queue(), **GOOD[action]}
    given.update(changed)
    with pytest.raises(Refused) as refused:
        await wire.call(
            f"Veil.{action}", **{name: value for name, value in given.items() if value is not None}
        )
    assert (refused.value.status, refused.value.code) == (400, code)
    assert refused.value.message.startswith(words)


async def test_a_queue_without_a_window_of_its_own_needs_one_given(wire: Wire) -> None:
    url = await wire.queue(VisibilityTimeout="0")
    with pytest.raises(Refused, match="Value 0 for parameter VisibilityTimeout"):
        await wire.call("Veil.ReceiveHold", QueueUrl=url, **GOOD["ReceiveHold"])
    await wire.call("Veil.ReceiveHold", QueueUrl=url, VisibilityTimeout=5, **GOOD["ReceiveHold"])


@pytest.mark.parametrize("action", [*GOOD, "RedriveMessages", "PeekMessages"])
async def test_these_actions_are_not_sqs_ones_and_know_no_missing_queue(wire: Wire, action: str) -> None:
    given = GOOD.get(action, {})
    with pytest.raises(Refused, match="UnknownOperation"):
        await wire.call(action, QueueUrl=await wire.queue(), **given)
    with pytest.raises(Refused, match="The specified queue does not exist"):
        await wire.call(f"Veil.{action}", QueueUrl="http://localhost:9324/000000000000/none", **given)
    with pytest.raises(Refused):
        await wire.query(action, {"QueueUrl": "q"})
