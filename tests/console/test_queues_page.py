"""The list of queues in a browser: it finds, sorts, hides, and moves by itself."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import TELEPHONE, OpenPage, live_events
from tests.console.web import Visitor
from veil.console.live import STREAMS_PER_KEY_MAX
from veil.testing import VeilServer


def names(page: Any) -> list[str]:
    return [each.strip() for each in page.locator("#queue-rows th a").all_inner_texts()]


def test_the_front_page_lists_the_queues_with_their_counts(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "90"})["QueueUrl"]
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.receive_message(QueueUrl=url)

    page = open_page(f"{server.endpoint_url}/console/queues")

    row = page.locator("#queue-rows tr").first
    assert row.locator("[data-label=Visible]").inner_text() == "2"
    assert row.locator("[data-label='In flight']").inner_text() == "1"
    assert row.locator("[data-label='Visibility timeout']").inner_text() == "1 min 30 s"


def test_counts_change_by_themselves(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="moving")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues")
    visible = page.locator("#queue-rows tr").first.locator("[data-label=Visible]")
    expect(visible).to_have_text("0")

    sqs.send_message(QueueUrl=url, MessageBody="x")

    expect(page.locator("[data-label=Visible]").first).to_have_text("1")
    sqs.create_queue(QueueName="another")
    expect(page.locator("#queue-rows tr")).to_have_count(2)
    assert names(page) == ["another", "moving"]


def test_typing_finds_queues_and_the_address_says_what_was_found(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    for name in ("orders", "orders-dead", "mails"):
        sqs.create_queue(QueueName=name)
    page = open_page(f"{server.endpoint_url}/console/queues")

    page.get_by_placeholder("Search by name").fill("ORD")

    page.wait_for_url("**/console/queues?*search=ORD*")
    assert names(page) == ["orders", "orders-dead"]
    page.reload()
    assert names(page) == ["orders", "orders-dead"]
    assert page.locator("#queue-sum").inner_text() == "2 of 3 queues"


def test_queues_are_sorted_by_what_they_hold_and_empty_ones_are_hidden(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    for name, count in (("few", 1), ("many", 3), ("none", 0)):
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        for _ in range(count):
            sqs.send_message(QueueUrl=url, MessageBody="x")
    page = open_page(f"{server.endpoint_url}/console/queues")

    page.get_by_role("link", name="Visible").click()
    assert names(page) == ["many", "few", "none"]
    page.get_by_role("link", name="Visible").click()
    assert names(page) == ["none", "few", "many"]
    page.get_by_label("Hide empty").check()
    page.wait_for_url("**/console/queues?*empty=hide*")
    assert sorted(names(page)) == ["few", "many"]


def test_without_a_script_the_list_is_searched_by_its_form(server: VeilServer, sqs: Any, open_page: OpenPage):
    for name in ("orders", "mails"):
        sqs.create_queue(QueueName=name)
    page = open_page(f"{server.endpoint_url}/console/queues", java_script_enabled=False)
    page.get_by_placeholder("Search by name").fill("mai")
    page.get_by_placeholder("Search by name").press("Enter")
    assert names(page) == ["mails"]


def test_on_a_telephone_the_table_becomes_cards_and_nothing_is_cut(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    sqs.create_queue(QueueName="a-queue-with-a-rather-long-name-that-does-not-fit-on-one-line-of-a-telephone")
    page = open_page(f"{server.endpoint_url}/console/queues", viewport=TELEPHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    assert page.locator("thead").evaluate("each => getComputedStyle(each).position") == "absolute"


def test_a_hidden_tab_closes_its_stream_and_opens_it_again(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues")
    live_events(page)
    hide = (
        "value => { Object.defineProperty(document, 'hidden', {value, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(hide, True)
    before = page.evaluate("document.documentElement.dataset.liveEvents")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    with page.expect_request("**/console/queues/live*"):
        page.evaluate(hide, False)
    expect(page.locator("[data-label=Visible]").first).to_have_text("1")
    assert int(page.evaluate("document.documentElement.dataset.liveEvents")) > int(before)


def test_a_page_says_why_it_does_not_update(open_page: OpenPage):
    keys = "LOOK:secret::viewer,OTHER:secret:111111111111:viewer"
    with VeilServer("--store", "memory", environ={"VEIL_KEYS": keys}) as server:
        visitor, other = Visitor(server), Visitor(server)
        visitor.log_in("LOOK", "secret")
        other.log_in("OTHER", "secret")
        first = [_first_event(visitor, "/console/queues/live") for _ in range(STREAMS_PER_KEY_MAX + 5)]
        assert [event for _, event in first].count(b"event: full\n") == 5
        theirs, event = _first_event(other, "/console/queues/live")
        assert event == b"event: fragments\n"

        page = open_page(f"{server.endpoint_url}/console/login")
        page.get_by_label("Access key id").fill("LOOK")
        page.get_by_label("Secret access key").fill("secret")
        page.get_by_role("button", name="Log in").click()
        page.locator("#live-state").get_by_text("the key LOOK has 40 live pages open").wait_for()
        for connection, answer in (theirs, *(opened for opened, _ in first)):
            answer.close()
            connection.close()


def _first_event(visitor: Visitor, path: str) -> tuple[tuple[Any, Any], bytes]:
    """The stream, which is open for as long as both are held, and the name of its first event."""
    connection, answer = visitor.open(path)
    while not (line := answer.fp.readline()).startswith(b"event: "):
        assert line
    return (connection, answer), line
