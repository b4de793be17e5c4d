"""One queue, two protocols: what is made or sent over one, as the other sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.postgres_kit import why_no_postgres
from tests.service.kit import until
from tests.stores.kit import STORES
from tests.wire.kit import Refused
from tests.wire.smq_kit import SmqWire, fields, xml


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SmqWire]:
    reason = why_no_postgres() if request.param == "postgres" else None
    if reason is not None:
        pytest.skip(reason)
    async with SmqWire(make_store=lambda clock: STORES[request.param].make(tmp_path, clock)) as made:
        yield made


PATH = "/queues/orders/messages"
URL = "http://localhost:9324/000000000000/orders"
GONE = "404 MessageNotExist"


async def sqs_attributes(both: SmqWire, url: str) -> dict[str, str]:
    return (await both.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]))["Attributes"]


# ---- queues


async def test_a_queue_made_over_smq_shows_sqs_its_settings_though_sqs_could_not_make_it(
    both: SmqWire,
) -> None:
    await both.smq_queue("orders", DelaySeconds=604_800, PollingWaitSeconds=30, LoggingEnabled="True")
    told = await sqs_attributes(both, URL)

    assert told["DelaySeconds"] == "604800"
    assert told["ReceiveMessageWaitTimeSeconds"] == "30"
    assert told["MaximumMessageSize"] == "65536"
    assert (await both.call("ListQueues"))["QueueUrls"] == [URL]
    await both.call("SetQueueAttributes", QueueUrl=URL, Attributes={"VisibilityTimeout": "5"})
    assert (await sqs_attributes(both, URL))["DelaySeconds"] == "604800"
    for name, value in (("DelaySeconds", "901"), ("ReceiveMessageWaitTimeSeconds", "21")):
        with pytest.raises(Refused, match=name):
            await both.call("SetQueueAttributes", QueueUrl=URL, Attributes={name: value})


async def test_a_queue_made_over_sqs_shows_smq_what_smq_could_not_make(both: SmqWire) -> None:
    await both.queue("orders", VisibilityTimeout="0", MessageRetentionPeriod="1209600")
    await both.queue("with_underscore")
    told = fields(await both.smq_call("GET", "/queues/orders"))

    assert (told["VisibilityTimeout"], told["MessageRetentionPeriod"]) == ("0", "1209600")
    assert told["MaximumMessageSize"] == "1048576"
    await both.smq_send("/queues/with_underscore/messages")
    await both.smq_call("PUT", "/queues/orders?metaoverride=true", xml("Queue", VisibilityTimeout=9))
    assert (await sqs_attributes(both, URL))["MessageRetentionPeriod"] == "1209600"


async def test_an_sqs_receive_waits_no_longer_than_sqs_allows_on_a_queue_that_would(both: SmqWire) -> None:
    await both.smq_queue("orders", PollingWaitSeconds=30)
    (queue,) = await both.service.store.all_queues()
    poll = asyncio.create_task(both.receive(URL))
    await until(lambda: both.service.waiting.waiting(queue.id) == 1)
    both.clock.advance(seconds=20)
    assert await poll == []


async def test_the_queues_own_limit_counts_for_the_bodies_of_both(both: SmqWire) -> None:
    await both.smq_queue("orders")
    with pytest.raises(Refused, match="65536"):
        await both.call("SendMessage", QueueUrl=URL, MessageBody="x" * 65_537)
    url = await both.queue("large")
    await both.smq_send("/queues/large/messages", "x" * 100_000)
    (message,) = await both.receive(url)
    assert len(message["Body"]) == 100_000


# ---- messages


async def test_a_body_is_the_same_text_to_both(both: SmqWire) -> None:
    await both.smq_queue("orders")
    for body in ("aGk=", "grün & <rot>", "a\tb\nc"):
        await both.smq_send(PATH, body)
        (message,) = await both.receive(URL)
        assert message["Body"] == body
        await both.call("DeleteMessage", QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
        await both.call("SendMessage", QueueUrl=URL, MessageBody=body)
        got = await both.smq_receive(PATH)
        assert got["MessageBody"] == body
        assert got["MessageBodyMD5"] == message["MD5OfBody"].upper()
        await both.smq_call("DELETE", f"{PATH}?ReceiptHandle={got['ReceiptHandle']}")


async def test_priorities_count_for_sqs_receivers_and_sqs_messages_stand_in_the_middle(both: SmqWire) -> None:
    await both.smq_queue("orders")
    await both.smq_send(PATH, "last", Priority=9)
    await both.call("SendMessage", QueueUrl=URL, MessageBody="sqs")
    await both.smq_send(PATH, "first", Priority=7)

    got = await both.receive(URL, MaxNumberOfMessages=10)
    assert [message["Body"] for message in got] == ["first", "sqs", "last"]


PROPERTIES = """
<Message><MessageBody>x</MessageBody><UserProperties>
<PropertyValue><Name>kind</Name><Value>gr&#252;n</Value><Type>STRING</Type></PropertyValue>
<PropertyValue><Name>n</Name><Value>7.50</Value><Type>NUMBER</Type></PropertyValue>
<PropertyValue><Name>yes</Name><Value>true</Value><Type>BOOLEAN</Type></PropertyValue>
<PropertyValue><Name>raw</Name><Value>AP8=</Value><Type>BINARY</Type></PropertyValue>
</UserProperties><SystemProperties>
<SystemPropertyValue><Name>traceparent</Name><Value>00-1-2-01</Value><Type>STRING</Type></SystemPropertyValue>
</SystemProperties></Message>"""


async def test_properties_are_message_attributes_to_sqs(both: SmqWire) -> None:
    await both.smq_queue("orders")
    await both.smq_call("POST", PATH, PROPERTIES)
    (message,) = await both.receive(URL, MessageAttributeNames=["All"], VisibilityTimeout=0)

    assert message["MessageAttributes"] == {
        "kind": {"DataType": "String", "StringValue": "grün"},
        "n": {"DataType": "Number", "StringValue": "7.50"},
        "yes": {"DataType": "String.BOOLEAN", "StringValue": "true"},
        "raw": {"DataType": "Binary", "BinaryValue": "AP8="},
        "traceparent": {"DataType": "String", "StringValue": "00-1-2-01"},
    }
    root = await both.smq_call("GET", PATH)
    assert root is not None
    told = [
        tuple(fields(each).values())
        for holder in ("UserProperties", "SystemProperties")
        for each in root.findall(f"{holder}/*")
    ]
    assert told == [
        ("kind", "grün", "STRING"),
        ("n", "7.50", "NUMBER"),
        ("yes", "true", "BOOLEAN"),
        ("raw", "AP8=", "BINARY"),
        ("traceparent", "00-1-2-01", "STRING"),
    ]


async def test_message_attributes_are_properties_to_smq(both: SmqWire) -> None:
    await both.smq_queue("orders")
    attributes = {
        "label": {"DataType": "String.custom", "StringValue": "a & b"},
        "n": {"DataType": "Number.int", "StringValue": "1"},
        "png": {"DataType": "Binary.png", "BinaryValue": "AAE="},
    }
    await both.call("SendMessage", QueueUrl=URL, MessageBody="x", MessageAttributes=attributes)
    root = await both.smq_call("GET", PATH)

    assert root is not None
    told = {tuple(fields(each).values()) for each in root.findall("UserProperties/*")}
    assert told == {("label", "a & b", "STRING"), ("n", "1", "NUMBER"), ("png", "AAE=", "BINARY")}


@pytest.mark.parametrize(
    "property_xml",
    [
        "<PropertyValue><Name>a</Name><Value>x</Value><Type>COLOUR</Type></PropertyValue>",
        "<PropertyValue><Name>a</Name><Value>x</Value><Type>NUMBER</Type></PropertyValue>",
        "<PropertyValue><Name>a</Name><Value>maybe</Value><Type>BOOLEAN</Type></PropertyValue>",
        "<PropertyValue><Name>a</Name><Value>***</Value><Type>BINARY</Type></PropertyValue>",
        "<PropertyValue><Name>a</Name><Value/><Type>STRING</Type></PropertyValue>",
        "<PropertyValue><Value>x</Value><Type>STRING</Type></PropertyValue>",
    ],
)
async def test_properties_that_make_no_sense_are_refused(both: SmqWire, property_xml: str) -> None:
    await both.smq_queue("orders")
    document = (
        f"<Message><MessageBody>x</MessageBody><UserProperties>{property_xml}</UserProperties></Message>"
    )
    assert await both.refusal("POST", PATH, document) == "400 InvalidArgument"


# ---- leases


async def test_whoever_receives_holds_the_message_against_the_clients_of_both(both: SmqWire) -> None:
    await both.smq_queue("orders")
    await both.smq_send(PATH)
    got = await both.smq_receive(PATH)
    assert await both.receive(URL) == []
    both.clock.advance(seconds=30)
    (message,) = await both.receive(URL, AttributeNames=["ApproximateReceiveCount"])
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
    assert await both.refusal("GET", PATH) == GONE
    assert await both.refusal("DELETE", f"{PATH}?ReceiptHandle={got['ReceiptHandle']}") == GONE
    await both.call("DeleteMessage", QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])


async def test_each_protocol_keeps_its_own_manner_with_late_receipts(both: SmqWire) -> None:
    await both.smq_queue("orders")
    await both.smq_send(PATH)
    (message,) = await both.receive(URL)
    both.clock.advance(seconds=30)

    assert await both.refusal("DELETE", f"{PATH}?ReceiptHandle={message['ReceiptHandle']}") == GONE
    await both.call("DeleteMessage", QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
    assert (await sqs_attributes(both, URL))["ApproximateNumberOfMessages"] == "0"


async def test_a_rotated_handle_serves_sqs_and_the_one_before_it_does_not(both: SmqWire) -> None:
    await both.smq_queue("orders")
    await both.smq_send(PATH)
    old = (await both.smq_receive(PATH))["ReceiptHandle"]
    new = fields(await both.smq_call("PUT", f"{PATH}?ReceiptHandle={old}&VisibilityTimeout=60"))[
        "ReceiptHandle"
    ]
    with pytest.raises(Refused):
        await both.call("ChangeMessageVisibility", QueueUrl=URL, ReceiptHandle=old, VisibilityTimeout=5)
    await both.call("ChangeMessageVisibility", QueueUrl=URL, ReceiptHandle=new, VisibilityTimeout=90)
    both.clock.advance(seconds=89)
    await both.smq_call("DELETE", f"{PATH}?ReceiptHandle={new}")


async def test_dead_letters_of_sqs_policies_reach_smq_with_their_source(both: SmqWire) -> None:
    dead = await both.queue("dead")
    policy = '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":1}'
    await both.queue("orders", RedrivePolicy=policy, VisibilityTimeout="1")
    await both.smq_send(PATH, Priority=3)
    await both.smq_receive(PATH)
    both.clock.advance(seconds=1)
    assert await both.refusal("GET", PATH) == GONE

    root = await both.smq_call("GET", "/queues/dead/messages")
    assert root is not None
    assert (root.findtext("Priority"), root.findtext("DequeueCount")) == ("3", "2")
    source = root.find("SystemProperties/SystemPropertyValue")
    assert source is not None
    assert fields(source) == {
        "Name": "DLQSourceArn",
        "Value": "arn:aws:sqs:us-east-1:000000000000:orders",
        "Type": "STRING",
    }
    assert dead


# ---- FIFO queues


async def test_a_fifo_queue_is_served_over_smq_in_its_order_with_the_rules_of_its_type(both: SmqWire) -> None:
    await both.queue("turns.fifo", ContentBasedDeduplication="true")
    path = "/queues/turns.fifo/messages"
    for body in ("a1", "a2", "a1"):  # the third is a duplicate
        sent = await both.smq_send(path, body, MessageGroupId="A")
        assert sent["MessageGroupId"] == "A"
    assert await both.refusal("POST", path, xml("Message", MessageBody="x")) == "400 InvalidArgument"
    for wrong in ({"Priority": 1}, {"DelaySeconds": 5}):
        document = xml("Message", MessageBody="x", MessageGroupId="A", **wrong)
        assert await both.refusal("POST", path, document) == "400 InvalidArgument"

    first = await both.smq_receive(path)
    assert (first["MessageBody"], first["MessageGroupId"]) == ("a1", "A")
    assert await both.refusal("GET", path) == GONE
    changed = f"{path}?ReceiptHandle={first['ReceiptHandle']}&VisibilityTimeout=60"
    handle = fields(await both.smq_call("PUT", changed))["ReceiptHandle"]
    await both.smq_call("DELETE", f"{path}?ReceiptHandle={handle}")
    assert (await both.smq_receive(path))["MessageBody"] == "a2"
