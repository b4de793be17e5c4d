"""The first page opens with what is wrong; and the charts of a queue, which outlive a restart."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.console.web import Visitor
from tests.service.kit import open_desk
from tests.waiting import until
from veil.console.charts import Chart, Line, Shade, time_chart
from veil.console.pages.overview import ENDS, QueueHealth, ended_attempts, troubles_of
from veil.console.templates import templates
from veil.core.attempt import HEADER, ReportedOutcome, write_header
from veil.core.clock import ManualClock
from veil.core.queue import Queue, QueueCounts, QueueKey, QueueSettings, RedrivePolicy
from veil.service.history import MINUTES, QueueDepth
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.testing import VeilServer

KEY = QueueKey("us-east-1", "0", "orders")
DEAD = QueueKey("us-east-1", "0", "orders-dead")


def facts(*, visible: int = 0, oldest_s: int = 0, grown: int = 0, **happened: int) -> QueueHealth:
    queue = Queue(1, KEY, QueueSettings(redrive=RedrivePolicy(DEAD, 3), retention_s=1000, visibility_s=30))
    ended = sum(happened.get(event, 0) for event in ENDS)
    return QueueHealth(queue, QueueDepth(QueueCounts(visible), None), oldest_s, grown, happened, ended)


def kinds(given: QueueHealth) -> list[str]:
    return [trouble.kind for trouble in troubles_of(given)]


def words(given: QueueHealth) -> str:
    (only,) = troubles_of(given)
    return only.words


def test_a_queue_that_is_worked_on_has_no_trouble() -> None:
    assert kinds(facts(visible=50, oldest_s=200, sent=100, received=100, deleted=100)) == []
    assert kinds(facts()) == []


def test_each_rule_says_what_is_wrong() -> None:
    busy = {"received": 5, "deleted": 5}
    assert words(facts(visible=3, oldest_s=900, **busy)) == (
        "Its oldest message will be deleted in 1 min 40 s, when its retention ends."
    )
    assert words(facts(dead_lettered=2, **busy)) == "2 messages moved to orders-dead after too many receives."
    assert words(facts(crashed=1, lapsed=1, **busy)) == "1 consumer crashed while holding a message."
    assert (
        words(facts(overran=2, lapsed=2, **busy))
        == "2 attempts took longer than the visibility timeout of 30 s."
    )
    assert kinds(facts(lapsed=3, failed=2, given_back=1, **busy)) == ["failing"]
    assert words(facts(lapsed=4, **busy)) == "4 leases lapsed: the message became visible again."
    assert (
        words(facts(visible=1, oldest_s=120))
        == "No consumer is receiving: 1 message is waiting, the oldest for 2 min."
    )
    assert (
        words(facts(visible=30, grown=20, **busy)) == "It is growing: 20 more messages than ten minutes ago."
    )
    failing = facts(failed=3, **busy)
    # All five were deleted, those that their handler gave up on too: none of them counts twice.
    assert words(failing) == "3 of 5 attempts failed."
    assert words(failing._replace(error="ValueError")) == "3 of 5 attempts failed; most often ValueError."


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


async def test_the_lapse_that_ends_the_wait_for_a_retry_is_no_trouble_however_long_the_wait_was() -> None:
    clock = ManualClock()
    service = Service(MemoryStore(clock), clock)
    activity = service.watch()
    orders = await open_desk(service)
    service.tallies["failed", orders.queue.id] += 1
    activity.tick()
    clock.advance(seconds=900)  # the longest wait of a consumer's Backoff
    service.tallies["lapsed", orders.queue.id] += 1
    activity.tick()
    happened, _ = activity.history.lately(orders.queue.id)
    assert happened == {"lapsed": 1}

    given = QueueHealth(orders.queue, QueueDepth(QueueCounts(1), None), 0, 0, {**happened, "received": 1})
    assert kinds(given) == ["lapsed"]
    assert kinds(given._replace(ended=ended_attempts(activity.history, orders.queue.id))) == []


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
    # Takes the other, and dead-letters the spent one.
    sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)

    # A look at the queues that runs meanwhile is not waited for.
    until(lambda: 'id="all-in-flight"><b>1</b>' in visitor.get("/console/overview").text)
    text = visitor.get("/console/overview").text
    assert "1 queue needs attention" in text
    assert "1 message moved to orders-dead after too many receives." in text
    assert re.search(r'id="all-queues"><b>2</b>', text)
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


def test_charts_and_holders_outlive_a_restart_and_a_retry_that_waits_is_not_work(tmp_path: Path) -> None:
    queue = "/console/queues/us-east-1/orders"
    with VeilServer("--data", str(tmp_path)) as server:
        sqs, visitor = server.client(), Visitor(server)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        for body in "xy":
            sqs.send_message(QueueUrl=url, MessageBody=body)
        at_work, failed = (
            sqs.receive_message(QueueUrl=url, VisibilityTimeout=3_600)["Messages"][0] for _ in "xy"
        )
        reported = write_header({"*": ReportedOutcome("failed", "shop.NoStock", "none left")})
        sqs.meta.events.register(
            "before-send.sqs", lambda request, **_: request.headers.update({HEADER: reported})
        )
        change = {"QueueUrl": url, "ReceiptHandle": failed["ReceiptHandle"], "VisibilityTimeout": 7_200}
        sqs.change_message_visibility(**change)
        sqs.close()
        (consumer,) = set(
            re.findall(r'href="(/console/consumers/\w+)"', visitor.get("/console/consumers").text)
        )
        _told_apart(visitor, queue, consumer, at_work["MessageId"], failed["MessageId"])
        assert "<b>1</b><span>failed</span>" in visitor.get(consumer).text
    time.sleep(0.6)  # what is shorter is no trouble
    with VeilServer("--data", str(tmp_path)) as server:
        visitor = Visitor(server)
        text = visitor.get(f"{queue}/activity?over=week").text
        assert "in <b>2</b>" in text
        assert re.search(r'<span class="key trouble">server in trouble <b>\d+ ×</b></span>', text)
        assert '<rect class="trouble"' in text and "server in trouble (restart, " in text
        # The journal is being read, and a look is shown for a second.
        until(lambda: "<b>1</b><span>waiting for a retry" in visitor.get(queue).text)
        _told_apart(visitor, queue, consumer, at_work["MessageId"], failed["MessageId"])


def _told_apart(visitor: Visitor, queue: str, consumer: str, at_work: str, failed: str) -> None:
    """Two messages are in flight to SQS: one is being worked on, the other waits for its retry."""
    head = re.findall(r"<b>(\d)</b><span>(in progress|waiting for a retry)", visitor.get(queue).text)
    assert head == [("1", "in progress"), ("1", "waiting for a retry")]
    assert re.search(r'"In flight">1<br><small class="muted">1 waiting', visitor.get("/console/queues").text)
    leases = visitor.get(f"{queue}/in-flight").text
    assert re.findall(r"waiting for a retry</span> <small>failed: [\w.]+", leases) == [
        "waiting for a retry</span> <small>failed: shop.NoStock"
    ]
    row = visitor.get("/console/consumers").text.partition(f'href="{consumer}"')[2].partition("</tr>")[0]
    assert re.search(r'"In progress">1<br><small class="muted">1 waiting', row) and ">orders</a>" in row
    held = visitor.get(consumer).text.partition('id="held"')[2].partition("</table>")[0]
    states = re.findall(r'">([0-9a-f-]{36})</a>.*?data-label="State">([a-z ]+)', held, re.DOTALL)
    assert dict(states) == {at_work: "in progress", failed: "waiting for a retry "}


# ---- drawings


def drawn(chart: Chart) -> str:
    return templates().render("charts.html", charts=[chart], resolution=MINUTES)


def test_lines_share_one_scale_and_break_off_where_nothing_is_known() -> None:
    lines = [Line("a", "sent", [0, 10, None, 20]), Line("b", "received", [None, None, 5, None])]
    chart = time_chart("rates", "Rates", lines, 5)
    paths = re.findall(r'class="line (\w)" d="([^"]+)"', drawn(chart))
    assert paths == [("a", "M0.0 112.0L200.0 57.0M600.0 2.0h1"), ("b", "M400.0 84.5h1")]
    assert (chart.top, chart.keys) == ("20", [("a", "sent", "20"), ("b", "received", "5")])
    assert "<title>10 s ago: sent 10</title>" in drawn(chart)
    assert "<title>now: sent 20</title>" in drawn(chart)


def test_the_servers_own_trouble_lies_over_the_time_that_it_took() -> None:
    shades = [Shade(1.5, 2.25, "restart, 4 s"), Shade(2.9, 2.91, "the disk stalled, 600 ms")]
    chart = time_chart("rates", "Rates", [Line("a", "sent", [0, 10, 0, 0])], 5, shades=shades)
    found = re.findall(r'class="trouble" x="([^"]+)" width="([^"]+)"', drawn(chart))
    assert found == [("200.0", "150.0"), ("480.0", "2.0")]
    assert chart.keys[-1] == ("trouble", "server in trouble", "2 ×")
    assert "<title>10 s ago: sent 10, server in trouble (restart, 4 s)</title>" in drawn(chart)
    told = "server in trouble (restart, 4 s), server in trouble (the disk stalled, 600 ms)"
    assert f"<title>5 s ago: {told}</title>" in drawn(chart)


@pytest.mark.parametrize(
    ("seconds", "top"),
    [(0, "1"), (7, "10"), (45, "60"), (400, "600"), (90_000, "172,800"), (259_201, "345,600")],
)
def test_the_scale_of_a_length_ends_at_a_length_that_people_say(seconds: int, top: str) -> None:
    assert time_chart("age", "Age", [Line("a", "oldest", [seconds])], 5, per_s=1).top == top
