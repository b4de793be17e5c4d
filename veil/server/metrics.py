"""What Prometheus reads: taken from plain counters when asked, so that counting costs the requests nothing.

Labels are bounded: queues beyond the first thousand (by age) are summed under `_other`, actions are those of
the protocol. The series of a deleted queue end with it. Names of queues and accounts are for those who may know all of
them: others get the same page with everything summed under `_all`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from veil.core.errors import VeilError
from veil.service.history import queue_depths
from veil.service.service import Service
from veil.stores.commit_stats import GROUP_BOUNDS, SECONDS_BOUNDS, CommitStats
from veil.stores.store import OutboxSize
from veil.wire.exchange import AnswerCounts

if TYPE_CHECKING:
    from veil.journal.exporter import Exporter, ExportStats
    from veil.server.workers import Workers


QUEUE_LABELS_MAX: Final = 1_000
_Labels = tuple[str, str, str]
_Names = Mapping[int, _Labels]  # by the number of the queue
_OTHER: Final = ("_other", "", "")
_ALL: Final = ("_all", "", "")
_LABELS: Final = ("queue", "region", "account")
# Of one family: a thousand lines take ten milliseconds to write.
_SAMPLES_MANY: Final = 500
# Scrapes closer together share one look at the store.
_FRESH_MS: Final = 1_000
_QUEUES_FEW: Final = 100  # up to these a page is made anew each time

# The event as the service counts it, the metric, and what it says.
_EVENTS: Final = (
    ("sent", "veil_messages_sent", "Messages accepted by a send and stored."),
    ("duplicate", "veil_messages_deduplicated", "Messages of FIFO queues sent again within five minutes."),
    ("repeated_send", "veil_sends_repeated", "Sends that a client repeated because it got no answer; stored once."),
    ("received", "veil_messages_received", "Messages handed out by a receive."),
    ("empty_receive", "veil_receives_empty", "Receives that were answered without a message."),
    ("deleted", "veil_messages_deleted", "Messages deleted by receipt."),
    ("extended", "veil_leases_extended", "Leases given a new visibility deadline."),
    ("released", "veil_leases_released", "Leases ended by their holder with a visibility of 0."),
    ("lapsed", "veil_leases_lapsed", "Leases whose visibility deadline passed, the ends of backoffs included."),
    ("failed", "veil_attempts_failed", "Attempts that failed: reported, or left to lapse by a consumer that stayed active."),
    ("given_back", "veil_attempts_given_back", "Attempts that ended with their message given back."),
    ("overran", "veil_attempts_overran", "Attempts whose holder came back after its visibility deadline."),
    ("crashed", "veil_attempts_crashed", "Attempts whose holder went silent while others stayed active."),
    ("arrived", "veil_messages_arrived", "Messages that came by a redrive or as dead letters."),
    ("graced", "veil_leases_graced", "Leases kept open because of the server's own trouble."),
    ("undone", "veil_receives_undone", "Messages put back because the answer to their receive could not be delivered."),
    ("outcome_ignored", "veil_outcomes_ignored", "Outcomes reported in a header that could not be read."),
    ("dead_lettered", "veil_messages_dead_lettered", "Messages moved from this queue to its dead letters."),
    ("stale_receipt", "veil_receipts_stale", "Deletes and extensions whose receipt no longer held its message."),
    ("expired", "veil_messages_expired", "Messages removed because their retention ended."),
    ("purged", "veil_queue_purges", "Purges of the queue."),
)  # fmt: skip


class _Depth(Counter[str]):
    """The present of one queue, or the sum of several: messages by state, and what else there is."""

    oldest_sent_ms: int | None = None  # of the visible messages

    def add(self, other: Mapping[str, int], oldest_sent_ms: int | None) -> None:
        self.update(other)
        if oldest_sent_ms is not None:
            self.oldest_sent_ms = min(oldest_sent_ms, self.oldest_sent_ms or oldest_sent_ms)

    def age_s(self, now_ms: int) -> float:
        return 0 if self.oldest_sent_ms is None else max(0, now_ms - self.oldest_sent_ms) / 1000


def _sum(depths: Mapping[_Labels, _Depth]) -> _Depth:
    total = _Depth()
    for depth in depths.values():
        total.add(depth, depth.oldest_sent_ms)
    return total


class Metrics:
    def __init__(
        self, service: Service, answers: AnswerCounts, connection_count: Callable[[], int], version: str
    ) -> None:
        self._service = service
        self._answers = answers
        self._connection_count = connection_count
        self._version = version
        self.exporter: Exporter | None = None  # of the journal, where there is one
        self.workers: Workers | None = None  # where they are processes of their own
        self._outbox: OutboxSize | None = None
        self._names: dict[int, _Labels] = {}
        self._depths: dict[_Labels, _Depth] = {}
        self._looked_at_ms: int | None = None
        self._looking = asyncio.Lock()
        self._pages: dict[bool, bytes] = {}  # made since the last look, where they are large

    async def page(self, by_queue: bool = True) -> bytes:
        """Everything in Prometheus' text format, as it stands now or did a second ago; else with all queues under `_all`."""
        async with self._looking:
            now_ms = self._service.clock.now_ms()
            if self._looked_at_ms is None or now_ms - self._looked_at_ms >= _FRESH_MS:
                await self._look()
                self._looked_at_ms = now_ms
                self._pages.clear()
            elif by_queue in self._pages:
                return self._pages[by_queue]
            names = self._names if by_queue else dict.fromkeys(self._names, _ALL)
            pieces = []
            # Each family as if it were all there is: a page of a thousand queues has twenty thousand lines.
            for family in self._families(names, self._depths if by_queue else {_ALL: _sum(self._depths)}):
                if len(family.samples) > _SAMPLES_MANY:
                    pieces.append(await asyncio.to_thread(generate_latest, _Family(family)))
                else:
                    pieces.append(generate_latest(_Family(family)))
                    await asyncio.sleep(0)
            page = b"".join(pieces)
            if len(self._names) > _QUEUES_FEW:
                self._pages[by_queue] = page
            return page

    async def _look(self) -> None:
        queues = sorted(await self._service.store.all_queues(), key=lambda queue: queue.id)
        self._names = {
            queue.id: (queue.name, queue.key.region, queue.key.account)
            if place < QUEUE_LABELS_MAX
            else _OTHER
            for place, queue in enumerate(queues)
        }
        depths: dict[_Labels, _Depth] = defaultdict(_Depth)
        found = await queue_depths(self._service, queues)
        for queue in queues:
            depth = depths[self._names[queue.id]]
            depth["paused"] += queue.settings.paused
            if queue.id in found:
                counts, oldest_sent_ms, waiting = found[queue.id]
                depth.add(counts._asdict() | {"waiting": waiting}, oldest_sent_ms)
        self._depths = depths
        if self.exporter is not None:
            with suppress(VeilError):  # the store has failed, which /readyz tells
                self._outbox = await self._service.store.outbox_size()

    # ---- families, in the order in which they are shown

    def _families(self, names: _Names, depths: Mapping[_Labels, _Depth]) -> Iterator[Metric]:
        yield from self._about_queues(names, depths)
        yield from self._about_events(names)
        yield from self._about_requests()
        stats = getattr(self._service.store, "commit_stats", None)
        if isinstance(stats, CommitStats):
            yield from _about_commits(stats)
        pool_stats = getattr(self._service.store, "pool_stats", None)
        if pool_stats is not None:
            yield from _about_connections(pool_stats())
        if self.exporter is not None and self._outbox is not None:
            yield from _about_journal(self.exporter.stats, self._outbox, self._service.clock.now_ms())

    def _about_queues(self, names: _Names, depths: Mapping[_Labels, _Depth]) -> Iterator[Metric]:
        # Each is made when it is asked for: between two of them others go on.
        yield GaugeMetricFamily("veil_queues", "Queues that exist.", value=len(names))
        text = "Messages in the queue by state, exact."
        messages = GaugeMetricFamily("veil_messages", text, labels=(*_LABELS, "state"))
        for labels, depth in depths.items():
            for state in ("visible", "in_flight", "delayed"):
                messages.add_metric((*labels, state), depth[state])
        yield messages
        now_ms = self._service.clock.now_ms()
        polls: defaultdict[_Labels, int] = defaultdict(int)
        for queue_id, labels in names.items():
            polls[labels] += self._service.waiting.waiting(queue_id)
        gauges: tuple[tuple[str, str, Callable[[_Labels, _Depth], float]], ...] = (
            ("veil_messages_waiting_for_retry",
             "Of the messages in flight, those whose attempt is over, as far as this server knows.",
             lambda labels, depth: depth["waiting"]),
            ("veil_oldest_message_age_seconds", "Time since the oldest visible message was sent; 0 when there is none.",
             lambda labels, depth: depth.age_s(now_ms)),
            ("veil_queue_paused", "Queues whose deliveries are paused: 1 or 0 for one queue.",
             lambda labels, depth: depth["paused"]),
            ("veil_long_polls_waiting", "Receives that wait for a message.", lambda labels, depth: polls[labels]),
        )  # fmt: skip
        for name, text, value in gauges:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for labels, depth in depths.items():
                family.add_metric(labels, value(labels, depth))
            yield family

    def _about_events(self, names: _Names) -> Iterator[Metric]:
        sums: defaultdict[str, defaultdict[_Labels, int]] = defaultdict(lambda: defaultdict(int))
        for event, queue_id, count in self._service.tallies.totals():
            labels = names.get(queue_id)
            if labels is not None:
                sums[event][labels] += count
        for event, metric, text in _EVENTS:
            family = CounterMetricFamily(metric, text, labels=_LABELS)
            for labels, count in sums[event].items():
                family.add_metric(labels, count)
            yield family

    def _about_requests(self) -> Iterator[Metric]:
        text = "Requests answered, by action and class of status."
        requests = CounterMetricFamily("veil_requests", text, labels=("action", "status"))
        for (action, status_class), count in self._answers.items():
            requests.add_metric((action, f"{status_class}xx"), count)
        yield requests
        yield GaugeMetricFamily("veil_connections", "Open connections.", value=self._connection_count())
        text = "Always 1; the label is the version."
        build = GaugeMetricFamily("veil_build_info", text, labels=("version",))
        build.add_metric((self._version,), 1)
        yield build
        count, restarts = (1, 0) if self.workers is None else (len(self.workers.pids), self.workers.restarts)
        yield GaugeMetricFamily("veil_workers", "Processes that serve clients.", value=count)
        text = "Workers that died and were started again."
        yield CounterMetricFamily("veil_worker_restarts", text, value=restarts)


def _about_commits(stats: CommitStats) -> Iterator[Metric]:
    group = HistogramMetricFamily("veil_commit_group_size", "Operations that shared one commit.")
    group.add_metric((), _cumulative(GROUP_BOUNDS, stats.group_buckets), stats.operations)
    seconds = HistogramMetricFamily("veil_commit_seconds", "Time of a commit, its fsync included.")
    seconds.add_metric((), _cumulative(SECONDS_BOUNDS, stats.seconds_buckets), stats.seconds)
    yield from (group, seconds)
    if (slow := stats.last_hour()) is not None:
        text = "How long a commit took within the last hour"
        yield GaugeMetricFamily("veil_commit_p99_seconds", f"{text}, 99 of 100.", value=slow.p99_s)
        yield GaugeMetricFamily("veil_commit_worst_seconds", f"{text}, the slowest.", value=slow.worst_s)


def _about_connections(stats: Mapping[str, int]) -> Iterator[Metric]:
    for name, text, counted in (
        ("veil_database_connections", "Connections of this node to the database.", "pool_size"),
        ("veil_database_connections_idle", "Connections to the database that are idle.", "pool_available"),
        ("veil_database_waiting", "Operations that wait for a connection.", "requests_waiting"),
    ):
        yield GaugeMetricFamily(name, text, value=stats.get(counted, 0))
    yield CounterMetricFamily(
        "veil_database_connection_failures",
        "Tries to connect to the database that failed, and connections that were lost.",
        value=stats.get("connections_errors", 0) + stats.get("connections_lost", 0),
    )


def _about_journal(stats: ExportStats, outbox: OutboxSize, now_ms: int) -> Iterator[Metric]:
    age_ms = 0 if outbox.oldest_ms is None else max(0, now_ms - outbox.oldest_ms)
    for name, text, value in (
        ("veil_journal_outbox_rows", "Transactions whose events wait to be exported.", outbox.rows),
        ("veil_journal_outbox_bytes", "Bytes of events that wait to be exported.", outbox.packed_bytes),
        ("veil_journal_outbox_age_seconds", "How long the oldest of them has waited.", age_ms / 1000),
        ("veil_journal_clock_seconds", "Now, by the clock of the events: seconds since 1970.", now_ms / 1000),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    for name, text, count in (
        ("veil_journal_events_exported", "Events written to segments.", stats.events),
        ("veil_journal_segments", "Segments written.", stats.segments),
        ("veil_journal_segment_bytes", "Bytes of these segments.", stats.segment_bytes),
        ("veil_journal_export_failures", "Exports that failed and were, or will be, tried again.", stats.failures),
        ("veil_journal_events_lost", "Events not recorded, because the outbox was full.", outbox.lost_events),
        ("veil_journal_rows_unreadable", "Outbox rows left out because they were damaged.", stats.unreadable_rows),
    ):  # fmt: skip
        yield CounterMetricFamily(name, text, value=count)


def _cumulative(bounds: Iterable[float], buckets: Iterable[int]) -> list[tuple[str, float]]:
    return list(zip([*(f"{bound:g}" for bound in bounds), "+Inf"], accumulate(buckets), strict=True))


class _Family(CollectorRegistry):
    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterable[Metric]:
        yield self._family
