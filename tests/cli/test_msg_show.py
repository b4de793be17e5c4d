"""Why a message died, on the terminal and in the console: its attempts, each with its error, when and by whom."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Ran, Veil
from tests.wire.test_outcomes import ask
from veil.core.attempt import ReportedOutcome, write_header
from veil.testing import VeilServer

TRACEBACK = 'Traceback (most recent call last):\n  File "shop.py", line 7, in ship\nshop.NoStock: none left'


def test_a_dead_letter_shows_the_errors_of_its_attempts(tmp_path: Path, command: Veil) -> None:
    with VeilServer("--data", str(tmp_path)) as server:
        ask(server, "CreateQueue", {"QueueName": "dead"})
        policy = '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":2}'
        made = {"QueueName": "orders", "Attributes": {"RedrivePolicy": policy}}
        url = ask(server, "CreateQueue", made)["QueueUrl"]
        message_id = ask(server, "SendMessage", {"QueueUrl": url, "MessageBody": "order 7"})["MessageId"]
        for number in range(2):
            (message,) = ask(server, "ReceiveMessage", {"QueueUrl": url})["Messages"]
            change = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
            reported = ReportedOutcome("failed", "shop.NoStock", f"none left, try {number}", TRACEBACK)
            ask(server, "ChangeMessageVisibility", change, write_header({"*": reported}))
        assert "Messages" not in ask(server, "ReceiveMessage", {"QueueUrl": url})

        def veil(*arguments: str) -> Ran:
            return command(*arguments, "--endpoint", server.endpoint_url, "--region", "us-east-1")

        ran = veil("msg", "show", message_id)
        assert ran.code == 0, ran.err
        shown = ran.out
        assert shown.startswith("orders: sent ") and "dead: dead-lettered " in shown
        assert "attempt 1 " in shown and ": failed after " in shown
        assert "    shop.NoStock: none left, try 1\n" in shown and 'File "shop.py", line 7, in ship' in shown
        (stay, _) = veil("msg", "show", message_id, "--json").object["stays"]
        assert [attempt["Outcome"] for attempt in stay["Attempts"]] == ["failed", "failed"]

        letters = veil("dlq", "show", "dead").out
        assert letters.startswith(f"{message_id}  order 7\n") and "shop.NoStock: none left, try 1" in letters

        with urlopen(f"{server.endpoint_url}/console/dead-letters/us-east-1/dead", timeout=120) as answer:
            page = answer.read().decode()
        assert "shop.NoStock" in page and "none left, try 1" in page and "2 failed attempts" in page
        with urlopen(f"{server.endpoint_url}/console/messages?id={message_id}", timeout=120) as answer:
            page = answer.read().decode()
        assert page.count("in ship") == 2

        unknown = veil("msg", "show", "nobody")
        assert unknown.code != 0 and "nobody is not in the server's journal" in unknown.err
        assert [queue["waiting_for_retry"] for queue in veil("queue", "ls", "--json").objects] == [0, 0]

        # Whoever comes as a dead letter, or by a redrive, has arrived; the page's figures may be a moment old.
        assert veil("dlq", "redrive", "dead").code == 0
        page, deadline = "", time.monotonic() + 120
        wanted = [
            f'veil_messages_arrived_total{{account="000000000000",queue="{each}",'
            for each in ("dead", "orders")
        ]
        while not all(each in page for each in wanted) and time.monotonic() < deadline:
            page = metrics(server)
        assert all(each in page for each in wanted)


def metrics(server: VeilServer) -> str:
    with urlopen(f"{server.endpoint_url}/metrics", timeout=120) as answer:
        return str(answer.read().decode())


def test_another_account_learns_nothing_of_a_message(
    tmp_path: Path, command: Veil, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"VEIL_KEYS": "mine:secret:111111111111,theirs:secret:222222222222"}
    with VeilServer("--data", str(tmp_path), environ=keys) as server:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

        def veil(key: str, *arguments: str) -> Ran:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
            return command(*arguments, "--endpoint", server.endpoint_url, "--region", "us-east-1")

        # Each has a queue of that name, so that no refusal for want of one hides what is asked here.
        for key in ("mine", "theirs"):
            assert veil(key, "queue", "create", "orders").code == 0
        message_id = veil("mine", "msg", "send", "orders", "secret plan").out.strip()
        assert veil("mine", "msg", "receive", "orders").code == 0
        assert veil("mine", "msg", "show", message_id).out.startswith("orders: sent ")

        ran = veil("theirs", "msg", "show", message_id)

        assert (ran.code, ran.out) == (1, "")
        assert f"{message_id} is not in the server's journal" in ran.err
        assert ran.err == veil("theirs", "msg", "show", "nobody").err.replace("nobody", message_id)


def test_a_restarted_server_knows_from_the_journal_who_holds_what(tmp_path: Path) -> None:
    with VeilServer("--data", str(tmp_path)) as server:
        url = ask(server, "CreateQueue", {"QueueName": "orders", "Attributes": {"VisibilityTimeout": "600"}})[
            "QueueUrl"
        ]
        for body in ("held", "failed"):
            ask(server, "SendMessage", {"QueueUrl": url, "MessageBody": body})
        _, failed = ask(server, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 2})["Messages"]
        change = {"QueueUrl": url, "ReceiptHandle": failed["ReceiptHandle"], "VisibilityTimeout": 500}
        reported = ReportedOutcome("failed", "shop.NoStock", "none left")
        ask(server, "ChangeMessageVisibility", change, write_header({"*": reported}))
    with VeilServer("--data", str(tmp_path)) as server:
        deadline = time.monotonic() + 120
        page = ""
        while "shop.NoStock" not in page and time.monotonic() < deadline:
            with urlopen(
                f"{server.endpoint_url}/console/queues/us-east-1/orders/in-flight", timeout=30
            ) as answer:
                page = answer.read().decode()
        assert page.count("Python-urllib") >= 2 and "not known" not in page
        (described,) = ask(server, "DescribeQueues", {}, prefix="Veil")["Queues"]
        assert (described["InFlight"], described["WaitingForRetry"]) == (2, 1)
        whose = 'account="000000000000",queue="orders",region="us-east-1"'
        assert f"veil_messages_waiting_for_retry{{{whose}}} 1.0" in metrics(server)


@pytest.mark.parametrize("is_exported", [False, True])
def test_letters_of_a_fifo_queue_are_redriven_by_the_error_that_they_died_of(
    tmp_path: Path, command: Veil, is_exported: bool
) -> None:
    def redriven(server: VeilServer) -> Ran:
        where = ("--endpoint", server.endpoint_url, "--region", "us-east-1")
        return command("dlq", "redrive", "dead.fifo", "--error", "KeyError", "--json", *where)

    with VeilServer("--data", str(tmp_path)) as server:
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        ask(server, "CreateQueue", {"QueueName": "dead.fifo", "Attributes": fifo})
        arn = "arn:aws:sqs:us-east-1:000000000000:dead.fifo"
        policy = {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}'}
        made = ask(server, "CreateQueue", {"QueueName": "pay.fifo", "Attributes": fifo | policy})
        url = {"QueueUrl": made["QueueUrl"]}
        for body, error in enumerate(("KeyError", "TimeoutError", "KeyError")):
            ask(server, "SendMessage", url | {"MessageBody": str(body), "MessageGroupId": "a"})
            (message,) = ask(server, "ReceiveMessage", url)["Messages"]
            change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
            ask(
                server,
                "ChangeMessageVisibility",
                url | change,
                write_header({"*": ReportedOutcome("failed", error)}),
            )
            assert "Messages" not in ask(server, "ReceiveMessage", url)  # once too often
        if not is_exported:
            assert redriven(server).object["moved"] == 2
            return
    with VeilServer("--data", str(tmp_path)) as server:
        assert redriven(server).object["moved"] == 2
