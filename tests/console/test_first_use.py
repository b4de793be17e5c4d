"""What somebody new to the console meets: first steps, refusals where they stand, the keyboard, times, and deleting."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import TELEPHONE, OpenPage, live_events
from veil.testing import VeilServer


def queue(sqs: Any, *bodies: str, name: str = "orders", **attributes: str) -> str:
    url = str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    return url


def dead_letters(sqs: Any, *bodies: str) -> tuple[str, str]:
    dead = queue(sqs, name="orders-dead")
    policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:orders-dead", "maxReceiveCount": 1}
    url = queue(sqs, *bodies, RedrivePolicy=json.dumps(policy))
    while visible(sqs, url):
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    return url, dead


def visible(sqs: Any, url: str) -> int:
    name = "ApproximateNumberOfMessages"
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def at(server: VeilServer, *parts: str) -> str:
    return "/".join((f"{server.endpoint_url}/console", *parts))


def test_a_console_without_queues_shows_the_first_three_commands(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    page = open_page(at(server, "queues"))
    shown = page.locator("#queue-none code").inner_text().strip().splitlines()
    assert [line.split(" --endpoint ")[0] for line in shown] == [
        "veil queue create orders",
        "veil msg send orders '{\"order\": 1}'",
        "veil msg receive orders --delete",
    ]
    assert all(line.endswith(f" --endpoint {server.endpoint_url}") for line in shown)
    page = open_page(at(server, "overview"))
    assert page.locator("#troubles-none code").inner_text().strip().splitlines() == shown


def test_who_deletes_some_of_what_a_filter_finds_is_back_at_what_it_finds(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    queue(sqs, "bad one", "good", "bad two")
    page = open_page(at(server, "queues/us-east-1/orders/messages?text=bad"), expected=("422",))
    page.get_by_role("button", name="Delete").click()
    assert "Select at least one message" in page.get_by_role("alert").inner_text()
    assert page.locator("#message-rows .preview").all_inner_texts() == ["bad one", "bad two"]
    page.get_by_role("checkbox", name="Select message").first.check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 1 message").click()
    assert page.locator(".notice").inner_text() == "1 message deleted."
    assert page.locator("#message-rows .preview").all_inner_texts() == ["bad two"]


def test_chosen_messages_are_deleted_and_what_is_held_is_left_alone(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = queue(sqs, "held", "bad one", "bad two", "good")
    sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)
    page = open_page(at(server, "queues/us-east-1/orders/messages"), expected=("422",))
    page.get_by_role("button", name="Delete").click()
    assert "Select at least one message" in page.get_by_role("alert").inner_text()
    assert page.locator("#message-rows tr").count() == 4  # said on the page itself
    for row in (0, 1, 2):
        page.locator("#message-rows input[type=checkbox]").nth(row).check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 3 messages").click()
    notice = page.get_by_role("status").first.inner_text()
    assert "2 messages deleted." in notice and "is in flight" in notice
    assert visible(sqs, url) == 1


def test_one_message_is_deleted_or_redriven_from_its_own_page(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url, dead = dead_letters(sqs, "first", "second")
    page = open_page(at(server, "queues/us-east-1/orders-dead/messages"))
    page.locator("#message-rows small a").nth(0).click()
    page.get_by_role("button", name="Redrive").click()
    page.get_by_role("button", name="Redrive 1 message").click()
    assert (visible(sqs, url), visible(sqs, dead)) == (1, 1)
    page.goto(at(server, "queues/us-east-1/orders-dead/messages"))
    page.locator("#message-rows small a").nth(0).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete 1 message").click()
    assert "1 message deleted." in page.get_by_role("status").first.inner_text()
    assert (visible(sqs, url), visible(sqs, dead)) == (1, 0)


def test_ticked_dead_letters_are_discarded(server: VeilServer, sqs: Any, open_page: OpenPage):
    _, dead = dead_letters(sqs, "a", "b", "c")
    page = open_page(at(server, "dead-letters/us-east-1/orders-dead"), expected=("422",))
    page.get_by_role("button", name="Delete selected").click()
    assert "No messages are selected" in page.get_by_role("alert").inner_text()
    for row in (0, 1):
        page.locator("table.letters tbody input[type=checkbox]").nth(row).check()
    page.get_by_role("button", name="Delete selected").click()
    page.get_by_role("button", name="Delete 2 messages").click()
    page.wait_for_url("**/dead-letters/us-east-1/orders-dead*")
    assert visible(sqs, dead) == 1


def test_nothing_ticked_in_flight_is_said_on_the_page_itself(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = queue(sqs, "x")
    sqs.receive_message(QueueUrl=url)
    page = open_page(at(server, "queues/us-east-1/orders/in-flight"), expected=("422",))
    page.get_by_role("button", name="Release now").click()
    assert "Select at least one message" in page.get_by_role("alert").inner_text()
    expect(page.locator("#lease-rows tr.lease")).to_have_count(1)


def test_a_page_that_is_not_there_says_so_and_leads_back(server: VeilServer, sqs: Any, open_page: OpenPage):
    queue(sqs)
    page = open_page(at(server, "queues"), expected=("404",))
    page.goto(at(server, "queues/us-east-1/nowhere"), referer=at(server, "queues?search=o"))
    assert page.get_by_role("heading", level=1).inner_text() == "Not found"
    page.get_by_role("link", name="Go back").click()
    page.wait_for_url("**/console/queues?search=o")


def test_a_lost_connection_is_seen_wherever_one_has_scrolled_to(open_page: OpenPage):
    with VeilServer() as server:
        sqs = server.client()
        queue(sqs, *(f"message {number}" for number in range(40)))
        sqs.close()
        page = open_page(
            at(server, "queues/us-east-1/orders/messages"), viewport=TELEPHONE, expected=("ERR_", "status of")
        )
        live_events(page)
        expect(page.locator("#live-state")).to_be_hidden()
        page.evaluate("scrollTo(0, 600)")
    banner = page.locator("#live-state")
    expect(banner).to_be_visible(timeout=60_000)
    box = banner.bounding_box()
    assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= TELEPHONE["height"]
    assert "not updating" in banner.inner_text()


def test_instants_are_in_the_readers_zone_with_utc_in_the_title(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    queue(sqs, "x")
    page = open_page(at(server, "queues/us-east-1/orders/messages"), timezone_id="Asia/Kolkata")
    shown = page.locator("#message-rows time.at").first
    utc = str(shown.get_attribute("title"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", utc)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", shown.inner_text())
    assert (
        int(shown.inner_text()[14:16]) - int(utc[14:16])
    ) % 60 == 30  # India is half an hour off the hours of UTC


def test_the_keyboard_searches_goes_and_tells_how(server: VeilServer, sqs: Any, open_page: OpenPage):
    queue(sqs)
    page = open_page(at(server, "dead-letters"))
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("g?q")  # in a field these are letters
    assert page.locator("#search").input_value() == "g?q"
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url("**/console/queues")


def test_commands_can_be_copied(server: VeilServer, sqs: Any, open_page: OpenPage):
    page = open_page(at(server, "queues"), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("veil queue create orders")
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page.goto(at(server, "queues/us-east-1/orders/settings"))
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == url
