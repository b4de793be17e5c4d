"""The pages of a queue on a telephone: nothing is cut, and the main things can be done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.console.conftest import TELEPHONE, OpenPage
from veil.testing import VeilServer

NAME = "a-queue-with-a-rather-long-name-that-does-not-fit-on-one-line-of-a-telephone"


@pytest.fixture
def busy_queue(sqs: Any) -> str:
    """A queue with something on each of its pages, long words included."""
    url = str(sqs.create_queue(QueueName=NAME, tags={"k" * 100: "v" * 200})["QueueUrl"])
    attributes = {"a" * 60: {"DataType": "String", "StringValue": "w" * 300}}
    for body in ("w" * 3_000, json.dumps({"key" * 50: ["x" * 400]})):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    sqs.receive_message(QueueUrl=url)
    return url


def test_no_page_is_wider_than_a_telephone(server: VeilServer, busy_queue: str, open_page: OpenPage):
    base = f"{server.endpoint_url}/console/queues"
    page = open_page(base, viewport=TELEPHONE)
    pages = (
        "",
        "/in-flight",
        "/send",
        "/settings",
        "/tags",
        "/policy",
        "/activity",
        "/edit",
        "/delete",
        "/export",
    )
    for address in (*(f"{base}/us-east-1/{NAME}{each}" for each in pages), f"{base}/new?type=fifo"):
        page.goto(address)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= TELEPHONE["width"], address


def test_a_message_is_released_on_a_telephone(
    server: VeilServer, sqs: Any, busy_queue: str, open_page: OpenPage
):
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/{NAME}", viewport=TELEPHONE)
    page.get_by_role("link", name="In flight").click()
    page.get_by_role("button", name="Release", exact=True).click()
    page.get_by_role("button", name="Release now").click()
    assert page.locator(".notice").inner_text() == "1 message released."


def test_all_messages_of_a_page_are_selected_on_a_telephone(
    server: VeilServer, busy_queue: str, open_page: OpenPage
):
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/{NAME}", viewport=TELEPHONE)
    page.get_by_label("Select all").check(timeout=10_000)
    assert page.locator("[name=message]:checked").count() == 2


def test_every_main_page_is_in_sight_on_a_telephone(server: VeilServer, open_page: OpenPage):
    page = open_page(f"{server.endpoint_url}/console/audit", viewport=TELEPHONE)
    boxes = [link.bounding_box() for link in page.locator("header nav a").all()]
    assert len(boxes) == 7
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= TELEPHONE["width"] for box in boxes)


def test_the_button_to_copy_an_address_stands_behind_it(
    server: VeilServer, busy_queue: str, open_page: OpenPage
):
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/{NAME}/settings")
    button = page.locator(".pairs .copy").first
    button.wait_for()
    assert button.bounding_box()["width"] < 100
