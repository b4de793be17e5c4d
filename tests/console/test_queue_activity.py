"""The charts of a queue in a browser: what happened is drawn, and moves."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import OpenPage
from veil.console.charts import activity_chart
from veil.testing import VeilServer


def test_sends_receives_and_deletes_are_drawn_as_they_happen(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/activity")
    totals = {name: page.locator(f"#chart-{name} .total") for name in ("sent", "received", "deleted")}
    assert totals["sent"].inner_text() == "0"
    for _ in range(3):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    first = sqs.receive_message(QueueUrl=url)["Messages"][0]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])

    expect(totals["sent"]).to_have_text("3")
    expect(totals["received"]).to_have_text("1")
    expect(totals["deleted"]).to_have_text("1")
    assert page.locator("#chart-sent rect.bar").count() >= 1
    page.get_by_role("link", name="Four hours").click()
    expect(totals["sent"]).to_have_text("3")
    label = page.locator("#chart-sent svg").get_attribute("aria-label")
    assert label is not None and re.match(r"Sent: 3 in all, at most \d in 60 s", label)


def test_what_is_given_back_and_dead_lettered_is_drawn_there_and_where_it_arrives(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    sqs.create_queue(QueueName="dead")
    policy = '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":1}'
    attributes = {"VisibilityTimeout": "600", "RedrivePolicy": policy}
    url = sqs.create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    receipt = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/activity")
    expect(page.locator("#chart-given_back .total")).to_have_text("1")
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    expect(page.locator("#chart-dead_lettered .total")).to_have_text("1")
    page.goto(f"{server.endpoint_url}/console/queues/us-east-1/dead/activity")
    expect(page.locator("#chart-arrived .total")).to_have_text("1")


def test_a_bar_is_as_high_as_its_share_of_the_scale():
    chart = activity_chart("sent", "Sent", [0, 10, 20, 0], 5)
    assert (chart.total, chart.highest) == (30, 20)
    assert [float(each) for each in re.findall(r'height="([\d.]+)"', chart.drawing)] == [50.0, 100.0]
    assert "<title>10 in 5 s, 15 s ago</title>" in chart.drawing
