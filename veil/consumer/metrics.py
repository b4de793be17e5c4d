"""How a consumer is watched: its metrics, and a small HTTP server for /healthz, /readyz and /metrics.

Metrics are plain counts, turned into Prometheus's when asked, so that counting costs handlers nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.consumer.outcomes import Outcome, label
from veil.consumer.renewal.keeper import KeeperEvents

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


_log = logging.getLogger(__name__)


_TELL_EVERY_S: Final = 5.0  # of renewals that fail
# From a handler that only forwards to one that runs for hours.
SECONDS_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 43_200
)  # fmt: skip
_BOUNDS: Final = (*(f"{bound:g}" for bound in SECONDS_BOUNDS), "+Inf")

# What happens to leases: the name of the count, the metric, and what it says.
_LEASE_EVENTS: Final = (
    ("renewed", "veil_consumer_renewals", "Leases given a new deadline while their message was held."),
    ("late", "veil_consumer_renewals_late", "Renewals begun later than their policy wanted."),
    ("failed", "veil_consumer_renewals_failed", "Attempts to renew that did not succeed."),
    ("lost", "veil_consumer_leases_lost", "Leases that ended while their message was held."),
    ("capped", "veil_consumer_leases_capped", "Leases that could not be renewed any more: a maximum was reached."),
)  # fmt: skip
LEASE_EVENTS: Final = tuple(name for name, _, _ in _LEASE_EVENTS)


class ConsumerMetrics:
    """Counts, from any thread. `registry` is where they show; one of their own unless given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        self._handled: defaultdict[tuple[str, str], _Handled] = defaultdict(_Handled)  # by queue and handler
        self._leases: dict[str, defaultdict[str, int]] = {name: defaultdict(int) for name in LEASE_EVENTS}
        self._gauges: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
        self._registry = registry
        if registry is not None:
            registry.register(self)

    def handled(self, message: Message, handler: str, outcome: Outcome | None, seconds: float) -> None:
        """A handler has ended with this outcome; None when its lease was lost, 0 seconds when it was not begun."""
        with self._lock:
            found = self._handled[message.queue, handler]
            found.outcomes[label(outcome)] += 1
            if seconds:  # else it would only make handlers look quicker than they are
                found.buckets[bisect_left(SECONDS_BOUNDS, seconds)] += 1
                found.sum += seconds

    def lease(self, event: str, queue: str) -> None:
        """Something happened to a lease: one of LEASE_EVENTS."""
        with self._lock:
            self._leases[event][queue] += 1

    def watch(self, queue: str, *, in_flight: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Call these for every page: how many messages are being handled, and how many wait for a slot."""
        with self._lock:
            self._gauges[queue] = (in_flight, waiting)

    def unwatch(self, queue: str) -> None:
        """The queue is consumed no more."""
        with self._lock:
            self._gauges.pop(queue, None)

    def page(self) -> tuple[bytes, str]:
        """Everything in Prometheus' text format, as it stands now, and its content type."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        """Nothing; else a registry would collect once, before there is anything to ask."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics, in the order in which they are shown."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        messages = CounterMetricFamily(
            "veil_consumer_messages_handled",
            "Messages whose handling has ended, by outcome.",
            labels=("queue", "handler", "outcome"),
        )
        seconds = HistogramMetricFamily(
            "veil_consumer_handling_seconds",
            "Time from the start of a handler to its end.",
            labels=("queue", "handler"),
        )
        leases = [CounterMetricFamily(metric, text, labels=("queue",)) for _, metric, text in _LEASE_EVENTS]
        with self._lock:
            for names, each in self._handled.items():
                for outcome, count in each.outcomes.items():
                    messages.add_metric((*names, outcome), count)
                if any(each.buckets):
                    seconds.add_metric(
                        names, list(zip(_BOUNDS, accumulate(each.buckets), strict=True)), each.sum
                    )
            for family, name in zip(leases, LEASE_EVENTS, strict=True):
                for queue, count in self._leases[name].items():
                    family.add_metric((queue,), count)
            gauges = dict(self._gauges)
        yield from (messages, seconds, *leases)
        in_flight = GaugeMetricFamily(
            "veil_consumer_in_flight", "Messages whose handler is running.", labels=("queue",)
        )
        waiting = GaugeMetricFamily(
            "veil_consumer_waiting", "Messages received that wait for a free slot.", labels=("queue",)
        )
        for queue, (running, held) in gauges.items():
            in_flight.add_metric((queue,), running())
            waiting.add_metric((queue,), held())
        yield from (in_flight, waiting)


class _Handled:
    __slots__ = ("buckets", "outcomes", "sum")

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.buckets = [0] * (len(SECONDS_BOUNDS) + 1)
        self.sum = 0.0


# ---- renewal


class RenewalWatch(KeeperEvents):
    """For the keeper of one queue; called from its thread."""

    def __init__(self, queue: str, metrics: ConsumerMetrics) -> None:
        self._queue, self._metrics = queue, metrics
        self._told_s, self._untold = -_TELL_EVERY_S, 0

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        self._count("renewed")
        _log.debug("lease renewed for %d s", visibility_s, extra=self._facts(lease))

    def late(self, by_s: float) -> None:
        self._count("late")
        _log.warning(
            "renewal of queue %s woke %.1f s late: the process was held up; a helper process would not have been",
            self._queue,
            by_s,
            extra={"facts": {"queue": self._queue}, "queue": self._queue},
        )

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        self._count("failed")
        now_s = time.monotonic()
        if again and now_s - self._told_s < _TELL_EVERY_S:
            self._untold += 1  # a server that is away fails every lease several times a second
            return
        what = "it will be tried again" if again else "there is no time for another try"
        before = f" ({self._untold} more failed since the last line)" if self._untold else ""
        self._told_s, self._untold = now_s, 0
        _log.warning("lease not renewed: %s; %s%s", problem, what, before, extra=self._facts(lease))

    def lost(self, lease: Lease, why: str) -> None:
        self._count("lost")
        _log.warning("lease lost: %s", why, extra=self._facts(lease))

    def capped(self, lease: Lease, why: str) -> None:
        self._count("capped")
        _log.warning("lease is no longer renewed: %s", why, extra=self._facts(lease))

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        _log.warning("lease is renewed for another %.0f s only", ends_in_s, extra=self._facts(lease))

    def _count(self, event: str) -> None:
        self._metrics.lease(event, self._queue)

    def _facts(self, lease: Lease) -> dict[str, object]:
        facts = {"message_id": lease.message_id, "queue": self._queue, "token": lease.token}
        return {"facts": facts, **facts}


# ---- health

# A probe is a short request; anything else is no probe.
_HEAD_BYTES_MAX: Final = 8_192
_HEAD_WAIT_S: Final = 5.0
_CONNECTIONS_MAX: Final = 32

_TEXT: Final = "text/plain; charset=utf-8"


class HealthPages:
    """Answers 200 `ok`, or 503 with the problem in words. Healthy means that the event loop turns, and the process need not be
    restarted; ready means that it receives messages. One answer for each connection."""

    def __init__(self, ready: Callable[[], str | None], metrics: ConsumerMetrics) -> None:
        """`ready` says what keeps it from receiving, if anything does."""
        self._ready, self._metrics, self._connections = ready, metrics, 0

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Serve there, on the event loop that runs this; raises OSError when the address cannot be had."""
        return await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_HEAD_WAIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # not a probe, or one that has gone
        finally:
            self._connections -= 1
            with suppress(ConnectionError):
                writer.close()

    def _answer(self, head: bytes) -> bytes:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _response(400, _TEXT, b"not a request\n")
        method, target = parts[0], parts[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, _TEXT, b"only GET\n")
        try:
            status, kind, body = self._page(target)
        except Exception as error:  # a gauge that fails must not look like a dead process without a word
            status, kind, body = 500, _TEXT, f"{type(error).__name__}\n".encode()
        return _response(status, kind, body, with_body=method == b"GET")

    def _page(self, target: bytes) -> tuple[int, str, bytes]:
        if target == b"/metrics":
            body, kind = self._metrics.page()
            return 200, kind, body
        if target not in (b"/healthz", b"/readyz"):
            return 404, _TEXT, b"/healthz, /readyz, /metrics\n"
        problem = self._ready() if target == b"/readyz" else None
        return (200, _TEXT, b"ok\n") if problem is None else (503, _TEXT, f"{problem}\n".encode())


def _response(status: int, kind: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
