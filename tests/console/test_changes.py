"""A change in a browser: filled in, shown as a difference and as a command, confirmed, made, recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.console.conftest import OpenPage
from veil.testing import VeilServer


def timeout_of(sqs: Any, url: str) -> str:
    return str(
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"][
            "VisibilityTimeout"
        ]
    )


def test_a_visibility_timeout_is_edited_through_a_difference_and_a_command(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit")

    page.get_by_label("Visibility timeout").fill("90")
    page.get_by_role("button", name="Show the change").click()

    row = page.locator("table.differences tbody tr")
    assert row.locator("del").inner_text() == "30 s"
    assert row.locator("ins").inner_text() == "1 min 30 s"
    command = page.locator("pre.command").inner_text()
    assert command.startswith("aws sqs set-queue-attributes") and "VisibilityTimeout=90" in command
    assert timeout_of(sqs, url) == "30"

    page.get_by_role("button", name="Change the queue").click()

    assert page.locator(".notice").inner_text() == "The visibility timeout of orders is now 1 min 30 s."
    assert timeout_of(sqs, url) == "90"


def test_what_is_wrong_is_said_beside_the_field(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit", expected=("422",))
    page.get_by_label("Visibility timeout").fill("43201")
    page.get_by_role("button", name="Show the change").click()
    assert page.locator("#visibility_s-help .problem").inner_text() == (
        "'43201': expected a whole number of seconds from 0 to 43,200 (12 h)."
    )
    assert page.get_by_label("Visibility timeout").input_value() == "43201"


def test_a_queue_that_changed_meanwhile_is_shown_again(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit", expected=("409",))
    page.get_by_label("Visibility timeout").fill("90")
    page.get_by_role("button", name="Show the change").click()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "45"})

    page.get_by_role("button", name="Change the queue").click()

    assert "changed since it was shown" in page.get_by_role("alert").inner_text()
    assert page.locator("table.differences del").inner_text() == "45 s"
    assert timeout_of(sqs, url) == "45"


def test_every_change_is_in_the_audit_log_on_disk(tmp_path: Path, open_page: OpenPage):
    with VeilServer("--data", str(tmp_path), "--journal", "off") as server:
        sqs = server.client()
        sqs.create_queue(QueueName="orders")
        page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit")
        page.get_by_label("Visibility timeout").fill("90")
        page.get_by_role("button", name="Show the change").click()
        assert not (tmp_path / "audit.jsonl").exists()
        page.get_by_role("button", name="Change the queue").click()
        page.wait_for_selector(".notice")
        asked, ended = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        sqs.close()
    assert asked["action"] == "edit queue" and asked["target"] == "orders" and asked["who"] == "local"
    assert asked["differences"] == [["Visibility timeout", "30 s", "1 min 30 s"]]
    assert ended["id"] == asked["id"] and ended["outcome"] == "done"
