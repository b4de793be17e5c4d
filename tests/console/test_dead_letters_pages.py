"""Dead letters in a browser: sorted by source, type and reason, and sent back by the server while one looks on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import TELEPHONE, OpenPage
from tests.console.web import Visitor
from tests.wire.test_outcomes import ask
from veil.core.attempt import ReportedOutcome, write_header
from veil.testing import VeilServer

ORDERS_DEAD = "/console/dead-letters/us-east-1/orders-dead"


def queues(sqs: Any, receives_max: int = 1) -> tuple[str, str]:
    """The URLs of a queue and of its dead letters."""
    dead = sqs.create_queue(QueueName="orders-dead")["QueueUrl"]
    arn = "arn:aws:sqs:us-east-1:000000000000:orders-dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives_max})
    return sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})["QueueUrl"], dead


def texts(**attributes: str) -> dict[str, Any]:
    return {
        name.replace("__", "."): {"DataType": "String", "StringValue": value}
        for name, value in attributes.items()
    }


def given_up(sqs: Any, dead: str, count: int, reason: str = "order {} has no lines", **more: str) -> None:
    """Letters as a consumer writes them."""
    for number in range(count):
        attributes = texts(
            veil__error_type="ValueError",
            veil__reason=reason.format(number),
            veil__source_queue="orders",
            MessageType="OrderPlaced",
            **more,
        )
        sqs.send_message(QueueUrl=dead, MessageBody=f"order {number}", MessageAttributes=attributes)


def dead_lettered(sqs: Any, orders: str, count: int) -> None:
    """Letters as the server makes them: of messages that were received once too often."""
    for number in range(count):
        sqs.send_message(QueueUrl=orders, MessageBody=f"poison {number}")
    while visible(sqs, orders):
        sqs.receive_message(QueueUrl=orders, MaxNumberOfMessages=10, VisibilityTimeout=0)


def visible(sqs: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages"]
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"][names[0]])


def test_dead_letters_come_together_by_source_type_and_reason(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    orders, dead = queues(sqs)
    given_up(sqs, dead, 3)
    given_up(sqs, dead, 1, "timed out after {} s")
    dead_lettered(sqs, orders, 2)

    page = open_page(f"{server.endpoint_url}/console/dead-letters")
    row = page.locator("#dead-rows tr").first
    assert row.locator("[data-label='Dead letters']").inner_text() == "6"
    assert row.locator("[data-label='Source queues']").inner_text() == "orders"
    row.get_by_role("link", name="orders-dead").click()

    groups = page.locator(".groups tbody tr")
    assert groups.locator("th").all_inner_texts() == [
        "ValueError: order <n> has no lines",
        "received 1 time without being deleted",
        "ValueError: timed out after <n> s",
    ]
    assert groups.locator("[data-label=Messages]").all_inner_texts() == ["3", "2", "1"]
    groups.nth(0).get_by_role("link").click()
    assert page.locator(".letters tbody tr").count() == 3
    assert "3 of 6 messages match" in page.locator(".sum").inner_text()
    # Looking receives nothing.
    assert visible(sqs, dead) == 6


def test_letters_that_the_server_made_are_shown_with_the_errors_of_their_attempts(
    tmp_path: Path, open_page: OpenPage
):
    with VeilServer("--data", str(tmp_path)) as server:
        sqs = server.client()
        orders, _ = queues(sqs)
        for error in ("shop.NoStock", "TimeoutError", "TimeoutError"):
            sqs.send_message(QueueUrl=orders, MessageBody=error)
            receipt = sqs.receive_message(QueueUrl=orders)["Messages"][0]["ReceiptHandle"]
            entry = {"Id": "0", "ReceiptHandle": receipt, "VisibilityTimeout": 0}
            reported = write_header({"0": ReportedOutcome("failed", error, "none left")})
            ask(server, "ChangeMessageVisibilityBatch", {"QueueUrl": orders, "Entries": [entry]}, reported)
            sqs.receive_message(QueueUrl=orders)  # once too often

        page = open_page(server.endpoint_url + ORDERS_DEAD)

        group = page.locator(".groups tbody th")
        assert group.inner_text() == "received 1 time without being deleted\nTimeoutError 2, shop.NoStock 1"
        reasons = page.locator(".letters [data-label=Reason]").all_inner_texts()
        assert [reason.split()[0] for reason in reasons] == ["shop.NoStock", "TimeoutError", "TimeoutError"]

        # What its holder said of an attempt is what the message's own page says.
        first = page.locator(".letters a.snippet").first.get_attribute("href")
        happened = open_page(f"{server.endpoint_url}{first}").locator(".happened [data-label=What]")
        assert happened.all_inner_texts() == [
            "Dead-lettered to orders-dead", "Failed: shop.NoStock", "Received", "Sent",
        ]  # fmt: skip

        # And chosen by them.
        group.get_by_role("link", name="TimeoutError").click()
        expect(page.locator(".sum")).to_contain_text("2 of 3 messages match · with error TimeoutError")
        expect(page.locator(".letters tbody tr")).to_have_count(2)
        page.get_by_role("button", name="Redrive all that match").click()
        page.get_by_role("button", name="Redrive all that match").click()
        move = page.locator("#letter-moves li").first
        expect(move.locator(".chip")).to_have_text("completed")
        expect(move.locator("b")).to_have_text("2 moved")
        bodies = [
            message["Body"]
            for message in sqs.receive_message(QueueUrl=orders, MaxNumberOfMessages=10)["Messages"]
        ]
        assert bodies == ["TimeoutError", "TimeoutError"]


def test_what_matches_is_redriven_by_the_server(server: VeilServer, sqs: Any, open_page: OpenPage):
    orders, dead = queues(sqs)
    given_up(sqs, dead, 8)
    given_up(sqs, dead, 2, "another {}")
    page = open_page(f"{server.endpoint_url}{ORDERS_DEAD}?text=LINES")

    page.get_by_role("button", name="Redrive all that match").click()
    assert page.locator("ins").inner_text() == "their source queues"
    assert "8 messages match at the moment" in page.locator("main").inner_text()
    assert visible(sqs, dead) == 10
    page.get_by_role("button", name="Redrive all that match").click()

    move = page.locator("#letter-moves li").first
    expect(move.locator(".chip")).to_have_text("completed")
    expect(move.locator("b")).to_have_text("8 moved")
    expect(page.locator("#letters-visible b")).to_have_text("2")
    assert visible(sqs, orders) == 8


def test_all_letters_of_the_server_go_back_by_a_move_task_which_can_be_cancelled(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    orders, dead = queues(sqs)
    dead_lettered(sqs, orders, 60)
    page = open_page(server.endpoint_url + ORDERS_DEAD)

    page.get_by_label("At most").fill("1")
    page.get_by_role("button", name="Redrive all").click()
    command = page.locator("pre.command").inner_text()
    assert command.startswith("aws sqs start-message-move-task")
    assert "--max-number-of-messages-per-second 1" in command
    page.get_by_role("button", name="Redrive all").click()

    move = page.locator("#letter-moves li").first
    expect(move.locator("b")).to_have_text(re.compile("^[1-9][0-9]* of 60 moved$"))
    move.get_by_role("button", name="Cancel").click()
    assert page.locator("pre.command").inner_text().startswith("aws sqs cancel-message-move-task")
    page.get_by_role("button", name="Stop the redrive").click()
    expect(page.locator("#letter-moves li").first.locator(".chip")).to_have_text("cancelled")
    left = visible(sqs, dead)
    assert left and left + visible(sqs, orders) == 60


def test_a_filtered_redrive_can_be_cancelled_too(server: VeilServer, sqs: Any, open_page: OpenPage):
    _, dead = queues(sqs)
    given_up(sqs, dead, 60)
    page = open_page(f"{server.endpoint_url}{ORDERS_DEAD}?source=orders")
    page.get_by_label("At most").fill("1")
    page.get_by_role("button", name="Redrive all that match").click()
    page.get_by_role("button", name="Redrive all that match").click()
    move = page.locator("#letter-moves li").first
    expect(move.locator("b")).to_have_text(re.compile("^[1-9][0-9]* moved$"))
    expect(move.locator("progress")).to_have_attribute("max", "60")
    move.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Stop the redrive").click()
    expect(page.locator("#letter-moves li").first.locator(".chip")).to_have_text("cancelled")
    assert visible(sqs, dead)


def test_ticked_letters_are_redriven_and_marked(server: VeilServer, sqs: Any, open_page: OpenPage):
    orders, dead = queues(sqs, receives_max=1)
    dead_lettered(sqs, orders, 3)
    # Without a script, as with one.
    page = open_page(server.endpoint_url + ORDERS_DEAD, java_script_enabled=False)
    page.locator(".letters tbody input[type=checkbox]").nth(0).check()
    page.locator(".letters tbody input[type=checkbox]").nth(1).check()
    page.get_by_role("button", name="Redrive selected").click()
    assert page.locator("table.differences tbody tr").count() == 2
    page.get_by_role("button", name="Redrive 2 messages").click()
    assert page.locator(".notice").inner_text() == "2 messages redriven to their source queues."
    assert (visible(sqs, orders), visible(sqs, dead)) == (2, 1)

    for _ in range(2):  # they fail again
        sqs.receive_message(QueueUrl=orders, MaxNumberOfMessages=10, VisibilityTimeout=0)
    page.goto(f"{server.endpoint_url}{ORDERS_DEAD}?redriven=yes")
    assert page.locator(".letters .chip.redriven").count() == 2
    assert "2 of 3 messages match" in page.locator(".sum").inner_text()


def test_letters_are_moved_elsewhere_and_a_wrong_destination_is_said_at_the_field(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    _, dead = queues(sqs)
    given_up(sqs, dead, 2)
    other = sqs.create_queue(QueueName="by-hand")["QueueUrl"]
    sqs.create_queue(QueueName="steps.fifo", Attributes={"FifoQueue": "true"})
    page = open_page(server.endpoint_url + ORDERS_DEAD, expected=("422",))
    for text, said in (
        ("nowhere", "'nowhere': there is no such queue"),
        ("steps.fifo", "'steps.fifo': expected a standard queue, as orders-dead is one"),
        ("orders-dead", "'orders-dead': the messages are already in this queue"),
        ("arn:aws:sqs:x", "'arn:aws:sqs:x': expected the name or the ARN of a queue"),
    ):
        page.get_by_label("To", exact=True).fill(text)
        page.get_by_label("Select all").check()
        page.get_by_role("button", name="Redrive selected").click()
        assert page.locator("#to-help .problem").inner_text() == f"{said}."
        assert page.locator(".letters tbody input:checked").count() == 2

    page.get_by_label("To", exact=True).fill("by-hand")
    page.get_by_label("At most").fill("501")
    page.get_by_role("button", name="Redrive selected").click()
    assert (
        "'501': expected a whole number of messages a second from 1 to 500"
        in page.locator("#rate-help").inner_text()
    )
    page.get_by_label("At most").fill("")
    page.get_by_role("button", name="Redrive selected").click()
    page.get_by_role("button", name="Redrive 2 messages").click()
    page.wait_for_selector(".notice")
    assert visible(sqs, other) == 2


def test_nothing_ticked_and_nothing_left_are_said(server: VeilServer, sqs: Any, open_page: OpenPage):
    _, dead = queues(sqs)
    given_up(sqs, dead, 1)
    page = open_page(server.endpoint_url + ORDERS_DEAD, expected=("422", "409"))
    page.get_by_role("button", name="Redrive selected").click()
    assert "No messages are selected" in page.get_by_role("alert").inner_text()
    page.get_by_label("Select all").check()
    page.get_by_role("button", name="Redrive selected").click()
    sqs.purge_queue(QueueUrl=dead)
    page.get_by_role("button", name="Redrive 1 message").click()
    assert "is no longer in the queue" in page.get_by_role("alert").inner_text()


def test_a_letter_full_of_attributes_is_redriven_all_the_same(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    orders, dead = queues(sqs)
    given_up(sqs, dead, 1, veil__traceback="…", veil__handler="h", veil__message_id="m", a="1", b="2", c="3")
    page = open_page(server.endpoint_url + ORDERS_DEAD)
    page.get_by_label("Select all").check()
    page.get_by_role("button", name="Redrive selected").click()
    page.get_by_role("button", name="Redrive 1 message").click()
    page.wait_for_selector(".notice")
    (message,) = sqs.receive_message(QueueUrl=orders, MessageAttributeNames=["All"])["Messages"]
    names = set(message["MessageAttributes"])
    assert "Veil.RedrivenFrom" in names and "veil.traceback" not in names and len(names) == 10


def test_a_letter_is_edited_and_sent_again(server: VeilServer, sqs: Any, open_page: OpenPage):
    orders, dead = queues(sqs)
    given_up(sqs, dead, 1)
    page = open_page(server.endpoint_url + ORDERS_DEAD)
    page.get_by_role("link", name="Edit and resend").click()
    page.get_by_label("Body").fill("order 0\nwith a line")
    page.get_by_label("Value of attribute 1").fill("OrderMended")
    page.get_by_label("Name of attribute 2").fill("by")
    page.get_by_label("Value of attribute 2").fill("hand")
    page.get_by_role("button", name="Show the change").click()

    changed = page.locator("table.differences tbody tr")
    assert changed.locator("th").all_inner_texts() == [
        "Queue",
        "Body",
        "Attribute MessageType",
        "Attribute by",
    ]
    assert changed.nth(1).locator("ins").inner_text() == "order 0\nwith a line"
    assert "aws sqs send-message" in page.locator("pre.command").inner_text()
    page.get_by_role("button", name="Send to orders").click()

    assert "Sent to orders as message" in page.locator(".notice").inner_text()
    assert page.locator("pre.body").inner_text() == "order 0\nwith a line"
    (message,) = sqs.receive_message(QueueUrl=orders, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"]["MessageType"]["StringValue"] == "OrderMended"
    assert message["MessageAttributes"]["by"]["StringValue"] == "hand"
    assert visible(sqs, dead) == 0


def test_an_attribute_of_several_lines_survives_an_edit_of_the_body(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    orders, dead = queues(sqs)
    given_up(sqs, dead, 1, note="first\nsecond\r\nthird")
    page = open_page(server.endpoint_url + ORDERS_DEAD)
    page.get_by_role("link", name="Edit and resend").click()
    page.get_by_label("Body").fill("mended")
    page.get_by_role("button", name="Show the change").click()
    changed = page.locator("table.differences tbody tr")
    assert changed.locator("th").all_inner_texts() == ["Queue", "Body"]
    page.get_by_role("button", name="Send to orders").click()
    page.wait_for_selector(".notice")
    (message,) = sqs.receive_message(QueueUrl=orders, MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == "mended"
    assert message["MessageAttributes"]["note"]["StringValue"] == "first\nsecond\r\nthird"


def test_what_the_queue_would_refuse_is_refused_and_the_letter_stays(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    _, dead = queues(sqs)
    given_up(sqs, dead, 1)
    page = open_page(server.endpoint_url + ORDERS_DEAD, expected=("409", "404"))
    page.get_by_role("link", name="Edit and resend").click()
    edit = page.url
    page.get_by_label("Type of attribute 1").fill("Sentence")
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Send to orders").click()
    assert "The change failed: The type of message (user) attribute" in page.get_by_role("alert").inner_text()
    assert visible(sqs, dead) == 1
    sqs.purge_queue(QueueUrl=dead)
    page.goto(edit)
    assert "It may have been deleted or moved since." in page.get_by_role("alert").inner_text()


def test_a_policy_that_names_a_queue_which_is_gone_is_pointed_out(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    _, dead = queues(sqs)
    sqs.delete_queue(QueueUrl=dead)
    page = open_page(f"{server.endpoint_url}/console/dead-letters")
    assert "orders: the redrive policy names orders-dead" in page.locator("p.problem").inner_text()


def test_a_viewer_looks_and_redrives_nothing(open_page: OpenPage):
    with VeilServer(
        "--store", "memory", environ={"VEIL_KEYS": "looker:secret::viewer,boss:secret"}
    ) as server:
        sqs = server.client(aws_access_key_id="boss", aws_secret_access_key="secret")
        _, dead = queues(sqs)
        given_up(sqs, dead, 1)
        page = open_page(server.endpoint_url + ORDERS_DEAD, expected=("403",))
        page.get_by_label("Access key id").fill("looker")
        page.get_by_label("Secret access key").fill("secret")
        page.get_by_role("button", name="Log in").click()
        assert page.locator(".letters tbody tr").count() == 1
        assert page.get_by_role("button", name="Redrive").count() == 0
        page.evaluate("document.getElementById('letters').submit()")
        page.wait_for_selector("[role=alert]")
        assert "This needs the role operator" in page.get_by_role("alert").inner_text()
        assert visible(sqs, dead) == 1
        page.close()
        sqs.close()


def test_on_a_telephone_nothing_is_cut(server: VeilServer, sqs: Any, open_page: OpenPage):
    _, dead = queues(sqs)
    given_up(sqs, dead, 2, "a-reason-without-a-single-blank-" * 5)
    page = open_page(server.endpoint_url + ORDERS_DEAD, viewport=TELEPHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    page.goto(f"{server.endpoint_url}/console/dead-letters")
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]


def test_of_many_letters_the_oldest_are_grouped_and_more_on_demand(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    _, dead = queues(sqs)
    for number in range(130):
        entries = [{"Id": str(place), "MessageBody": f"{number} {place}"} for place in range(10)]
        sqs.send_message_batch(QueueUrl=dead, Entries=entries)
    page = open_page(server.endpoint_url + ORDERS_DEAD)
    assert page.locator(".groups [data-label=Messages]").inner_text() == "1,000"
    assert page.locator(".letters tbody tr").count() == 50
    page.get_by_role("link", name="Look at 5,000").click()
    assert page.locator(".groups [data-label=Messages]").inner_text() == "1,300"
    page.get_by_role("link", name="Newer").click()
    assert page.locator(".letters tbody .snippet").first.inner_text() == "5 0"
    # One far behind is found within the bound of a look.
    page.goto(f"{server.endpoint_url}{ORDERS_DEAD}?text=129 9")
    assert page.locator(".letters tbody .snippet").all_inner_texts() == ["129 9"]


def test_one_message_does_not_break_the_pages_of_its_queue(server: VeilServer, sqs: Any):
    _, dead = queues(sqs)
    given_up(sqs, dead, 1, veil__receive_count="9" * 5_000)
    visitor = Visitor(server)
    letters = visitor.get(ORDERS_DEAD)
    assert letters.status == 200 and "order 0" in letters.text
    found = re.search(r"/console/queues/us-east-1/orders-dead/messages/\d+", letters.text)
    assert found is not None and visitor.get(found[0]).status == 200
