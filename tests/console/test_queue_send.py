"""Send from a browser: one message with all it can carry, several from a file, and none by mistake."""

from __future__ import annotations

import json
from typing import Any

from tests.console.conftest import OpenPage
from veil.testing import VeilServer


def at(server: VeilServer, name: str = "orders") -> str:
    return f"{server.endpoint_url}/console/queues/us-east-1/{name}/send"


def received(sqs: Any, url: str) -> list[Any]:
    return list(
        sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        ).get("Messages", [])
    )


def a_file(*lines: object) -> dict[str, Any]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return {"name": "messages.jsonl", "mimeType": "application/x-ndjson", "buffer": text.encode()}


def test_a_message_is_sent_with_its_attributes(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(at(server))
    page.get_by_label("Body").fill("first line\n  second — <b>line</b>")
    page.get_by_label("Attributes").fill("kind=an order\nsize:Number=3\nraw:Binary=AAEC")
    page.get_by_role("button", name="Show the message", exact=True).click()
    command = page.locator("pre.command").inner_text()
    assert command.startswith("aws sqs send-message") and "--message-attributes" in command
    assert received(sqs, url) == []

    page.get_by_role("button", name="Send it").click()

    assert page.locator(".notice").inner_text().startswith("Sent message ")
    (message,) = received(sqs, url)
    assert message["Body"] == "first line\n  second — <b>line</b>"
    found = message["MessageAttributes"]
    assert found["kind"] == {"StringValue": "an order", "DataType": "String"}
    assert found["size"] == {"StringValue": "3", "DataType": "Number"}
    assert found["raw"] == {"BinaryValue": b"\x00\x01\x02", "DataType": "Binary"}


def test_a_delay_hides_the_message(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(at(server))
    page.get_by_label("Body").fill("later")
    page.get_by_label("Delay").fill("5m")
    page.get_by_role("button", name="Show the message", exact=True).click()
    page.get_by_role("button", name="Send it").click()
    page.wait_for_selector(".notice")
    delayed = "ApproximateNumberOfMessagesDelayed"
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[delayed])["Attributes"][delayed] == "1"


def test_a_fifo_message_needs_its_group_and_is_sent_with_it(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="mails.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    page = open_page(at(server, "mails.fifo"), expected=("422",))
    page.get_by_label("Body").fill("hello")
    page.get_by_role("button", name="Show the message", exact=True).click()
    assert page.locator("#group-help .problem").inner_text() == "A message for a FIFO queue needs a group."
    assert page.get_by_label("Body").input_value() == "hello"
    page.get_by_label("Group").fill("customer-7")
    page.get_by_label("Deduplication id").fill("once")
    page.get_by_role("button", name="Show the message", exact=True).click()
    page.get_by_role("button", name="Send it").click()
    page.wait_for_selector(".notice")
    (message,) = received(sqs, url)
    assert message["Attributes"]["MessageGroupId"] == "customer-7"
    assert message["Attributes"]["MessageDeduplicationId"] == "once"


def test_what_cannot_be_sent_is_said_beside_its_field(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders", Attributes={"MaximumMessageSize": "1024"})["QueueUrl"]
    page = open_page(at(server), expected=("422",))
    for fields, where, words in (
        ({"Body": "x", "Attributes": "no equals sign"}, "attributes", "expected NAME=VALUE"),
        ({"Body": "x", "Attributes": "size:Number=many"}, "attributes", "Can't cast the value"),
        ({"Body": "x" * 1025, "Attributes": ""}, "body", "1025 bytes, at most 1024 are allowed"),
        ({"Body": "x", "Delay": "901"}, "delay_s", "expected a whole number of seconds from 0 to 900"),
        ({"Delay": "", "Priority": "17"}, "priority", "from 1 to 16"),
    ):
        for label, text in fields.items():
            page.get_by_label(label).fill(text)
        page.get_by_role("button", name="Show the message", exact=True).click()
        assert words in page.locator(f"#{where}-help .problem").inner_text()
    assert received(sqs, url) == []


def test_several_are_sent_from_a_file(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(at(server))
    lines = [
        {"body": "plain"},
        {"body": {"order": 2, "city": "Köln"}, "attributes": {"kind": "test", "size": 3}},
        {"body": 'with <b>marks</b> & "quotes"\nand lines'},
    ]
    page.get_by_label("File of JSON lines").set_input_files(a_file(*lines))
    page.get_by_role("button", name="Show the messages").click()
    assert "3 of" in page.locator("table.differences").inner_text()
    assert "send-message-batch" in page.locator("pre.command").inner_text()
    page.get_by_role("button", name="Send 3 messages").click()
    assert page.locator(".notice").inner_text() == "3 messages sent."
    found = {message["Body"]: message.get("MessageAttributes") for message in received(sqs, url)}
    assert set(found) == {"plain", '{"order":2,"city":"Köln"}', lines[2]["body"]}
    assert found['{"order":2,"city":"Köln"}']["size"] == {"StringValue": "3", "DataType": "Number"}


def test_a_file_with_a_bad_line_is_refused_whole_and_the_line_named(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(at(server), expected=("422",))
    for second, words in (
        ("not json", "Line 2: 'not json': expected a JSON object"),
        ({"text": "x"}, "Line 2: Object contains unknown field `text`"),
        ({"body": "x", "visibility": 3}, "Line 2: Object contains unknown field `visibility`"),
        ({"body": ""}, "Line 2: the message has no body"),
        ({"body": "x", "delay_s": 5000}, "Line 2: delay_s: '5000': expected a whole number"),
    ):
        page.get_by_label("File of JSON lines").set_input_files(a_file({"body": "good"}, second))
        page.get_by_role("button", name="Show the messages").click()
        assert words in page.locator("#file-help .problem").inner_text()
    assert received(sqs, url) == []


def test_confirming_twice_sends_once(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(at(server))
    page.get_by_label("Body").fill("only once")
    page.get_by_role("button", name="Show the message", exact=True).click()
    form = "form => fetch(form.action, {method: 'POST', body: new URLSearchParams(new FormData(form))})"
    page.locator("main form").evaluate(f"{form}.then(answer => answer.status)")
    page.get_by_role("button", name="Send it").click()
    page.wait_for_selector(".notice")
    assert [message["Body"] for message in received(sqs, url)] == ["only once"]
