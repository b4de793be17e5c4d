"""Receipt handles: what late, old and foreign ones may still do."""

from __future__ import annotations

import pytest

from tests.wire.kit import Refused, Wire

EXPIRED = "Value {} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
GONE = (
    "Value {} for parameter ReceiptHandle is invalid. Reason: "
    "Message does not exist or is not available for visibility timeout change."
)


async def a_receipt(wire: Wire, name: str, visibility: int = 10) -> tuple[str, str]:
    url = await wire.queue(name)
    more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if name.endswith(".fifo") else {}
    await wire.call("SendMessage", QueueUrl=url, MessageBody="x", **more)
    (message,) = await wire.receive(url, VisibilityTimeout=visibility)
    return url, message["ReceiptHandle"]


@pytest.mark.parametrize("name", ["q", "q.fifo"])
async def test_a_delete_in_time_and_again_succeeds(wire: Wire, name: str) -> None:
    url, handle = await a_receipt(wire, name)
    for _ in range(2):
        assert await wire.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == {}
    wire.clock.advance(seconds=11)
    assert await wire.receive(url) == []


async def test_a_late_delete_succeeds_on_a_standard_queue(wire: Wire) -> None:
    url, handle = await a_receipt(wire, "q")
    wire.clock.advance(seconds=11)
    await wire.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert await wire.receive(url) == []


@pytest.mark.parametrize(
    ("action", "more"), [("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 5})]
)
async def test_fifo_refuses_a_receipt_that_has_expired(wire: Wire, action: str, more: dict[str, int]) -> None:
    url, handle = await a_receipt(wire, "q.fifo")
    wire.clock.advance(seconds=11)
    with pytest.raises(Refused) as caught:
        await wire.call(action, QueueUrl=url, ReceiptHandle=handle, **more)
    assert (caught.value.code, caught.value.status) == ("InvalidParameterValue", 400)
    assert caught.value.message == EXPIRED.format(handle)


async def test_the_visibility_of_a_deleted_message_cannot_change(wire: Wire) -> None:
    url, handle = await a_receipt(wire, "q")
    await wire.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    with pytest.raises(Refused) as caught:
        await wire.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=5)
    assert (caught.value.code, caught.value.message) == ("InvalidParameterValue", GONE.format(handle))


async def test_twelve_hours_count_from_the_receive(wire: Wire) -> None:
    url, handle = await a_receipt(wire, "q")
    wire.clock.advance(seconds=1)
    with pytest.raises(Refused) as caught:
        await wire.call(
            "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_200
        )
    assert caught.value.message == (
        "Value 43200 for parameter VisibilityTimeout is invalid. Reason: "
        "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    )
    await wire.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_199)


async def test_zero_makes_the_message_visible_at_once(wire: Wire) -> None:
    url, handle = await a_receipt(wire, "q")
    await wire.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    assert len(await wire.receive(url)) == 1


async def test_a_receipt_of_another_queue_is_no_receipt(wire: Wire) -> None:
    _, handle = await a_receipt(wire, "q")
    other = await wire.queue("other")
    with pytest.raises(Refused) as caught:
        await wire.call("DeleteMessage", QueueUrl=other, ReceiptHandle=handle)
    assert (caught.value.code, caught.value.status) == ("ReceiptHandleIsInvalid", 404)


async def test_batches_answer_by_entry(wire: Wire) -> None:
    url, handle = await a_receipt(wire, "q")
    changed = await wire.call(
        "ChangeMessageVisibilityBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "none", "ReceiptHandle": handle},
            {"Id": "range", "ReceiptHandle": handle, "VisibilityTimeout": 43_201},
            {"Id": "bad", "ReceiptHandle": "x", "VisibilityTimeout": 1},
            {"Id": "good", "ReceiptHandle": handle, "VisibilityTimeout": 1},
        ],
    )
    assert changed["Successful"] == [{"Id": "good"}]
    assert [(one["Id"], one["Code"]) for one in changed["Failed"]] == [
        ("none", "MissingParameter"),
        ("range", "InvalidParameterValue"),
        ("bad", "ReceiptHandleIsInvalid"),
    ]
    deleted = await wire.call(
        "DeleteMessageBatch",
        QueueUrl=url,
        Entries=[{"Id": "bad", "ReceiptHandle": ""}, {"Id": "good", "ReceiptHandle": handle}],
    )
    assert deleted["Successful"] == [{"Id": "good"}]
    assert deleted["Failed"] == [
        {
            "Id": "bad",
            "SenderFault": True,
            "Code": "ReceiptHandleIsInvalid",
            "Message": 'The input receipt handle "" is not a valid receipt handle.',
        }
    ]


@pytest.mark.parametrize("name", ["q", "q.fifo"])
async def test_in_a_batch_the_receipt_of_a_deleted_message_is_an_invalid_receipt(
    wire: Wire, name: str
) -> None:
    url, handle = await a_receipt(wire, name)
    await wire.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    entry = {"Id": "0", "ReceiptHandle": handle, "VisibilityTimeout": 5}
    changed = await wire.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=[entry])
    reason = "Message does not exist or is not available for visibility timeout change"
    assert changed == {
        "Failed": [{"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": reason}]
    }
    root = await wire.query(
        "ChangeMessageVisibilityBatch",
        {"QueueUrl": url}
        | {f"ChangeMessageVisibilityBatchRequestEntry.1.{key}": str(value) for key, value in entry.items()},
    )
    (failed,) = root.iter("BatchResultErrorEntry")
    assert [(part.tag, part.text) for part in failed] == [
        ("Id", "0"),
        ("SenderFault", "true"),
        ("Code", "ReceiptHandleIsInvalid"),
        ("Message", reason),
    ]
