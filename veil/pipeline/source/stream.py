"""What a streaming query does with its queue, whichever way it reaches it, and what both ways need: leases that are
renewed, deletes beside the next batch, a rate, and a count of what was done.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypedDict

from pyspark.sql.datasource import InputPartition

from veil.pipeline.options import OptionError
from veil.pipeline.queues import QueueClient
from veil.pipeline.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_POLL_S: Final = 1


class Offset(TypedDict, total=False):
    """How far a query is. `epoch` names the checkpoint; `n` counts its batches; `by` is the way, sqs or veil; `queue` is the ARN
    of its queue. Of the batch that ends here, `segment` names what holds its rows (sqs); `rows` and `parts` say how it was
    cut, `piece` and `ahead` how it is received, and `at_ms` when (veil)."""

    epoch: str
    n: int
    by: str
    queue: str
    segment: str
    rows: int
    parts: int
    piece: int
    ahead: int
    at_ms: int


class CheckpointTaken(RuntimeError):
    """Another query works on the same checkpoint since: this one must not go on."""


class SourcePartition(InputPartition):
    """One partition of a batch: knows on its own, on any executor, where its rows are."""

    value = None  # Spark's own base class has it; what a partition is stands in its fields

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows: the same whenever it is asked, until the batch is acknowledged."""
        raise NotImplementedError


class Stream(ABC):
    """The running side of a query, in the one process that lives as long as the query does.

    Whichever way it goes: a renewer holds what is not acknowledged, and what is finished is deleted beside the next batch.
    """

    def __init__(self, client: QueueClient, options: SourceOptions, at: Offset, tally: Tally) -> None:
        self._client, self._options, self._epoch, self._tally = client, options, at["epoch"], tally
        attributes = client.attributes()
        self._window_s = options.window_s(int(attributes["VisibilityTimeout"]))
        self._arn = attributes["QueueArn"]
        self._queue = self._arn.rpartition(":")[2]
        known = at.get("queue", self._arn)
        if known != self._arn:
            expected = f"{known}, the queue of this checkpoint; a query over another queue needs a checkpoint of its own"
            raise OptionError("queue", options.address.queue, expected)
        self._budget: int | None = None
        self._fresh = True
        # One batch after the other, beside the one that is received.
        self._acknowledging = ThreadPoolExecutor(1, thread_name_prefix="veil-acknowledge")
        self._acknowledgement: Future[bool] | None = None
        self._renewer = LeaseRenewer(self._window_s, self.extend_all)

    def limit_to_backlog(self) -> None:
        """From now on take no more than what is in the queue now: AvailableNow."""
        self._budget = backlog(self._client)

    @abstractmethod
    def next_offset(self, start: Offset, rows_max: int) -> Offset:
        """Acknowledge everything up to `start`, then the end of the next batch, or `start` where nothing waits.

        Spark asks for it only once the batch that ends at `start` is in its commit log: that is when it can be
        acknowledged. When it returns `start`, all up to there is acknowledged.
        """

    @abstractmethod
    def take(self, start: Offset, rows_max: int) -> Offset | None:
        """The end of a batch after `start`, taken without acknowledging anything; None where nothing waits."""

    @abstractmethod
    def parts(self, start: Offset, end: Offset) -> Sequence[SourcePartition]:
        """The partitions of the batch between the two; asked more than once, and first of all after a restart."""

    @abstractmethod
    def acknowledge(self, end: Offset) -> bool:
        """Delete everything up to `end` from the queue; False where some of it must be tried again. Repeated calls do nothing."""

    @abstractmethod
    def extend_all(self) -> bool:
        """Give everything that is not acknowledged a new window; False where that must be tried again soon."""

    @abstractmethod
    def size(self, end: Offset) -> int:
        """How many messages the batch that ends there was cut for."""

    @abstractmethod
    def behind(self) -> int:
        """How many messages wait that are in no batch yet, as far as is known."""

    def stop(self) -> None:
        """Stop extending; what is not acknowledged comes back, or is replayed by the next run."""
        self._renewer.stop()
        self._acknowledging.shutdown()
        self._tally.say(now=True)

    def _begin_acknowledging(self, start: Offset, *, some_lost: bool) -> None:
        self._wait_acknowledged()
        self._acknowledgement = self._acknowledging.submit(self.acknowledge, start)
        # What is finished must be gone before anything is received, or it could be received again: after a restart, and
        # when a lease was lost. Otherwise the renewer holds it, and both go on side by side.
        if self._fresh or some_lost or not self._renewer.is_sure:
            self._wait_acknowledged()
            self._fresh = False

    def _wait_acknowledged(self) -> None:
        """Return when what was begun is done; raises what it failed with."""
        if self._acknowledgement is not None:
            last, self._acknowledgement = self._acknowledgement, None
            last.result()


def backlog(client: QueueClient) -> int:
    """How many messages wait in the queue, visible."""
    return int(client.attributes().get("ApproximateNumberOfMessages", "0"))


_log = logging.getLogger(__name__)

_TIMES_A_WINDOW: Final = 3
_AFTER_FAILURE: Final = 12  # of a window
_SURE: Final = 2 / 3  # of a window: older than that, an extension is overdue


class LeaseRenewer:
    """Calls `extend` three times a window, on a thread of its own; `extend` says whether all went well.

    Not the consumer's renewal: that decides for each message, on the event loop of its handlers, by a policy. Here a batch of
    thousands lives and ends as one, and Spark's process for a source has no loop.
    """

    def __init__(self, window_s: float, extend: Callable[[], bool]) -> None:
        self._window_s = window_s
        self._extend = extend
        self._kept_at_s: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="veil-renewer", daemon=True)

    @property
    def is_sure(self) -> bool:
        """Whether no lease can have lapsed, nor will within the next third of a window."""
        kept_at_s = self._kept_at_s
        return kept_at_s is not None and time.monotonic() - kept_at_s < self._window_s * _SURE

    def start(self) -> None:
        """Extend what is there now, then go on in the background: after a restart the windows may be nearly over."""
        self._once()
        self._thread.start()

    def stop(self) -> None:
        """No more extensions after this."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._window_s / _TIMES_A_WINDOW
        while not self._stopped.wait(pause_s):
            began_s = time.monotonic()
            share = _TIMES_A_WINDOW if self._once() else _AFTER_FAILURE
            # Counted from the beginning: thousands of extensions take their time, which must not be added to each round.
            pause_s = max(
                self._window_s / _AFTER_FAILURE, began_s + self._window_s / share - time.monotonic()
            )

    def _once(self) -> bool:
        began_s = time.monotonic()
        try:
            kept = self._extend()
        except Exception as problem:
            # The thread must live as long as the query: the next try is sooner, and what cannot be kept is told by the batch.
            _log.warning("leases could not be extended: %s", problem)
            return False
        if kept:
            self._kept_at_s = began_s  # a lease that came later was fresh then
        return kept


_BURST_S: Final = 1.0


class TokenBucket:
    """An allowance that grows with time, up to one second's worth or one batch; without a rate it is always a batch."""

    def __init__(
        self, rate: float | None, batch_max: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._batch_max, self._monotonic = rate, batch_max, monotonic
        self._at_s = monotonic()
        self._saved = min(float(batch_max), rate * _BURST_S) if rate is not None else 0.0

    def allowance(self) -> int:
        """How many are allowed now."""
        if self._rate is None:
            return self._batch_max
        now_s = self._monotonic()
        # At a rate below one a second a whole message must still come together.
        most = max(1.0, min(float(self._batch_max), self._rate * max(_BURST_S, now_s - self._at_s)))
        self._saved = min(most, self._saved + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        return int(self._saved)

    def wait_s(self) -> float:
        """How long until one message is allowed; 0 where one is already."""
        if self._rate is None or self.allowance() >= 1:
            return 0.0
        return (1.0 - self._saved) / self._rate

    def spend(self, count: int) -> None:
        """So many were taken."""
        self._saved = max(0.0, self._saved - count)


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
            _log.warning(
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
            told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in self.facts().items())
            _log.info("queue %s: %s", self.queue, told)


def log_to_stderr() -> None:
    """Let the log be heard: Spark's process for a source has nobody who listens to it."""
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)


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
