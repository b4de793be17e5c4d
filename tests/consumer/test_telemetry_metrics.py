"""What Prometheus reads of a consumer."""

import subprocess
import sys
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.consumer.handler_kit import ManualTime, a_message
from veil.client.api import ApiError, Failure
from veil.consumer.handlers.running import HandlingSettings
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.metrics import ConsumerMetrics, RenewalWatch
from veil.consumer.outcomes import DeadLetter, Delete, Discard


def samples(metrics: ConsumerMetrics) -> dict[tuple[Any, ...], float]:
    page, kind = metrics.page()
    assert kind.startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def test_handlers_are_counted_by_outcome_and_timed() -> None:
    metrics, time = ConsumerMetrics(), ManualTime()
    table = HandlerTable(HandlingSettings(observer=metrics.handled, monotonic=time), on_failure=Discard())

    @table.handler(name="ship")
    async def ship(body: str) -> None:
        time.advance(0.7)
        if body == "bad":
            raise ValueError

    (handler,) = table.handlers
    for body in ("good", "good", "bad"):
        await handler.call(a_message(body, time=time))  # type: ignore[arg-type]
    lost = a_message(time=time)
    lost.lease.lose("gone")
    await handler.call(lost)  # type: ignore[arg-type]

    found = samples(metrics)
    handled = "veil_consumer_messages_handled_total"
    assert found[handled, "delete", "orders", "ship"] == 2
    assert found[handled, "discard", "orders", "ship"] == 1
    assert found[handled, "lost", "orders", "ship"] == 1
    assert found["veil_consumer_handling_seconds_count", "orders", "ship"] == 3
    assert found["veil_consumer_handling_seconds_sum", "orders", "ship"] == pytest.approx(2.1)
    assert found["veil_consumer_handling_seconds_bucket", "0.5", "orders", "ship"] == 0
    assert found["veil_consumer_handling_seconds_bucket", "1", "orders", "ship"] == 3


def test_what_the_keeper_tells_is_counted_and_logged(caplog: Any) -> None:
    metrics, lease = ConsumerMetrics(), a_message().lease
    watch = RenewalWatch("orders", metrics)
    watch.renewed(lease, 30)
    watch.renewed(lease, 30)
    watch.late(4.2)
    watch.failed(lease, ApiError(Failure.THROTTLED, "Throttling", "slow down"), True)
    watch.lost(lease, "taken over")
    watch.capped(lease, "twelve hours")
    watch.warned(lease, 60)
    found = samples(metrics)
    assert found["veil_consumer_renewals_total", "orders"] == 2
    assert found["veil_consumer_renewals_late_total", "orders"] == 1
    assert found["veil_consumer_renewals_failed_total", "orders"] == 1
    assert found["veil_consumer_leases_lost_total", "orders"] == 1
    assert found["veil_consumer_leases_capped_total", "orders"] == 1
    assert "Throttling: slow down; it will be tried again" in caplog.text
    assert all(record.queue == "orders" for record in caplog.records)
    assert sum(getattr(record, "message_id", None) == "m-1" for record in caplog.records) == 4


def test_what_runs_and_what_waits_is_asked_when_somebody_looks() -> None:
    metrics, now = ConsumerMetrics(), {"in_flight": 3, "waiting": 7}
    metrics.watch("orders", in_flight=lambda: now["in_flight"], waiting=lambda: now["waiting"])
    now["waiting"] = 8
    found = samples(metrics)
    assert found["veil_consumer_in_flight", "orders"] == 3
    assert found["veil_consumer_waiting", "orders"] == 8
    metrics.unwatch("orders")
    assert ("veil_consumer_in_flight", "orders") not in samples(metrics)


def test_counts_from_many_threads_add_up() -> None:
    metrics, message = ConsumerMetrics(), a_message()

    def count() -> None:
        for _ in range(2_000):
            metrics.handled(message, "ship", DeadLetter(), 0.01)
            metrics.lease("renewed", "orders")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = samples(metrics)
    assert found["veil_consumer_messages_handled_total", "dead_letter", "orders", "ship"] == 8_000
    assert found["veil_consumer_renewals_total", "orders"] == 8_000


def test_two_consumers_may_share_a_registry_of_the_application() -> None:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(registry)
    metrics.handled(a_message(), "ship", Delete(), 0.1)
    labels = {"queue": "orders", "handler": "ship", "outcome": "delete"}
    assert registry.get_sample_value("veil_consumer_messages_handled_total", labels) == 1


def test_handlers_load_neither_prometheus_nor_pydantic_nor_opentelemetry() -> None:
    code = (
        "import sys, veil.consumer.handlers.table, veil.consumer.metrics, veil.consumer.tracing\n"
        "import veil.consumer.metrics, veil.consumer.idempotency, veil.consumer.idempotency\n"
        "print(*sorted(name for name in sys.modules if '.' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"prometheus_client", "pydantic", "opentelemetry", "apsw", "boto3", "psycopg"})
