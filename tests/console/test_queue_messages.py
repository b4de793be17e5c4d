"""The messages of a queue in a browser: found, laid out, watched, and never received by looking."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import OpenPage, live_events
from veil.testing import VeilServer


def a_queue(sqs: Any, **attributes: str) -> str:
    return str(sqs.create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"])


def at(server: VeilServer, query: str = "") -> str:
    return f"{server.endpoint_url}/console/queues/us-east-1/orders/messages{query}"


def previews(page: Any) -> list[str]:
    return list(page.locator("#message-rows .preview").all_inner_texts())


def test_looking_at_messages_does_not_receive_them(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = a_queue(sqs)
    for body in ("first", "second"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    page = open_page(at(server))
    for _ in range(3):
        page.reload()
        assert previews(page) == ["first", "second"]
        assert page.locator("[data-label=Receives]").all_inner_texts() == ["0", "0"]
    received = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=2, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert [each["Attributes"]["ApproximateReceiveCount"] for each in received] == ["1", "1"]


def test_a_message_is_seen_to_disappear_and_to_come_back(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = a_queue(sqs)
    page = open_page(at(server))
    assert "no messages" in page.locator("#message-rows").inner_text()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    state = page.locator("#message-rows .chip")
    expect(state).to_have_text("visible")
    receipt = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    expect(state).to_have_text("in flight")
    expect(page.locator("#fact-in-flight b")).to_have_text("1")
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    expect(state).to_have_text("visible")
    expect(page.locator("[data-label=Receives]")).to_have_text("1")


def test_a_body_that_is_open_stays_open_while_its_message_is_received(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = a_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody='{"a":1}')
    page = open_page(at(server))
    live_events(page)
    page.locator("summary").click()
    sqs.receive_message(QueueUrl=url)
    expect(page.locator("#message-rows .chip")).to_have_text("in flight")
    expect(page.locator("#message-rows .countdown")).to_have_text(re.compile(r"^\d+ s$"))
    assert page.locator("pre.body").is_visible()


def test_messages_are_found_by_body_attribute_receives_age_and_state(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = a_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="was received")
    sqs.receive_message(QueueUrl=url)
    kind = {"kind": {"DataType": "String", "StringValue": "invoice"}}
    sqs.send_message(QueueUrl=url, MessageBody="An Apple", MessageAttributes=kind)
    sqs.send_message(QueueUrl=url, MessageBody="a pear", DelaySeconds=600)
    page = open_page(at(server))

    page.get_by_label("Body contains").fill("apple")
    page.get_by_role("button", name="Find").click()
    assert previews(page) == ["An Apple"]
    assert "3 messages searched, 1 found." in page.locator(".sum").inner_text()

    for query, found in {
        "?attribute=kind": ["An Apple"],
        "?attribute=kind%3Dinvoice": ["An Apple"],
        "?attribute=kind%3Dreceipt": [],
        "?receives=1": ["was received"],
        "?receives=2": [],
        "?state=delayed": ["a pear"],
        "?state=in-flight": ["was received"],
        "?older=1h": [],
        "?newer=1h": ["was received", "An Apple", "a pear"],
        "?newer=1h&text=P": ["An Apple", "a pear"],
    }.items():
        page.goto(at(server, query))
        assert previews(page) == found, query


def test_an_age_that_is_none_is_said(server: VeilServer, sqs: Any, open_page: OpenPage):
    a_queue(sqs)
    page = open_page(at(server, "?older=yesterday"))
    assert "'yesterday': expected a whole number of seconds" in page.get_by_role("alert").inner_text()


def test_pages_go_on_behind_the_last_message(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = a_queue(sqs)
    for first in range(0, 60, 10):
        entries = [{"Id": str(each), "MessageBody": f"number {each}"} for each in range(first, first + 10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    page = open_page(at(server))
    assert len(previews(page)) == 50
    page.get_by_role("link", name="Next").click()
    assert previews(page) == [f"number {each}" for each in range(50, 60)]
    assert page.get_by_role("link", name="Next").count() == 0
    page.get_by_role("link", name="Back to the oldest").click()
    assert previews(page)[0] == "number 0"


def test_a_body_that_was_opened_before_the_page_is_live_stays_open(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = a_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody='{"a":1}')
    page, held = open_page(at(server)), list[Any]()
    page.route("**/live*", lambda route: held.append(route))
    with page.expect_request("**/live*"):
        page.reload()
    page.locator("summary").click()
    drawn = page.locator("#message-rows tr").element_handle()
    held[0].continue_()
    live_events(page)
    drawn.wait_for_element_state("hidden")  # the row is another one now
    assert page.locator("pre.body").inner_text() == '{\n  "a": 1\n}'


def test_json_is_laid_out_with_its_numbers_as_they_were_sent(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = a_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody='{"price":1.10,"lines":[1,{"city":"Köln"}],"none":null}')
    page = open_page(at(server))
    page.locator("summary").click()
    assert page.locator("pre.body").inner_text() == (
        '{\n  "price": 1.10,\n  "lines": [\n    1,\n    {\n      "city": "Köln"\n    }\n  ],\n  "none": null\n}'
    )


def test_bodies_and_attributes_are_text_whatever_they_hold(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = a_queue(sqs)
    hostile = "<img src=x onerror=alert(1)></td><script>alert(2)</script>{{ 7 * 7 }}"
    attributes = {"what": {"DataType": "String", "StringValue": hostile}}
    sqs.send_message(QueueUrl=url, MessageBody=hostile, MessageAttributes=attributes)
    page = open_page(at(server))
    assert previews(page) == [hostile]
    assert hostile in page.locator(".attribute").inner_text()
    assert page.locator("#message-rows img, #message-rows script").count() == 0


def test_a_queue_that_is_not_there_is_said_not_to_be(server: VeilServer, sqs: Any, open_page: OpenPage):
    page = open_page(at(server), expected=("404",))
    assert page.get_by_role("alert").inner_text() == "There is no queue orders in us-east-1."


def test_without_a_script_messages_are_found_by_the_form(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = a_queue(sqs)
    for body in ("apple", "pear"):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"fruit": body}))
    page = open_page(at(server), java_script_enabled=False)
    page.get_by_label("Body contains").fill("pear")
    page.get_by_role("button", name="Find").click()
    assert previews(page) == ['{"fruit": "pear"}']
