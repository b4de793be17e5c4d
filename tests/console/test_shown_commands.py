"""The aws commands that the console shows do what it would have done: each is run in a shell, as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import OpenPage
from veil.testing import VeilServer

AWS = Path(sys.executable).with_name("aws")
pytestmark = pytest.mark.skipif(not AWS.exists(), reason="the aws command is not installed")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    environ = {
        "PATH": f"{AWS.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "veil",
        "AWS_SECRET_ACCESS_KEY": "veil",
        "LANG": "C.UTF-8",
    }

    def run(page: Any) -> None:
        """Run what the page shows."""
        for command in page.locator("pre.command").all_inner_texts():
            ended = subprocess.run(
                ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=90
            )
            assert ended.returncode == 0, ended.stderr

    return run


def test_the_command_to_create_a_queue_creates_it(
    server: VeilServer, sqs: Any, open_page: OpenPage, run: Any
):
    sqs.create_queue(QueueName="dead")
    page = open_page(f"{server.endpoint_url}/console/queues/new")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Visibility timeout").fill("90")
    page.get_by_label("Dead-letter queue").fill("dead")
    page.get_by_label("Receives before that").fill("4")
    page.get_by_label("Tags").fill('team=it\'s "ours"\nplain=x')
    page.get_by_role("button", name="Show the change").click()
    run(page)
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "90" and '"maxReceiveCount":4' in found["RedrivePolicy"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": 'it\'s "ours"', "plain": "x"}


def test_the_commands_to_edit_tag_and_empty_a_queue_do_so(
    server: VeilServer, sqs: Any, open_page: OpenPage, run: Any
):
    url = sqs.create_queue(QueueName="orders", tags={"old": "1", "other old": "2"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    base = f"{server.endpoint_url}/console/queues/us-east-1/orders"
    page = open_page(f"{base}/edit")
    page.get_by_label("Visibility timeout").fill("7")
    page.get_by_label("May be the dead letters of").select_option("denyAll")
    page.get_by_role("button", name="Show the change").click()
    run(page)
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "7" and "denyAll" in found["RedriveAllowPolicy"]

    page.goto(f"{base}/tags")
    page.get_by_label("Edit the tags").fill("new=a b")
    page.get_by_role("button", name="Show the change").click()
    run(page)
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"new": "a b"}

    page.goto(f"{base}/purge")
    run(page)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_the_commands_to_send_and_to_release_do_so(
    server: VeilServer, sqs: Any, open_page: OpenPage, run: Any
):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    base = f"{server.endpoint_url}/console/queues/us-east-1/orders"
    page = open_page(f"{base}/send")
    page.get_by_label("Body").fill("it's $HOME\n<two> lines")
    page.get_by_label("Attributes").fill("size:Number=3")
    page.get_by_label("Group").fill("g")
    page.get_by_role("button", name="Show the message", exact=True).click()
    run(page)
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == "it's $HOME\n<two> lines"
    assert message["MessageAttributes"]["size"]["StringValue"] == "3"

    page.goto(f"{base}/in-flight")
    page.get_by_role("button", name="Release", exact=True).click()
    run(page)
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["MessageId"] == message["MessageId"]


def test_a_body_that_looks_like_an_address_is_sent_as_it_is(
    server: VeilServer, sqs: Any, open_page: OpenPage, run: Any
):
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders/send")
    page.get_by_label("Body").fill("file:///etc/hostname")
    page.get_by_role("button", name="Show the message", exact=True).click()
    run(page)
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "file:///etc/hostname"
