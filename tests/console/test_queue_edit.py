"""Edit a queue in a browser: every setting, and what the service says against it."""

from __future__ import annotations

import json
from typing import Any

from tests.console.conftest import OpenPage
from veil.testing import VeilServer


def test_every_setting_of_a_queue_can_be_changed(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})
    url = sqs.create_queue(QueueName="mails.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/mails.fifo/edit")
    for label, text in {
        "Visibility timeout": "120",
        "Retention": "3600",
        "Delay": "7",
        "Receive wait": "20",
        "Largest message": "2048",
        "Dead-letter queue": "dead.fifo",
        "Maximum receives": "9",
        "Permitted queues": "other.fifo",
        "KMS key": "alias/mine",
        "Data key reuse": "600",
    }.items():
        page.get_by_label(label, exact=True).fill(text)
    for label, value in {
        "Deduplication by content": "yes",
        "Deduplication scope": "messageGroup",
        "Throughput limit": "perMessageGroupId",
        "Accepts dead letters from": "byQueue",
    }.items():
        page.get_by_label(label, exact=True).select_option(value)
    page.get_by_role("button", name="Show the change").click()
    # The key turned the managed encryption off: that is part of what is shown.
    assert page.locator("table.differences tbody tr").count() == 13
    page.get_by_role("button", name="Change the queue").click()

    assert page.locator(".notice").inner_text() == "13 settings of mails.fifo were changed."
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert {name: found[name] for name in found if "Number" not in name and "stamp" not in name} == {
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:mails.fifo",
        "VisibilityTimeout": "120",
        "MessageRetentionPeriod": "3600",
        "DelaySeconds": "7",
        "ReceiveMessageWaitTimeSeconds": "20",
        "MaximumMessageSize": "2048",
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
        "SqsManagedSseEnabled": "false",
        "KmsMasterKeyId": "alias/mine",
        "KmsDataKeyReusePeriodSeconds": "600",
        "RedrivePolicy": found["RedrivePolicy"],
        "RedriveAllowPolicy": found["RedriveAllowPolicy"],
    }
    assert json.loads(found["RedrivePolicy"])["maxReceiveCount"] == 9
    allowed = json.loads(found["RedriveAllowPolicy"])
    assert allowed == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": ["arn:aws:sqs:us-east-1:000000000000:other.fifo"],
    }


def test_what_the_service_refuses_is_said_beside_its_field(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit", expected=("422",))
    page.get_by_label("Dead-letter queue").fill("orders")
    page.get_by_label("Maximum receives").fill("3")
    page.get_by_role("button", name="Show the change").click()
    said = page.locator("#dead_letters-help .problem").inner_text()
    assert said == "A queue cannot be its own dead-letter queue."
    assert page.get_by_label("Dead-letter queue").get_attribute("aria-invalid") == "true"


def test_dead_letters_are_taken_away_by_emptying_their_field(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    sqs.create_queue(QueueName="dead")
    policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead", "maxReceiveCount": 2}
    url = sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit")
    page.get_by_label("Dead-letter queue").fill("")
    page.get_by_role("button", name="Show the change").click()
    assert page.locator("table.differences del").inner_text() == "dead after 2 receives"
    page.get_by_role("button", name="Change the queue").click()
    page.wait_for_selector(".notice")
    assert "RedrivePolicy" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]


def test_a_queue_that_is_gone_by_the_time_of_the_confirmation_is_said_to_be(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/edit", expected=("404",))
    page.get_by_label("Visibility timeout").fill("90")
    page.get_by_role("button", name="Show the change").click()
    sqs.delete_queue(QueueUrl=url)
    page.get_by_role("button", name="Change the queue").click()
    assert page.get_by_role("alert").inner_text() == "There is no queue orders in us-east-1."


def test_the_settings_page_shows_them_all_and_where_the_queue_is(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "90"})["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders")
    page.get_by_role("link", name="Settings").click()
    text = page.locator("main").inner_text()
    assert "1 min 30 s" in text and url in text and "arn:aws:sqs:us-east-1:000000000000:orders" in text
