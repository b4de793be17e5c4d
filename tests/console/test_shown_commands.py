"""The aws commands that the console shows do what it would have done: each is run in a shell, as it stands."""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.console.conftest import OpenPage
from tests.console.web import Got, Visitor
from veil.testing import VeilServer

AWS = Path(sys.executable).with_name("aws")
pytestmark = pytest.mark.skipif(not AWS.exists(), reason="the aws command is not installed")


# Stands for `aws` in the shell and writes down what it was called with: the shell is real, and so is what reads the words.
WRITES_DOWN = """#!/bin/sh
printf '%s\\0' "$#" "$@" >> "$AWS_CALLS"
"""


@cache
def aws() -> Any:
    """The aws command; to make it takes longer than to run it."""
    from awscli.clidriver import create_clidriver

    return create_clidriver()


def run_in_a_shell(command: str, folder: Path) -> None:
    """Run an aws command as pasted into a shell there. aws itself runs in this process: each start is half a second."""
    calls = folder / ".calls"
    calls.write_bytes(b"")
    (folder / ".bin").mkdir(exist_ok=True)
    (folder / ".bin" / "aws").write_text(WRITES_DOWN)
    (folder / ".bin" / "aws").chmod(0o755)
    environ = {
        "PATH": f"{folder / '.bin'}:{os.environ['PATH']}",
        "AWS_CALLS": str(calls),
        "HOME": str(folder),
    }
    subprocess.run(["sh", "-c", command], env=environ | {"LANG": "C.UTF-8"}, cwd=folder, check=True)
    words = iter(calls.read_text().split("\0"))
    ran = 0
    while count := next(words):
        arguments = [next(words) for _ in range(int(count))]
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
            for name in (
                "AWS_PROFILE",
                "AWS_REGION",
                "AWS_DEFAULT_REGION",
                "AWS_ENDPOINT_URL",
                "AWS_ENDPOINT_URL_SQS",
            ):
                patch.delenv(name, raising=False)
            patch.setenv("AWS_ACCESS_KEY_ID", "veil")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "veil")
            patch.setenv("HOME", str(folder))
            patch.chdir(folder)
            assert aws().main(arguments) == 0, command + said.getvalue()
        ran += 1
    assert ran, command


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def run(page: Any) -> None:
        """Run what the page shows."""
        for command in page.locator("pre.command").all_inner_texts():
            run_in_a_shell(command, tmp_path)

    return run


def test_the_command_to_create_a_queue_creates_it(
    server: VeilServer, sqs: Any, open_page: OpenPage, run: Any
):
    sqs.create_queue(QueueName="dead")
    page = open_page(f"{server.endpoint_url}/console/queues/new")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Visibility timeout").fill("90")
    page.get_by_label("Dead-letter queue").fill("dead")
    page.get_by_label("Maximum receives").fill("4")
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
    page.get_by_label("Accepts dead letters from").select_option("denyAll")
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


# ---- what a sender wrote is a text, whatever it looks like


def shown_commands(got: Got) -> list[str]:
    found = re.findall(r'<pre class="command"[^>]*><code>(.*?)</code></pre>', got.text, re.DOTALL)
    return [html.unescape(each) for each in found]


@pytest.fixture
def run_shown(tmp_path: Path) -> Callable[[Got], None]:
    """Run the commands of a page in a folder where `secret.txt` and `body.txt` lie."""
    for name in ("secret.txt", "body.txt", "entries.json"):
        (tmp_path / name).write_text("the secret of whoever pastes")

    def run(got: Got) -> None:
        commands = shown_commands(got)
        assert commands, got.text[:2000]
        for command in commands:
            run_in_a_shell(command, tmp_path)

    return run


@pytest.fixture
def visitor(server: VeilServer) -> Visitor:
    return Visitor(server)


MISLEADING = [
    "file://secret.txt",
    "fileb://secret.txt",
    "file://{folder}/secret.txt",
    "http://{host}/healthz",
    "https://{host}/healthz",
    "--debug",
    "-",
    "@secret.txt",
    '["file://secret.txt"]',
    '{{"file://secret.txt": 1}}',
    "$(cat secret.txt) `cat secret.txt` 'quoted' \\ é 日本",
    "\x85\x9b201~\ttabs and controls",
]


@pytest.mark.parametrize("text", MISLEADING)
def test_no_shown_command_reads_a_file_or_an_address_for_a_body(
    server: VeilServer, sqs: Any, visitor: Visitor, run_shown: Any, tmp_path: Path, text: str
):
    body = text.format(folder=tmp_path, host=urlsplit(server.endpoint_url).netloc)
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    target = sqs.create_queue(QueueName="orders")["QueueUrl"]
    attributes = {"note": {"DataType": "String", "StringValue": body}}
    sqs.send_message(QueueUrl=dead, MessageBody=body, MessageAttributes=attributes)
    letters = visitor.get("/console/dead-letters/us-east-1/dead").text
    found = re.search(r"/console/dead-letters/us-east-1/dead/(\d+)/edit", letters)
    assert found is not None
    fields = {
        "token": visitor.get(found[0]).token,
        "body": body,
        "to": "orders",
        "attribute_name": "note",
        "attribute_type": "String",
        "attribute_value": body,
    }
    run_shown(visitor.post(found[0], fields))

    (message,) = sqs.receive_message(QueueUrl=target, MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == body
    assert message["MessageAttributes"]["note"]["StringValue"] == body


def test_no_shown_command_reads_a_file_for_a_tag_a_group_or_a_name(
    server: VeilServer, sqs: Any, visitor: Visitor, run_shown: Any
):
    old = {"file://secret.txt": "1", "-dash": "2", "[list": "3", "fileb": "4"}
    url = sqs.create_queue(QueueName="orders", tags=old)["QueueUrl"]
    path = "/console/queues/us-east-1/orders"
    fields = {
        "token": visitor.get(f"{path}/tags").token,
        "tags": 'file://body.txt=x\na=file://secret.txt\n"b@"=fileb://secret.txt\n-c=-d',
    }
    run_shown(visitor.post(f"{path}/tags", fields))
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {
        "file://body.txt": "x",
        "a": "file://secret.txt",
        "b@": "fileb://secret.txt",
        "-c": "-d",
    }

    fields = {"token": fields["token"], "body": "x", "group": "file://secret.txt"}
    run_shown(visitor.post(f"{path}/send", fields))
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["MessageGroupId"] == "file://secret.txt"

    fields = {"token": fields["token"], "name": "-orders", "kms_key": "file://secret.txt"}
    run_shown(visitor.post("/console/queues/new", fields))
    url = sqs.get_queue_url(QueueName="-orders")["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["KmsMasterKeyId"] == "file://secret.txt"


def test_a_message_too_long_for_a_command_is_not_put_into_a_file(
    server: VeilServer, sqs: Any, visitor: Visitor
):
    sqs.create_queue(QueueName="orders")
    path = "/console/queues/us-east-1/orders/send"
    got = visitor.post(path, {"token": visitor.get(path).token, "body": "x" * 5_000})
    assert not shown_commands(got) and "No aws command is shown" in got.text
    lines = "\n".join('{"body": "' + "x" * 500 + '"}' for _ in range(10))
    got = visitor.post(path, {"token": got.token, "messages": lines})
    assert not shown_commands(got) and "No aws command is shown" in got.text
