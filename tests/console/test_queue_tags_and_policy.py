"""Tags and the policy of a queue in a browser."""

from __future__ import annotations

import json
from typing import Any

from tests.console.conftest import OpenPage
from veil.testing import VeilServer

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"


def a_policy(action: str = "sqs:SendMessage") -> str:
    statement = {"Effect": "Allow", "Principal": {"AWS": "111122223333"}, "Action": action, "Resource": ARN}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def test_tags_come_go_and_change_through_a_difference(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders", tags={"team": "shop", "old": "yes", "kept": "1"})["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/tags")
    page.get_by_label("Edit the tags").fill("team=store\nkept=1\nnew=")
    page.get_by_role("button", name="Show the change").click()
    assert page.locator("table.differences tbody th").all_inner_texts() == ["old", "team", "new"]
    commands = page.locator("pre.command").all_inner_texts()
    assert ["untag-queue" in commands[0], "tag-queue" in commands[1]] == [True, True]
    page.get_by_role("button", name="Change the tags").click()
    page.wait_for_selector(".notice")
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "store", "kept": "1", "new": ""}


def test_a_line_that_is_no_tag_is_said(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/tags", expected=("422",))
    page.get_by_label("Edit the tags").fill("no equals sign")
    page.get_by_role("button", name="Show the change").click()
    assert "'no equals sign': expected KEY=VALUE" in page.locator("#tags-help .problem").inner_text()


def test_a_policy_is_stored_shown_and_removed(server: VeilServer, sqs: Any, open_page: OpenPage):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/policy")
    page.get_by_label("Edit the policy").fill(a_policy())
    page.get_by_role("button", name="Show the change").click()
    assert "set-queue-attributes" in page.locator("pre.command").inner_text()
    page.get_by_role("button", name="Change the policy").click()
    page.wait_for_selector(".notice")
    stored = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert json.loads(stored)["Statement"][0]["Action"] == "sqs:SendMessage"
    assert '"Action": "sqs:SendMessage"' in page.get_by_label("The policy", exact=True).inner_text()

    page.get_by_label("Edit the policy").fill("")
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Remove the policy").click()
    page.wait_for_selector(".notice")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])


def test_what_is_wrong_with_a_policy_is_said_in_the_services_words(
    server: VeilServer, sqs: Any, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/policy", expected=("422",))
    page.get_by_label("Edit the policy").fill('{"Version": ')
    page.get_by_role("button", name="Show the change").click()
    assert page.locator("#policy-help .problem").inner_text().startswith("Policy: ")
    assert page.get_by_label("Edit the policy").input_value() == '{"Version": '
