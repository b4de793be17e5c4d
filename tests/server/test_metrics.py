"""Metrics: plain counters in, Prometheus' text out, and no label without bound."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from veil.core.clock import ManualClock
from veil.core.message_rules import Draft
from veil.core.queue import QueueKey
from veil.server import metrics as metrics_module
from veil.server.metrics import Metrics
from veil.service.messages import send
from veil.service.queues import create_queue, delete_queue
from veil.service.receive import receive
from veil.service.service import Service
from veil.stores.commit_stats import GROUP_BOUNDS, CommitStats
from veil.stores.memory import MemoryStore
from veil.wire.exchange import AnswerCounts, Request
from veil.wire.front_end import action_of

LABELS = ("queue", "region", "account", "state", "action", "status", "version", "le")


@pytest.fixture
async def service():
    clock = ManualClock()
    service = Service(MemoryStore(clock), clock)
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
def metrics(service: Service) -> Metrics:
    return Metrics(service, AnswerCounts(), lambda: 3, "1.2.3")


async def a_queue(service: Service, name: str):
    return await create_queue(service, QueueKey("us-east-1", "000000000000", name), {}, {})


async def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Every sample by its name and its labels' values."""
    text = (await metrics.page()).decode()
    return {
        (sample.name, " ".join(sample.labels[each] for each in LABELS if each in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_queue_shows_what_is_in_it_and_what_happened(service: Service, metrics: Metrics):
    queue = await a_queue(service, "orders")
    await send(service, queue, [Draft("a"), Draft("b"), Draft("c", delay_s=9)], sender="x")
    service.clock.advance(seconds=5)
    await receive(service, queue, count=1, visibility_s=None, wait_s=0)

    found = await samples(metrics)

    place = "orders us-east-1 000000000000"
    assert found["veil_messages", f"{place} visible"] == 1
    assert found["veil_messages", f"{place} in_flight"] == 1
    assert found["veil_messages", f"{place} delayed"] == 1
    assert found["veil_oldest_message_age_seconds", place] == 5
    assert found["veil_messages_sent_total", place] == 3
    assert found["veil_messages_received_total", place] == 1
    assert found["veil_queues", ""] == 1
    assert found["veil_connections", ""] == 3
    assert found["veil_build_info", "1.2.3"] == 1


async def test_every_family_explains_itself(service: Service, metrics: Metrics):
    await a_queue(service, "orders")
    service.store.commit_stats = CommitStats()
    families = list(text_string_to_metric_families((await metrics.page()).decode()))
    assert len(families) > 15
    assert [family.name for family in families if not family.documentation] == []


async def test_queues_beyond_the_bound_are_summed_under_other(service, metrics, monkeypatch):
    monkeypatch.setattr(metrics_module, "QUEUE_LABELS_MAX", 2)
    for name in ("a", "b", "c", "d"):
        queue = await a_queue(service, name)
        await send(service, queue, [Draft("x")], sender="x")

    found = await samples(metrics)

    assert found["veil_messages", "_other   visible"] == 2
    assert found["veil_messages_sent_total", "_other  "] == 2
    assert {labels for name, labels in found if name == "veil_messages_sent_total"} == {
        "a us-east-1 000000000000",
        "b us-east-1 000000000000",
        "_other  ",
    }


async def test_a_deleted_queue_leaves_no_series(service: Service, metrics: Metrics):
    queue = await a_queue(service, "orders")
    await send(service, queue, [Draft("x")], sender="x")
    await delete_queue(service, queue)
    assert not [labels for _, labels in await samples(metrics) if "orders" in labels]


async def test_scrapes_close_together_share_one_look(service: Service, metrics: Metrics):
    queue = await a_queue(service, "orders")
    await samples(metrics)
    await send(service, queue, [Draft("x")], sender="x")
    depth = ("veil_messages", "orders us-east-1 000000000000 visible")
    assert (await samples(metrics))[depth] == 0
    service.clock.advance(seconds=1)
    assert (await samples(metrics))[depth] == 1


async def test_commits_are_two_histograms(service: Service, metrics: Metrics):
    stats = service.store.commit_stats = CommitStats()
    stats.record(1, 0.0001)
    stats.record(3, 0.003)
    stats.record(10**6, 100.0)

    found = await samples(metrics)

    assert found["veil_commit_group_size_bucket", "1"] == 1
    assert found["veil_commit_group_size_bucket", "4"] == 2
    assert found["veil_commit_group_size_bucket", "+Inf"] == 3
    assert found["veil_commit_group_size_sum", ""] == 10**6 + 4
    assert found["veil_commit_seconds_bucket", "0.004"] == 2
    assert found["veil_commit_seconds_count", ""] == 3


def test_a_group_of_exactly_the_bound_is_within_it():
    stats = CommitStats()
    stats.record(GROUP_BOUNDS[-1], 0.0)
    stats.record(GROUP_BOUNDS[-1] + 1, 0.0)
    assert stats.group_buckets[-2:] == [1, 1]
    assert stats.seconds_buckets[0] == 2


@pytest.mark.parametrize(
    ("request_made", "action"),
    [
        (Request("POST", "/", "", {"x-amz-target": "AmazonSQS.SendMessage"}), "SendMessage"),
        (Request("POST", "/", "", {"x-amz-target": "AmazonSQS.Invented"}), "other"),
        (Request("POST", "/", "", {}, b"Action=ListQueues&Version=x"), "ListQueues"),
        (Request("POST", "/", "", {}, b"Version=x&Action=PurgeQueue"), "PurgeQueue"),
        (Request("POST", "/", "", {}, b"NotAction=PurgeQueue"), "other"),
        (Request("POST", "/", "", {}, b"Action=" + b"A" * 10_000), "other"),
        (Request("GET", "/", "Version=x&Action=DeleteQueue", {}), "DeleteQueue"),
        (Request("GET", "/", "", {}), "other"),
        (Request("POST", "/", "", {}, b"Action=\xff\xfe"), "other"),
    ],
)
def test_only_actions_of_the_protocol_become_labels(request_made, action):
    assert action_of(request_made) == action


async def test_answers_are_shown_by_action_and_class_of_status(service: Service):
    metrics = Metrics(service, AnswerCounts({("ListQueues", 4): 2}), lambda: 3, "1.2.3")
    page = (await metrics.page()).decode()
    assert 'veil_requests_total{action="ListQueues",status="4xx"} 2.0' in page


async def test_scrapes_of_many_queues_within_a_second_are_made_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    made = []
    generate = metrics_module.generate_latest
    monkeypatch.setattr(metrics_module, "generate_latest", lambda family: made.append(1) or generate(family))
    metrics = Metrics(service, AnswerCounts(), lambda: 3, "1.2.3")
    for number in range(101):
        await a_queue(service, f"q{number}")
    first = await metrics.page()
    once = len(made)
    assert [await metrics.page() for _ in range(50)] == [first] * 50
    assert len(made) == once
    assert b"q100" in first and b"q100" not in await metrics.page(by_queue=False)
    await a_queue(service, "another")
    service.clock.advance(seconds=1)
    assert b'"another"' in await metrics.page()
