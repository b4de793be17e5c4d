"""One message in a browser: its life is drawn from the journal and the store, and it is found when it is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.console.conftest import TELEPHONE, OpenPage, live_events
from veil.testing import VeilServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VeilServer]:
    """A server with a journal, of which nothing is exported before it stops."""
    data = tmp_path_factory.mktemp("data")
    with VeilServer("--data", str(data), "--journal-interval-s", "3600") as server:
        yield server


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def queue_with_dead_letters(sqs: Any, receives_max: int = 2) -> str:
    sqs.create_queue(QueueName="orders-dead")
    policy = {"deadLetterTargetArn": arn("orders-dead"), "maxReceiveCount": receives_max}
    made = sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": json.dumps(policy)})
    return str(made["QueueUrl"])


def receive(sqs: Any, url: str, visibility_s: int) -> Any:
    """The next message, as soon as there is one; where the machine stands still, leases get a grace."""
    answer: Any = {}
    while "Messages" not in answer:
        answer = sqs.receive_message(QueueUrl=url, VisibilityTimeout=visibility_s, WaitTimeSeconds=20)
    return answer["Messages"][0]


def lapsed_once_and_renewed(sqs: Any, url: str) -> Any:
    """A message whose first lease lapsed and whose second was renewed."""
    attributes = {"MessageType": {"DataType": "String", "StringValue": "OrderPlaced"}}
    sqs.send_message(QueueUrl=url, MessageBody='{"order": 1.10}', MessageAttributes=attributes)
    receive(sqs, url, 1)
    message = receive(sqs, url, 30)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=600)
    return message


def words(page: Any) -> list[str]:
    return [each.replace("\n", " ") for each in page.locator(".life-rows li p").all_inner_texts()]


def test_a_message_that_lapsed_once_and_was_renewed_is_drawn_with_both_leases(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = queue_with_dead_letters(sqs)
    message = lapsed_once_and_renewed(sqs, url)

    page = open_page(f"{server.endpoint_url}/console/messages")
    page.get_by_label("Message id", exact=True).fill(message["MessageId"])
    page.get_by_role("button", name="Find").click()

    stay, first, second = words(page)
    assert stay.startswith("orders sent 20") and stay.endswith("here now")
    assert first == "Attempt 1 held 1 s · lapsed · unknown"
    assert second == "Attempt 2 renewed 1 time · held now"
    drawn = page.locator(".life-rows li.lease")
    assert drawn.nth(0).locator("rect.held.lapsed").count() == 1
    assert drawn.nth(1).locator("line.renewal").count() == 1
    assert drawn.nth(1).locator("rect.held.open").count() == 1
    assert page.locator("#fact-state").inner_text().startswith("in flight")
    assert page.locator("#fact-receives").inner_text() == "2\nreceives of 2 before the dead letters"
    assert "renewed 1 time" in page.locator("#fact-holder").inner_text()
    assert page.locator("#fact-deadline .countdown").inner_text().startswith(("10 min", "9 min "))
    # Digits stay as they were sent.
    assert '"order": 1.10' in page.locator("pre.body").inner_text()


def test_the_drawing_follows_by_itself_when_the_message_is_deleted(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = queue_with_dead_letters(sqs)
    message = lapsed_once_and_renewed(sqs, url)
    page = open_page(f"{server.endpoint_url}/console/messages?id={message['MessageId']}")
    live_events(page)

    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    expect(page.locator("#fact-state .chip")).to_have_text("gone")
    expect(page.locator(".life-rows li.lease").nth(1)).to_contain_text("deleted in time")
    page.reload()
    assert "journal records what happened to a message, not its content" in page.locator("main").inner_text()
    assert page.locator("pre.body").count() == 0


def test_a_life_goes_on_through_the_dead_letters_and_back(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = queue_with_dead_letters(sqs, receives_max=1)
    first_id = sqs.send_message(QueueUrl=url, MessageBody="x")["MessageId"]
    receive(sqs, url, 0)
    sqs.receive_message(QueueUrl=url)  # finds nothing, for the message is one receive too many
    sqs.start_message_move_task(SourceArn=arn("orders-dead"))
    new_id = receive(sqs, url, 300)["MessageId"]
    assert new_id != first_id

    for known_id in (first_id, new_id):
        page = open_page(f"{server.endpoint_url}/console/messages?id={known_id}")
        titles = page.locator(".life-rows li.stay b").all_inner_texts()
        assert titles == ["orders", "orders-dead", "orders"]
        events = page.locator(".happened td.event").all_inner_texts()
        assert events == [
            "Received",
            "Sent",
            "Redriven to orders",
            "Dead-lettered to orders-dead",
            *events[4:],
        ]
        assert page.locator("h1 .mono").inner_text() == new_id


def test_a_delete_that_came_too_late_is_seen_on_the_lease_that_lapsed(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = queue_with_dead_letters(sqs, receives_max=9)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    late = receive(sqs, url, 1)
    second = receive(sqs, url, 300)
    # A success to its caller, of no effect.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=late["ReceiptHandle"])
    page = open_page(f"{server.endpoint_url}/console/messages?id={second['MessageId']}")
    assert "its delete came too late" in words(page)[1]
    assert page.locator(".life-rows li.lease").nth(0).locator("circle.late").count() == 1


def test_a_message_that_is_gone_is_told_from_exported_segments(tmp_path: Path, open_page: OpenPage):
    with VeilServer("--data", str(tmp_path), "--journal-interval-s", "3600") as server:
        sqs = server.client()
        url = queue_with_dead_letters(sqs)
        message = lapsed_once_and_renewed(sqs, url)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        sqs.delete_queue(QueueUrl=url)
        sqs.close()
    # A stop exports what waits, as far as it has the time; this the rest.
    export = [sys.executable, "-m", "veil.cli.main", "journal", "export", "--data", str(tmp_path)]
    subprocess.run(export, check=True, capture_output=True)
    assert list(tmp_path.glob("journal/day=*/*.parquet"))
    with VeilServer("--data", str(tmp_path)) as server:
        page = open_page(f"{server.endpoint_url}/console/messages?id={message['MessageId']}")
        assert "/queues/us-east-1/orders/messages/" in page.url
        assert [each.split(" ", 2)[2] for each in words(page)[1:]] == [
            "held 1 s · lapsed · unknown",
            words(page)[2].split(" ", 2)[2],
        ]
        assert "renewed 1 time · deleted in time" in words(page)[2]
        assert page.locator("#fact-state").inner_text().startswith("gone\ndeleted")
        page.close()


def test_without_a_journal_the_store_alone_is_drawn_and_the_page_says_so(open_page: OpenPage):
    with VeilServer() as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        message = receive(sqs, url, 300)
        page = open_page(
            f"{server.endpoint_url}/console/messages?id={message['MessageId']}", expected=("404",)
        )
        assert words(page)[1] == "Attempt 1 held now"
        assert "The journal is off" in page.locator("#message-life").inner_text()
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        page.reload()
        assert "there is no journal to look it up in" in page.get_by_role("alert").inner_text()
        page.close()
        sqs.close()


def test_what_is_not_there_is_said(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="orders")
    nobody = "00000000-0000-4000-8000-000000000000"
    page = open_page(f"{server.endpoint_url}/console/messages?id={nobody}", expected=("404",))
    assert f"No message {nobody} was found in the journal" in page.get_by_role("status").first.inner_text()
    page.goto(f"{server.endpoint_url}/console/messages?id=no-such")
    assert "No messages match" in page.get_by_role("status").first.inner_text()
    page.goto(f"{server.endpoint_url}/console/queues/us-east-1/orders/messages/17")
    assert (
        "nor the journal has a message with the sequence number 17" in page.get_by_role("alert").inner_text()
    )
    page.goto(f"{server.endpoint_url}/console/queues/us-east-1/orders/messages/last")
    assert "expected a whole number" in page.get_by_role("alert").inner_text()


def test_markup_in_a_message_is_shown_as_text(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    evil = "<script>document.title='broken'</script><img src=x onerror=alert(1)>"
    attributes = {"Type": {"DataType": "String", "StringValue": evil}}
    sent = sqs.send_message(QueueUrl=url, MessageBody=evil, MessageAttributes=attributes)
    page = open_page(f"{server.endpoint_url}/console/messages?id={sent['MessageId']}")
    assert page.locator("pre.body").inner_text() == evil
    assert page.locator("#fact-type b").inner_text() == evil
    assert page.title().startswith("Message")


def test_on_a_telephone_a_life_fits_the_width(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = queue_with_dead_letters(sqs)
    message = lapsed_once_and_renewed(sqs, url)
    page = open_page(
        f"{server.endpoint_url}/console/messages?id={message['MessageId']}",
        viewport=TELEPHONE,
        java_script_enabled=False,
    )
    widest = max(each.bounding_box()["width"] for each in page.locator(".life svg").all())
    assert widest <= TELEPHONE["width"]
    assert page.locator("main").bounding_box()["width"] <= TELEPHONE["width"]
