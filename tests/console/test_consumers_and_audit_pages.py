"""Who receives, and who changed what: both in a browser, the first as it happens."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import TELEPHONE, OpenPage
from veil.testing import VeilServer


def change_timeout(page: Any, server: VeilServer, queue: str, timeout_s: int) -> None:
    page.goto(f"{server.endpoint_url}/console/queues/us-east-1/{queue}/edit")
    page.get_by_label("Visibility timeout").fill(str(timeout_s))
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Change the queue").click()
    page.wait_for_selector(".notice")


def test_consumers_are_told_apart_by_key_and_seen_as_they_work(open_page: OpenPage):
    with VeilServer() as server:
        first = server.client(aws_access_key_id="AKIDFIRST")
        second = server.client(aws_access_key_id="AKIDSECOND")
        url = first.create_queue(QueueName="orders")["QueueUrl"]
        page = open_page(f"{server.endpoint_url}/console/consumers")
        assert "No messages have been received" in page.locator("#consumer-rows").inner_text()

        first.send_message(QueueUrl=url, MessageBody="x")
        first.send_message(QueueUrl=url, MessageBody="y")
        held = first.receive_message(QueueUrl=url, VisibilityTimeout=300)["Messages"][0]
        first.change_message_visibility(
            QueueUrl=url, ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=600
        )
        second.receive_message(QueueUrl=url, VisibilityTimeout=1)

        row = page.locator("#consumer-rows tr", has_text="AKIDFIRST")
        expect(row.locator("[data-label='In progress']")).to_have_text("1")
        expect(row.locator("[data-label=Received]")).to_contain_text("1 renewal")
        expect(row.locator("[data-label=Queues]")).to_have_text("orders 1")
        other = page.locator("#consumer-rows tr", has_text="AKIDSECOND")
        # It neither deletes nor renews: a second later the lease has lapsed, and the page says so by itself.
        expect(other.locator("[data-label=Lapsed]")).to_have_text("1 unknown")
        expect(other.locator("[data-label='In progress']")).to_have_text("0")

        row.get_by_role("link", name="AKIDFIRST").click()
        assert "in progress" in page.locator("#held tbody tr").inner_text()
        page.go_back()

        page.get_by_placeholder("Key, address or user agent").fill("second")
        page.wait_for_url("**/console/consumers?*search=second*")
        assert page.locator("#consumer-rows tr").count() == 1
        page.close()
        first.close()
        second.close()


def test_the_audit_log_shows_the_newest_change_first_and_is_searched(open_page: OpenPage):
    with VeilServer() as server:
        sqs = server.client()
        for name in ("orders", "mails"):
            sqs.create_queue(QueueName=name)
        sqs.close()
        page = open_page(f"{server.endpoint_url}/console/audit")
        assert "Nobody has changed anything" in page.locator("main").inner_text()
        change_timeout(page, server, "orders", 90)
        change_timeout(page, server, "mails", 45)

        page.goto(f"{server.endpoint_url}/console/audit")
        what = page.locator(".audit tbody td[data-label=What] b")
        assert what.all_inner_texts() == ["edit queue", "edit queue"]
        assert "mails" in page.locator(".audit tbody tr").first.inner_text()
        assert "Visibility timeout: 30 s → 45 s" in page.locator(".audit tbody tr").first.inner_text()
        page.get_by_text("The aws command").first.click()
        assert "set-queue-attributes" in page.locator("pre.command").first.inner_text()
        page.get_by_label("Search").fill("ORDERS")
        page.get_by_role("button", name="Search").click()
        assert page.locator(".audit tbody tr").count() == 1
        page.get_by_label("Search").fill("nobody")
        page.get_by_role("button", name="Search").click()
        assert "No entry matches this search" in page.locator(".audit").inner_text()


def test_the_audit_log_is_read_page_by_page(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="often-edited")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/often-edited/edit")
    token = page.locator("input[name=token]").first.input_value()
    context = page.context
    for number in range(51):
        address = f"{server.endpoint_url}/console/queues/us-east-1/often-edited/edit"
        form = {"token": token, "visibility_s": str(number + 100)}
        shown = context.request.post(address, form=form, headers={"Origin": server.endpoint_url})
        plan = shown.text().split('name="plan" value="')[1].split('"')[0]
        done = context.request.post(
            address, form=form | {"step": "make", "plan": plan}, headers={"Origin": server.endpoint_url}
        )
        assert done.ok
    page.goto(f"{server.endpoint_url}/console/audit?search=often-edited")
    assert page.locator(".audit tbody tr").count() == 50
    page.get_by_role("link", name="Older").click()
    assert page.locator(".audit tbody tr").count() == 1
    page.get_by_role("link", name="To the newest").click()
    assert page.locator(".audit tbody tr").count() == 50


def test_on_a_telephone_both_fit_the_width(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    sqs.receive_message(QueueUrl=url)
    page = open_page(f"{server.endpoint_url}/console/consumers", viewport=TELEPHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    page.goto(f"{server.endpoint_url}/console/audit")
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
