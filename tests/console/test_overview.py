"""The first page opens with what is wrong; and the charts of a queue, which outlive a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.console.web import Visitor
from veil.console.charts import Line, time_chart
from veil.console.pages.overview import QueueFacts, troubles_of
from veil.core.queue import Queue, QueueCounts, QueueKey, QueueSettings, RedrivePolicy
from veil.service.history import QueueDepth
from veil.testing import VeilServer

KEY = QueueKey("us-east-1", "0", "orders")
DEAD = QueueKey("us-east-1", "0", "orders-dead")


def facts(*, visible: int = 0, oldest_s: int = 0, grown: int = 0, **happened: int) -> QueueFacts:
    queue = Queue(1, KEY, QueueSettings(redrive=RedrivePolicy(DEAD, 3), retention_s=1000, visibility_s=30))
    return QueueFacts(queue, QueueDepth(QueueCounts(visible), None), oldest_s, grown, happened)


def kinds(given: QueueFacts) -> list[str]:
    return [trouble.kind for trouble in troubles_of(given)]


def words(given: QueueFacts) -> str:
    (only,) = troubles_of(given)
    return only.words


def test_a_queue_that_is_worked_on_has_no_trouble() -> None:
    assert kinds(facts(visible=50, oldest_s=200, sent=100, received=100, deleted=100)) == []
    assert kinds(facts()) == []


def test_each_rule_says_what_is_wrong() -> None:
    busy = {"received": 5, "deleted": 5}
    assert words(facts(visible=3, oldest_s=900, **busy)) == (
        "Its oldest message is removed in 1 min 40 s, when its retention ends."
    )
    assert words(facts(dead_lettered=2, **busy)) == "2 messages went to orders-dead."
    assert words(facts(crashed=1, lapsed=1, **busy)) == "1 consumer crashed while holding a message."
    assert (
        words(facts(overran=2, lapsed=2, **busy))
        == "2 attempts took longer than the visibility timeout of 30 s."
    )
    assert kinds(facts(lapsed=3, failed=2, given_back=1, **busy)) == ["failing"]
    assert words(facts(lapsed=4, **busy)) == "4 leases lapsed: the message came back undeleted."
    assert words(facts(visible=1, oldest_s=120)) == "Nobody receives: 1 message waits, the oldest for 2 min."
    assert words(facts(visible=30, grown=20, **busy)) == "It grows: 20 messages more than ten minutes ago."
    failing = facts(failed=3, **busy)
    assert words(failing) == "3 of 8 attempts failed."
    assert words(failing._replace(error="ValueError")) == "3 of 8 attempts failed; most often ValueError."


def test_the_worst_comes_first() -> None:
    given = facts(
        visible=9,
        oldest_s=900,
        grown=20,
        dead_lettered=1,
        crashed=1,
        failed=1,
        overran=1,
        lapsed=9,
        deleted=1,
    )
    weights = [trouble.weight for trouble in troubles_of(given)]
    assert len(weights) >= 6 and weights == sorted(weights, reverse=True)


def test_a_little_growth_a_fresh_message_and_waiting_dead_letters_are_no_trouble() -> None:
    assert kinds(facts(visible=5, grown=5, received=1)) == []
    assert kinds(facts(visible=1_000, grown=20, received=1)) == []
    assert kinds(facts(visible=1, oldest_s=59)) == []
    assert kinds(facts(visible=1, oldest_s=120)._replace(holds_dead_letters=True)) == []


def test_a_pause_is_told_instead_of_what_follows_from_it() -> None:
    given = facts(visible=4, oldest_s=120, grown=20)
    queue = replace(given.queue, settings=replace(given.queue.settings, paused=True))
    assert kinds(given._replace(queue=queue)) == ["paused"]


# ---- pages


@pytest.fixture
def own_server() -> Iterator[VeilServer]:
    """One to which nothing has happened before: the sums are of all queues that there ever were."""
    with VeilServer() as server:
        yield server


def test_the_console_opens_with_what_is_wrong(own_server: VeilServer) -> None:
    visitor, sqs = Visitor(own_server), own_server.client()
    assert visitor.get("/console").place == "/console/overview"
    assert "There are no queues yet" in visitor.get("/console/overview").text

    sqs.create_queue(QueueName="orders-dead")
    policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:orders-dead", "maxReceiveCount": 1}
    url = sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]
    for body in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
    sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10
    )  # takes the other, and dead-letters the spent one

    text = visitor.get("/console/overview").text
    assert "1 queue needs attention" in text
    assert "1 message went to orders-dead." in text
    assert re.search(r'id="all-queues"><b>2</b>', text)
    assert re.search(r'id="all-in-flight"><b>1</b>', text)
    assert "dead-lettered <b>1</b>" in text


def test_what_happened_is_drawn_for_each_span_of_time(server: VeilServer, sqs: Any) -> None:
    visitor, address = Visitor(server), "/console/queues/us-east-1/orders/activity"
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    for _ in range(3):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    first = sqs.receive_message(QueueUrl=url)["Messages"][0]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])

    for query in ("", "?over=hours", "?over=week", "?over=nonsense"):
        text = visitor.get(address + query).text
        assert "in <b>3</b>" in text and "received <b>1</b>" in text and "deleted <b>1</b>" in text
        assert re.search(r"half within <b>\d+ ms</b>", text)


def test_the_charts_outlive_a_restart(tmp_path: Path) -> None:
    address = "/console/queues/us-east-1/orders/activity?over=week"
    with VeilServer("--data", str(tmp_path), "--journal", "off") as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert "in <b>1</b>" in Visitor(server).get(address).text
        sqs.close()
    with VeilServer("--data", str(tmp_path), "--journal", "off") as server:
        assert "in <b>1</b>" in Visitor(server).get(address).text


# ---- drawings


def test_lines_share_one_scale_and_break_off_where_nothing_is_known() -> None:
    lines = [Line("a", "sent", [0, 10, None, 20]), Line("b", "received", [None, None, 5, None])]
    chart = time_chart("rates", "Rates", lines, 5)
    paths = re.findall(r'class="line (\w)" d="([^"]+)"', str(chart.drawing))
    assert paths == [("a", "M0.0 112.0L200.0 57.0M600.0 2.0h1"), ("b", "M400.0 84.5h1")]
    assert (chart.top, chart.keys) == ("20", [("a", "sent", "20"), ("b", "received", "5")])
    assert "<title>10 s ago: sent 10</title>" in chart.drawing
    assert "<title>now: sent 20</title>" in chart.drawing


@pytest.mark.parametrize(
    ("seconds", "top"),
    [(0, "1"), (7, "10"), (45, "60"), (400, "600"), (90_000, "172,800"), (259_201, "345,600")],
)
def test_the_scale_of_a_length_ends_at_a_length_that_people_say(seconds: int, top: str) -> None:
    assert time_chart("age", "Age", [Line("a", "oldest", [seconds])], 5, per_s=1).top == top
