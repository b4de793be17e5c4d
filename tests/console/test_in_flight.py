"""What is in flight, in a browser: holders, countdowns that run and jump, and what an operator may do."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from playwright.sync_api import expect

from tests.console.conftest import OpenPage, live_events
from veil.testing import VeilServer


def held(sqs: Any, *bodies: str, visibility_s: int = 60, **attributes: str) -> tuple[str, list[str]]:
    """A queue whose messages are all in flight, and their receipts."""
    url = str(sqs.create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"])
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=visibility_s)[
        "Messages"
    ]
    return url, [each["ReceiptHandle"] for each in received]


def at(server: VeilServer) -> str:
    return f"{server.endpoint_url}/console/queues/us-east-1/orders/in-flight"


def counts(sqs: Any, url: str) -> tuple[int, int]:
    """How many are visible and in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def test_the_countdown_runs_and_jumps_when_the_lease_is_renewed(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url, (receipt,) = held(sqs, "x", visibility_s=50)
    page = open_page(at(server))
    left = page.locator("#lease-rows .countdown")
    expect(left).to_have_text(re.compile(r"^(50|4\d) s$"))
    before = left.inner_text()
    expect(left).not_to_have_text(before)  # it runs by itself
    assert int(left.inner_text().split()[0]) < int(before.split()[0])
    expect(page.locator("[data-label=Renewals]")).to_have_text("0")

    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=600)

    expect(left).to_have_text(re.compile(r"^(10 min|9 min \d+ s)$"))
    expect(page.locator("[data-label=Renewals]")).to_have_text("1")
    bar = page.locator("#lease-rows progress")
    assert bar.evaluate("each => each.value / each.max") > 0.9


def test_who_holds_a_message_is_said(server: VeilServer, sqs: Any, open_page: OpenPage):
    held(sqs, "x")
    page = open_page(at(server))
    text = page.locator("[data-label='Held by']").inner_text()
    assert "127.0.0.1" in text and "Boto3" in text
    assert re.search(
        r"ago\n\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", page.locator("[data-label=Received]").inner_text()
    )


def test_leases_are_sorted_by_their_deadlines(server: VeilServer, sqs: Any, open_page: OpenPage):
    url, receipts = held(sqs, "first", "second", "third")
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipts[0], VisibilityTimeout=900)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipts[2], VisibilityTimeout=300)
    page = open_page(at(server))
    expect(page.locator("#lease-rows .preview")).to_have_text(["first", "second", "third"])
    page.get_by_role("link", name="Deadline in").click()
    expect(page.locator("#lease-rows .preview")).to_have_text(["second", "third", "first"])
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipts[2], VisibilityTimeout=1_800)
    expect(page.locator("#lease-rows .preview")).to_have_text(["second", "first", "third"])  # live too


def test_a_new_lease_appears_and_one_that_ends_goes(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(at(server))
    rows = page.locator("#lease-rows tr.lease")
    assert "No messages are in flight." in page.locator("#lease-rows").inner_text()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    receipt = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    expect(rows).to_have_count(1)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    expect(rows).to_have_count(0)


def test_a_message_is_released_at_once(server: VeilServer, sqs: Any, open_page: OpenPage):
    url, (receipt,) = held(sqs, "x")
    page = open_page(at(server))
    page.get_by_role("button", name="Release", exact=True).click()
    assert page.locator("table.differences ins").inner_text() == "visible at once"
    command = page.locator("pre.command").inner_text()
    assert "change-message-visibility" in command and receipt in command
    assert "--visibility-timeout 0" in command and counts(sqs, url) == (0, 1)
    page.get_by_role("button", name="Release now").click()
    assert page.locator(".notice").inner_text() == "1 message released."
    assert counts(sqs, url) == (1, 0)


def test_a_lease_is_extended_and_its_holder_keeps_the_receipt(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url, (receipt,) = held(sqs, "x")
    page = open_page(at(server))
    page.get_by_label("Extend to").fill("1h")
    page.locator("#lease-rows").get_by_role("button", name="Extend").click()
    page.get_by_role("button", name="Extend").click()
    assert page.locator(".notice").inner_text() == "1 message extended to 1 h."
    expect(page.locator("#lease-rows .countdown")).to_have_text(re.compile("^(1 h|59 min)"))
    sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    assert counts(sqs, url) == (0, 0)


def test_a_lease_whose_receipt_was_replaced_is_released_all_the_same(open_page: OpenPage):
    with VeilServer("--store", "memory", "--smq-port", "0") as server:
        sqs = server.client()
        url = str(sqs.create_queue(QueueName="orders")["QueueUrl"])
        sqs.send_message(QueueUrl=url, MessageBody="x")
        messages = f"{server.smq_endpoint_url}/queues/orders/messages"
        named = {"x-mns-version": "2015-06-06"}  # as every client of SMQ sends it
        with urlopen(Request(messages, headers=named), timeout=60) as answer:
            receipt = re.findall("<ReceiptHandle>(.*)</ReceiptHandle>", answer.read().decode())[0]
        change = f"{messages}?receiptHandle={quote(receipt)}&visibilityTimeout=600"
        with urlopen(
            Request(change, method="PUT", headers=named), timeout=60
        ) as answer:  # gives its holder a new receipt
            assert receipt not in answer.read().decode()
        page = open_page(at(server))
        page.locator("#lease-rows").get_by_role("button", name="Release").click()
        page.get_by_role("button", name="Release now").click()
        assert page.locator(".notice").inner_text() == "1 message released."
        assert counts(sqs, url) == (1, 0)
        sqs.close()


def test_ticked_messages_are_deleted_together(server: VeilServer, sqs: Any, open_page: OpenPage):
    url, _ = held(sqs, "a", "b", "c")
    page = open_page(at(server))
    for number in (0, 2):
        page.locator("#lease-rows input[type=checkbox]").nth(number).check()
    page.locator(".lease-actions").get_by_role("button", name="Delete").click()
    assert page.locator("table.differences tbody tr").count() == 2
    page.get_by_role("button", name="Delete").click()
    assert page.locator(".notice").inner_text() == "2 messages deleted."
    assert counts(sqs, url) == (0, 1)


def test_a_tick_stays_while_leases_are_renewed(server: VeilServer, sqs: Any, open_page: OpenPage):
    url, receipts = held(sqs, "a", "b", visibility_s=50)
    page = open_page(at(server))
    live_events(page)
    boxes = page.locator("#lease-rows input[type=checkbox]")
    for number in range(2):
        boxes.nth(number).check()
    for receipt in receipts:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=600)
    for number in range(2):
        expect(page.locator("[data-label=Renewals]").nth(number)).to_have_text("1")
        expect(boxes.nth(number)).to_be_checked()


def test_a_lease_that_has_ended_meanwhile_is_left_alone(server: VeilServer, sqs: Any, open_page: OpenPage):
    url, (receipt,) = held(sqs, "x")
    page = open_page(at(server), expected=("422",))
    page.locator("#lease-rows").get_by_role("button", name="Delete").click()
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    sqs.receive_message(QueueUrl=url)
    page.get_by_role("button", name="Delete").click()
    assert "has ended since it was shown" in page.get_by_role("alert").inner_text()
    assert counts(sqs, url) == (0, 1)


def test_an_extension_beyond_the_limits_is_refused_in_words(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    held(sqs, "x")
    page = open_page(at(server), expected=("422", "409"))
    page.get_by_label("Extend to").fill("13h")
    page.locator("#lease-rows").get_by_role("button", name="Extend").click()
    assert (
        "'13h': expected a whole number of seconds from 1 to 43,200" in page.get_by_role("alert").inner_text()
    )
    page.go_back()
    page.get_by_label("Extend to").fill("12h")
    page.locator("#lease-rows").get_by_role("button", name="Extend").click()
    page.get_by_role("button", name="Extend").click()
    assert "more than 12 hours after the receive" in page.get_by_role("alert").inner_text()


def test_a_viewer_sees_the_leases_and_no_buttons(open_page: OpenPage):
    keys = {"VEIL_KEYS": "looker:a-secret-of-looker::viewer,worker:a-secret-of-worker::operator"}
    with VeilServer(environ=keys) as server:
        sqs = server.client(aws_access_key_id="worker", aws_secret_access_key="a-secret-of-worker")
        held(sqs, "x")
        page = open_page(at(server), expected=("403",))
        page.get_by_label("Access key id").fill("looker")
        page.get_by_label("Secret access key").fill("a-secret-of-looker")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/in-flight")
        expect(page.locator("#lease-rows tr.lease")).to_have_count(1)
        assert "worker" in page.locator("[data-label='Held by']").inner_text()
        assert page.locator("main button, main input[type=checkbox]").count() == 0
        assert page.get_by_role("link", name="Send", exact=True).count() == 0
        page.goto(f"{server.endpoint_url}/console/queues/us-east-1/orders/send")
        assert "needs the role operator" in page.get_by_role("alert").inner_text()
        sqs.close()
