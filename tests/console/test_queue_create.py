"""Create a queue in a browser: from nothing, of either type, and as a copy."""

from __future__ import annotations

import json
from typing import Any

from tests.console.conftest import OpenPage
from veil.testing import VeilServer


def attributes_of(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    return dict(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"])


def test_a_queue_is_created_with_the_settings_that_were_filled_in(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders-dead")
    page = open_page(f"{server.endpoint_url}/console/queues")
    page.get_by_role("link", name="Create a queue").click()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Visibility timeout").fill("5m")
    page.get_by_label("Retention").fill("2d")
    page.get_by_label("Dead-letter queue").fill("orders-dead")
    page.get_by_label("Maximum receives").fill("4")
    page.get_by_label("Tags").fill("team=shop\ncost centre = 4711")
    page.get_by_role("button", name="Show the change").click()

    shown = page.locator("table.differences").inner_text()
    assert "5 min" in shown and "orders-dead after 4 receives" in shown and "cost centre" in shown
    command = page.locator("pre.command").inner_text()
    assert command.startswith("aws sqs create-queue") and '"VisibilityTimeout": "300"' in command
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="orders-d2")
    assert [each.rpartition("/")[2] for each in sqs.list_queues()["QueueUrls"]] == ["orders-dead"]

    page.get_by_role("button", name="Create the queue").click()

    assert page.locator(".notice").inner_text() == "The queue orders was created."
    made = attributes_of(sqs, "orders")
    assert (made["VisibilityTimeout"], made["MessageRetentionPeriod"]) == ("300", "172800")
    assert json.loads(made["RedrivePolicy"])["maxReceiveCount"] == 4
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "shop", "cost centre": "4711"}


def test_a_fifo_queue_is_created_with_the_settings_of_its_type(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    page = open_page(f"{server.endpoint_url}/console/queues/new")
    assert page.get_by_label("Deduplication by content").count() == 0
    page.get_by_role("link", name="FIFO").click()
    page.get_by_label("Name", exact=True).fill("mails.fifo")
    page.get_by_label("Deduplication by content").select_option("yes")
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Create the queue").click()
    page.wait_for_selector(".notice")
    made = attributes_of(sqs, "mails.fifo")
    assert (made["FifoQueue"], made["ContentBasedDeduplication"]) == ("true", "true")


def test_a_copy_has_every_setting_the_tags_and_a_policy_that_names_the_copy(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    arn = "arn:aws:sqs:us-east-1:000000000000:orders"
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "111122223333"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.create_queue(
        QueueName="orders",
        Attributes={"VisibilityTimeout": "77", "DelaySeconds": "5", "Policy": policy},
        tags={"team": "shop"},
    )
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders")
    page.get_by_role("link", name="Clone").click()
    page.get_by_label("Name", exact=True).fill("orders-2")
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Create the queue").click()
    page.wait_for_selector(".notice")

    made = attributes_of(sqs, "orders-2")
    assert (made["VisibilityTimeout"], made["DelaySeconds"]) == ("77", "5")
    assert json.loads(made["Policy"])["Statement"][0]["Resource"] == f"{arn}-2"
    url = sqs.get_queue_url(QueueName="orders-2")["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "shop"}


def test_what_cannot_be_is_said_beside_each_field_and_nothing_is_lost(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    page = open_page(f"{server.endpoint_url}/console/queues/new", expected=("422",))
    page.get_by_label("Name", exact=True).fill("no good")
    page.get_by_label("Visibility timeout").fill("13h")
    page.get_by_label("Retention").fill("soon")
    page.get_by_label("Dead-letter queue").fill("nowhere")
    page.get_by_label("Region").fill("Far Away")
    page.get_by_label("Tags").fill("no value")
    page.get_by_label("Policy").fill("{")
    page.get_by_role("button", name="Show the change").click()

    # All of it at once, not one mistake after the other.
    assert "'Far Away'" in page.locator("#region-help .problem").inner_text()
    assert "'no value'" in page.locator("#tags-help .problem").inner_text()
    assert "JSON" in page.locator("#policy-help .problem").inner_text()
    assert "Queue name 'no good': expected 1 to 80" in page.locator("#name-help .problem").inner_text()
    assert (
        "'13h': expected a whole number of seconds"
        in page.locator("#visibility_s-help .problem").inner_text()
    )
    assert "'soon': expected" in page.locator("#retention_s-help .problem").inner_text()
    assert (
        "Enter a whole number of receives from 1 to 1,000."
        in page.locator("#receives_max-help .problem").inner_text()
    )
    assert page.get_by_label("Retention").input_value() == "soon"
    assert "QueueUrls" not in sqs.list_queues()


def test_a_name_that_is_taken_and_dead_letters_that_are_not_there_are_said(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders")
    page = open_page(f"{server.endpoint_url}/console/queues/new", expected=("422",))
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Dead-letter queue").fill("nowhere")
    page.get_by_label("Maximum receives").fill("3")
    page.get_by_role("button", name="Show the change").click()
    assert page.locator("#name-help .problem").inner_text() == "The queue orders already exists in us-east-1."
    assert "Dead letter target does not exist." in page.locator("#dead_letters-help .problem").inner_text()


def test_a_queue_is_created_without_a_script(server: VeilServer, sqs: Any, open_page: OpenPage):
    page = open_page(f"{server.endpoint_url}/console/queues/new", java_script_enabled=False)
    page.get_by_label("Name", exact=True).fill("plain")
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Create the queue").click()
    assert page.locator(".notice").inner_text() == "The queue plain was created."
    assert attributes_of(sqs, "plain")["VisibilityTimeout"] == "30"
