"""`veil pipeline dead-letters` against a real server: what is there, and nobody notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.dead_letters_kit import Queues, fill, orders_and_dead_letters
from veil.cli.main import run
from veil.pipeline.dead_letters.queue import DeadLetterQueue
from veil.pipeline.source import browse
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Captured = pytest.CaptureFixture[str]


def seqs_in(dead: DeadLetterQueue) -> list[int]:
    return [int(message.sequence_number) for message in dead.peek(1_000).messages or ()]


@pytest.fixture
def queues(veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Queues]:
    for name, value in veil_server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with orders_and_dead_letters(veil_server) as found:
        yield found


def veil(*arguments: str) -> int:
    return run(["pipeline", "dead-letters", *arguments])


def objects(capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_groups_are_told_and_nothing_is_received(
    spark: SparkSession, queues: Queues, veil_server: VeilServer, tmp_path: Path, capsys: Captured
):
    dead, _ = queues
    fill(dead, [f"order {n}" for n in range(1_250)], veil__source_queue="orders", veil__error_type="Timeout",
         veil__reason="no answer within 30 s", type="payment")  # fmt: skip
    fill(dead, ["x"], veil__source_queue="orders", veil__reason="boom")

    assert veil("orders-dead", "--tables", str(tmp_path / "tables"), "--json") == 0

    timeouts, boom = objects(capsys)
    assert (timeouts["messages"], timeouts["error_type"], timeouts["source"]) == (1_250, "Timeout", "orders")
    assert timeouts["fingerprint"] == "no answer within <n> s"
    assert timeouts["message_type"] == "payment"
    assert {example["body"] for example in timeouts["examples"]} <= {f"order {n}" for n in range(1_250)}
    assert (boom["messages"], boom["error_type"], boom["fingerprint"]) == (1, None, "boom")
    counts = dead.attributes()
    assert counts["ApproximateNumberOfMessages"] == "1251"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert {message.system["ApproximateReceiveCount"] for message in dead.peek(100).messages or ()} == {"0"}
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["dead_letters.parquet"]


def test_many_are_read_in_parts_and_each_is_in_one_of_them(
    spark: SparkSession, queues: Queues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    monkeypatch.setattr(browse, "PART_LEAST", 100)
    monkeypatch.setattr(browse, "_SECOND", 1 << 20)  # they are sent within milliseconds here
    dead, _ = queues
    for n in range(5):
        fill(dead, [f"order {n} {each}" for each in range(100)], veil__reason=f"of batch {n}")

    found = browse.browsed_parts(dead, 32, browse.BrowseFilter())
    seqs = [
        [
            int(message.sequence_number)
            for message in dead.peek(1_000, after=part.after, up_to=part.up_to).messages or ()
        ]
        for part in found
    ]

    assert len(found) == 5
    assert sorted(seq for part in seqs for seq in part) == seqs_in(dead)
    assert sum(1 for part in seqs if part) > 1  # not all of them in one
    assert veil("orders-dead", "--tables", str(tmp_path / "tables"), "--json") == 0
    assert sum(each["messages"] for each in objects(capsys)) == 500


def test_without_names_the_dead_letters_of_other_queues_are_found(
    spark: SparkSession, queues: Queues, veil_server: VeilServer, tmp_path: Path, capsys: Captured
):
    _, orders = queues
    client = veil_server.client()
    target = client.get_queue_attributes(
        QueueUrl=client.get_queue_url(QueueName="orders-dead")["QueueUrl"], AttributeNames=["QueueArn"]
    )["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 1})
    client.set_queue_attributes(QueueUrl=orders.url, Attributes={"RedrivePolicy": policy})
    client.send_message(QueueUrl=orders.url, MessageBody="spent")
    for _ in range(2):  # the second receive finds that it was received often enough
        client.receive_message(QueueUrl=orders.url, VisibilityTimeout=0)

    assert veil("--tables", str(tmp_path / "tables")) == 0

    out, err = capsys.readouterr()
    header, row = out.splitlines()
    assert header.split()[:4] == ["GROUP", "MESSAGES", "SOURCE", "TYPE"]
    assert row.split()[1:3] == ["1", "orders"]
    assert "no reason was recorded" in row
    assert "1 dead letter in 1 group\n" in err


def test_without_dead_letters_it_says_so(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    assert veil("orders-dead", "--tables", str(tmp_path / "tables")) == 0
    assert "no dead letters in orders-dead" in capsys.readouterr().err

    assert veil("--tables", str(tmp_path / "tables")) == 0
    assert "no queue has a dead-letter queue" in capsys.readouterr().err


def test_a_queue_that_is_not_there_is_named(queues: Queues, tmp_path: Path, capsys: Captured):
    assert veil("nowhere", "--tables", str(tmp_path / "tables")) == 1
    assert "there is no queue 'nowhere' at " in capsys.readouterr().err
