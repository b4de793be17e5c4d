"""What a query did with its queue: said in the log, and offered to Prometheus on request."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from veil.pipeline.option_error import OptionError

log = logging.getLogger("veil.pipeline.source")

_EVERY_S: Final = 60.0
_HELP: Final = {
    "received": "Messages received.",
    "renewed": "Extensions of leases.",
    "deleted": "Messages acknowledged.",
    "lost": "Leases lost before they were acknowledged.",
    "failed_deletes": "Deletes that will be repeated.",
}


class Tally:
    """Counts, and the age of the oldest message that is not acknowledged; safe from any thread."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(_HELP, 0)
        self.oldest_ms: int | None = None
        self._said_at_s = time.monotonic()

    def add(self, name: str, count: int) -> None:
        """Count; what was lost is said at once."""
        if not count:
            return
        with self._lock:
            self.counts[name] += count
        if name == "lost":
            log.warning(
                "queue %s: %d leases were lost before their batch was acknowledged; these messages may come again, with the "
                "same message id",
                self.queue,
                count,
            )

    def facts(self) -> dict[str, int]:
        """The counts, and the age of the oldest, for Spark's progress."""
        with self._lock:
            found = dict(self.counts)
        if self.oldest_ms is not None:
            found["oldest_s"] = max(0, int(time.time() - self.oldest_ms / 1000))
        return found

    def say(self, *, now: bool = False) -> None:
        """A line in the log, once a minute at most unless asked for."""
        if now or time.monotonic() - self._said_at_s >= _EVERY_S:
            self._said_at_s = time.monotonic()
            log.info("queue %s: %s", self.queue, self.text())

    def text(self) -> str:
        """The counts in one line."""
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items())
        if self.oldest_ms is None:
            return said
        return f"{said}, oldest {max(0.0, time.time() - self.oldest_ms / 1000):.0f} s"


def speak_up() -> None:
    """Let the log be heard: Spark's process for a source has nobody who listens to it."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def serve_metrics(tally: Tally, port: int) -> None:
    """Offer the counts to Prometheus on that port of this machine."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

    class Collector:
        def collect(self) -> list[Metric]:
            families: list[Metric] = []
            for name, about in _HELP.items():
                counter = CounterMetricFamily(f"veil_source_{name}", about, labels=["queue"])
                counter.add_metric([tally.queue], tally.counts[name])
                families.append(counter)
            age = GaugeMetricFamily(
                "veil_source_oldest_age_seconds",
                "Age of the oldest unacknowledged message.",
                labels=["queue"],
            )
            if tally.oldest_ms is not None:
                age.add_metric([tally.queue], max(0.0, time.time() - tally.oldest_ms / 1000))
            return [*families, age]

    registry = CollectorRegistry()
    registry.register(Collector())
    try:
        start_http_server(port, "127.0.0.1", registry=registry)
    except OSError as problem:
        raise OptionError("metricsPort", port, f"a free port: {problem}") from None
