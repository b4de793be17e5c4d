"""Delete and purge in a browser: the count is said, the name is typed, then it is done. And pauses."""

from __future__ import annotations

import re
from typing import Any

from tests.console.conftest import OpenPage
from tests.console.web import Visitor
from veil.testing import VeilServer


def filled(sqs: Any, name: str) -> str:
    """A queue with two visible messages, one in flight and one delayed."""
    url: str = sqs.create_queue(QueueName=name)["QueueUrl"]
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=300)
    sqs.receive_message(QueueUrl=url)
    return url


def test_a_queue_is_deleted_once_its_name_is_typed(server: VeilServer, sqs: Any, open_page: OpenPage):
    filled(sqs, "orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders", expected=("409",))
    page.get_by_role("link", name="Delete").click()
    note = page.locator("p.danger").first.inner_text()
    assert (
        note
        == "4 messages (2 visible, 1 in flight, 1 delayed) will be deleted with it. This cannot be undone."
    )

    page.get_by_label("Type orders to confirm").fill("order")
    page.get_by_role("button", name="Delete the queue").click()
    assert page.get_by_role("alert").inner_text() == "Type orders to confirm."
    assert sqs.list_queues()["QueueUrls"]

    page.get_by_label("Type orders to confirm").fill("orders")
    page.get_by_role("button", name="Delete the queue").click()
    assert page.locator(".notice").inner_text() == "The queue orders was deleted, with 4 messages."
    assert "QueueUrls" not in sqs.list_queues()


def test_deleting_says_whose_dead_letters_the_queue_holds(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="dead")
    arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":2}}'
    sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/dead/delete")
    assert "dead letters of orders" in page.locator("main").inner_text()


def test_a_queue_is_purged_of_all_that_is_in_it(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = filled(sqs, "orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders")
    page.get_by_role("link", name="Purge").click()
    assert (
        "4 messages (2 visible, 1 in flight, 1 delayed) will be deleted"
        in page.locator("p.danger").inner_text()
    )
    assert "aws sqs purge-queue" in page.locator("pre.command").inner_text()
    page.get_by_label("Type orders to confirm").fill("orders")
    page.get_by_role("button", name="Delete every message").click()

    assert page.locator(".notice").inner_text() == "The queue orders was purged of 4 messages."
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert [left[name] for name in left if name.startswith("ApproximateNumber")] == ["0", "0", "0"]


def test_a_queue_that_is_gone_meanwhile_is_said_to_be(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = filled(sqs, "orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/purge", expected=("404",))
    sqs.delete_queue(QueueUrl=url)
    page.get_by_label("Type orders to confirm").fill("orders")
    page.get_by_role("button", name="Delete every message").click()
    assert page.get_by_role("alert").inner_text() == "There is no queue orders in us-east-1."


def test_a_pause_is_confirmed_audited_and_shown_wherever_the_queue_is(server: VeilServer, sqs: Any):
    url = filled(sqs, "orders")
    visitor, address = Visitor(server), "/console/queues/us-east-1/orders"
    shown = visitor.get(f"{address}/pause")
    assert "veil queue pause orders" in shown.text
    plan = re.search('name="plan" value="([0-9a-f]+)"', shown.text)
    assert plan is not None

    done = visitor.post(f"{address}/pause", {"token": shown.token, "step": "make", "plan": plan[1]})
    assert done.status == 303
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    assert "Deliveries are paused" in visitor.get(f"{address}/messages").text
    assert '<span class="chip paused">paused</span>' in visitor.get("/console/queues").text
    assert "pause queue" in visitor.get("/console/audit").text
    metrics = visitor.get("/metrics").text
    assert 'veil_queue_paused{account="000000000000",queue="orders",region="us-east-1"} 1.0' in metrics

    shown = visitor.get(f"{address}/resume")
    plan = re.search('name="plan" value="([0-9a-f]+)"', shown.text)
    assert plan is not None
    visitor.post(f"{address}/resume", {"token": shown.token, "step": "make", "plan": plan[1]})
    assert sqs.receive_message(QueueUrl=url)["Messages"]
