"""How queues fared over time: depth, age, what happened and how long it took, in three resolutions, kept over restarts.

The hot path pays nothing for it: the counters that it adds to anyway are read once a second, depths are looked at every
five, and a minute's worth is written at once, in a thread. All of it is bounded: the queues that did something last have a
history, each of the same size.

A node keeps its own: what happened is what it saw itself, depths and ages are the store's, so of several nodes on one
PostgreSQL all show the same depths.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from veil.core.clock import Trouble
from veil.core.errors import VeilError
from veil.core.queue import Queue, QueueCounts
from veil.service.time_slices import TimeSlice

if TYPE_CHECKING:
    from veil.service.service import Service
    from veil.stores.sqlite.history_file import HistoryFile, HistoryRow

_log = logging.getLogger(__name__)


class Resolution(NamedTuple):
    words: str
    span_s: int
    spans: int


MINUTES: Final = Resolution("ten minutes", 5, 120)
HOURS: Final = Resolution("four hours", 120, 120)
WEEK: Final = Resolution("a week", 3600, 168)
RESOLUTIONS: Final = (MINUTES, HOURS, WEEK)

# The highest of each span.
GAUGES: Final = ("visible", "in_flight", "delayed", "oldest_s")
# The sum of each span; the words of Tallies.
EVENTS: Final = (
    *("sent", "arrived", "received", "deleted", "extended", "lapsed"),
    *("failed", "given_back", "overran", "crashed", "dead_lettered", "expired"),
)
# How long messages were held until they were deleted, about.
HANDLING: Final = ("p50_ms", "p99_ms")
FIELDS: Final = (*GAUGES, *EVENTS, *HANDLING)
_PLACE: Final = {field: place for place, field in enumerate(FIELDS)}
_P50, _P99 = _PLACE["p50_ms"], _PLACE["p99_ms"]
_UNKNOWN: Final = 0xFFFF_FFFF
_VALUE_MAX: Final = 0xFFFF_FFFE
_BLANK: Final = array("I", [_UNKNOWN if field in GAUGES or field in HANDLING else 0 for field in FIELDS])

SERIES_MAX: Final = 2_000
SAMPLE_S: Final = MINUTES.span_s
ALL_LOOK_S: Final = 60  # for what changed without being counted here: delays that ended, other nodes
FLUSH_S: Final = 60

TROUBLES_MAX: Final = 500

Key = int | str  # a queue's id, or an account: the sum of its queues


# One span of one series as it is kept (HistoryRow): the place of its resolution in RESOLUTIONS, its number since 1970 by the
# engine's clock, whose it is, and its cells. In the place behind all resolutions, a trouble: its first millisecond, its kind,
# its last.
_TROUBLES: Final = len(RESOLUTIONS)


# ---- how queues stand

_LOOKS_AT_ONCE: Final = 64  # more at once would only queue up in front of the requests


class QueueDepth(NamedTuple):
    counts: QueueCounts = QueueCounts()
    oldest_sent_ms: int | None = None  # engine time; None: nothing is visible, or nobody asked
    # Of those in flight: for a retry, their attempts being over, as far as this server knows.
    waiting: int = 0

    @property
    def in_progress(self) -> int:
        """Of those in flight: somebody works on them."""
        return max(0, self.counts.in_flight - self.waiting)

    @property
    def total(self) -> int:
        return sum(self.counts)


async def queue_depths(
    service: Service, queues: Sequence[Queue], *, with_oldest: bool = True
) -> dict[int, QueueDepth]:
    """How each of the queues stands, by id; those deleted meanwhile are left out, and where the store has failed, all."""
    if service.owner is not None:
        return dict(await service.owner.queue_depths(queues, with_oldest=with_oldest))
    depths: dict[int, QueueDepth] = {}
    time_slice = TimeSlice(service.time_slices)

    async def look(some: Sequence[Queue]) -> None:
        for queue in some:
            try:
                counts = await service.store.counts(queue)
                oldest_ms = (
                    await service.store.oldest_sent_ms(queue) if with_oldest and counts.visible else None
                )
            except VeilError:  # deleted since it was listed; that the store has failed /readyz tells
                continue
            waiting = 0
            if service.activity is not None and counts.in_flight:
                waiting = min(counts.in_flight, service.activity.attempts.waiting(queue.id))
            depths[queue.id] = QueueDepth(counts, oldest_ms, waiting)
            await time_slice.yield_if_spent()

    # Side by side for a store that has to be asked, one after the other within each share: most stores know
    # the counts at once, and then a task for each of ten thousand queues would cost more than the looks.
    await asyncio.gather(
        *(look(queues[first::_LOOKS_AT_ONCE]) for first in range(min(len(queues), _LOOKS_AT_ONCE)))
    )
    return depths


# ---- one series


class _Spans:
    """The latest spans of one resolution: a row of cells each."""

    __slots__ = ("cells", "latest", "resolution", "times")

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        self.cells = _BLANK * resolution.spans
        self.latest = 0
        self.times: dict[int, int] = {}  # handling times of the latest span, by bucket

    def row(self, span: int) -> int:
        """Where the cells of the span begin; those that were skipped are made blank."""
        spans = self.resolution.spans
        if span > self.latest:
            if span - self.latest >= spans:
                self.cells = _BLANK * spans  # at once: after a start thousands of series are new
            else:
                for skipped in range(self.latest + 1, span + 1):
                    at = skipped % spans * len(FIELDS)
                    self.cells[at : at + len(FIELDS)] = _BLANK
            self.latest = span
            self.times = {}
        return span % spans * len(FIELDS)

    def put(self, span: int, kept: bytes) -> None:
        """A span as it was kept; one of another version's shape is left out."""
        if len(kept) == _BLANK.itemsize * len(FIELDS):
            at = self.row(span)
            self.cells[at : at + len(FIELDS)] = array("I", kept)

    def column(self, place: int, now_span: int, spans: int) -> list[int]:
        """The values of one field in the last spans up to now, the oldest first."""
        count, blank = self.resolution.spans, _BLANK[place]
        first = now_span - spans + 1
        oldest, newest = max(first, self.latest - count + 1), min(now_span, self.latest)
        if newest < oldest:
            return [blank] * spans
        ring = self.cells[place :: len(FIELDS)]
        begin, end = oldest % count, newest % count + 1
        kept = ring[begin:end] if begin < end else ring[begin:] + ring[:end]
        return [blank] * (oldest - first) + kept.tolist() + [blank] * (now_span - newest)


class _Series:
    __slots__ = ("flushed", "happened_s", "resolutions", "sampled")

    def __init__(self) -> None:
        self.happened_s: dict[int, int] = {}  # when each event did last, by its place
        self.sampled = 0  # the finest span of the first look
        self.resolutions = tuple(_Spans(resolution) for resolution in RESOLUTIONS)
        self.flushed = [0, 0, 0]  # the latest span of each that was written

    def add(self, now_s: int, place: int, count: int) -> None:
        self.happened_s[place] = now_s
        for spans in self.resolutions:
            at = spans.row(now_s // spans.resolution.span_s) + place
            spans.cells[at] = min(spans.cells[at] + count, _VALUE_MAX)

    def note(self, now_s: int, gauges: Sequence[int]) -> None:
        if not self.sampled:
            self.sampled = now_s // MINUTES.span_s
        for spans in self.resolutions:
            at = spans.row(now_s // spans.resolution.span_s)
            for place, value in enumerate(gauges):
                before = spans.cells[at + place]
                if before == _UNKNOWN or value > before:
                    spans.cells[at + place] = min(value, _VALUE_MAX)

    def handled(self, now_s: int, times: Mapping[int, int]) -> None:
        for spans in self.resolutions:
            at = spans.row(now_s // spans.resolution.span_s)
            for bucket, count in times.items():
                spans.times[bucket] = spans.times.get(bucket, 0) + count
            spans.cells[at + _P50], spans.cells[at + _P99] = _percentiles(spans.times)


def _bucket(ms: int) -> int:
    """The bucket of a length, eight in an octave: within 12 % of what it stands for."""
    if ms < 8:
        return max(ms, 0)
    octave = ms.bit_length() - 4
    return (octave + 1) * 8 + (ms >> octave & 7)


def _length_ms(bucket: int) -> int:
    if bucket < 8:
        return bucket
    octave = bucket // 8 - 1
    return min((8 + bucket % 8 + 1 << octave) - 1, _VALUE_MAX)


def _percentiles(times: Mapping[int, int]) -> tuple[int, int]:
    total, seen, found = sum(times.values()), 0, list[int]()
    for bucket in sorted(times):
        seen += times[bucket]
        while len(found) < 2 and seen * 100 >= total * (50, 99)[len(found)]:
            found.append(_length_ms(bucket))
    return found[0], found[1]


# ---- all of them


class SeriesView(NamedTuple):
    """One series in one resolution, ready to be drawn: a value for each span, the oldest first; None is not known."""

    resolution: Resolution
    columns: Mapping[str, Sequence[int | None]]

    def sum(self, *fields: str) -> list[int]:
        """What happened in each span, several kinds together."""
        return [
            sum(value or 0 for value in span) for span in zip(*map(self.columns.get, fields), strict=True)
        ]


class QueueHistory:
    """Histories of the queues that did something last, and how every queue stood at the last look."""

    def __init__(self, service: Service, file: HistoryFile | None = None) -> None:
        self._service, self._clock, self._file = service, service.clock, file
        self._series: dict[Key, _Series] = {}  # the one that did something last is the last
        # Messages since the last tick, by queue and bucket.
        self._handled: Counter[tuple[int, int]] = Counter()
        self._troubles: deque[Trouble] = deque(maxlen=TROUBLES_MAX)  # of the server, the latest of them
        self._new_troubles: deque[Trouble] = deque(maxlen=TROUBLES_MAX)  # not written yet
        self.depths: dict[int, QueueDepth] = {}  # of every queue, as of the last look
        self.queues: dict[int, Queue] = {}
        self._touched: set[int] = set()
        # How often, by a new queue's id and the event's place.
        self._unplaced: dict[tuple[int, int], int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._sampled_s = self._all_looked_s = self._flushed_s = 0

    # ---- what happens

    def handled(self, queue_id: int, ms: int, count: int) -> None:
        """So many messages were deleted so long after their receive."""
        self._handled[queue_id, _bucket(ms)] += count

    def count(self, fresh: Mapping[tuple[str, int], int]) -> None:
        """Note what was counted since the last time, as happening now."""
        now_s = self._clock.now_ms() // 1000
        for (event, queue_id), count in fresh.items():
            self._touched.add(queue_id)
            if (place := _PLACE.get(event)) is not None:
                self._of(queue_id).add(now_s, place, count)
                self._add_to_account(queue_id, now_s, place, count)
        if self._handled:
            handled, self._handled = self._handled, Counter()
            times: defaultdict[Key, Counter[int]] = defaultdict(Counter)
            for (queue_id, bucket), count in handled.items():
                times[queue_id][bucket] += count
                if queue_id in self.queues:
                    times[self.queues[queue_id].key.account][bucket] += count
            for key, own in times.items():
                self._of(key).handled(now_s, own)

    def _add_to_account(self, queue_id: int, now_s: int, place: int, count: int) -> None:
        queue = self.queues.get(queue_id)
        if queue is not None:
            self._of(queue.key.account).add(now_s, place, count)
        else:  # whose queue it is the next look tells
            self._unplaced[queue_id, place] = self._unplaced.get((queue_id, place), 0) + count

    def _of(self, key: Key) -> _Series:
        series = self._series.pop(key, None)
        if series is None:
            series = _Series()
            if len(self._series) >= SERIES_MAX:
                del self._series[next(each for each in self._series if isinstance(each, int))]
        self._series[key] = series
        return series

    def troubled(self, trouble: Trouble) -> None:
        """The server could not take renewals; what overlaps the last time is the same trouble."""
        if self._troubles and trouble.from_ms <= self._troubles[-1].to_ms:
            known = self._troubles.pop()
            from_ms, to_ms = min(known.from_ms, trouble.from_ms), max(known.to_ms, trouble.to_ms)
            trouble = trouble._replace(from_ms=from_ms, to_ms=to_ms)
        self._troubles.append(trouble)
        self._new_troubles.append(trouble)

    def forget(self, queue_id: int) -> None:
        self._series.pop(queue_id, None)
        self.depths.pop(queue_id, None)
        self.queues.pop(queue_id, None)

    # ---- what people look at

    def view(self, key: Key, resolution: Resolution, fields: Iterable[str] = FIELDS) -> SeriesView:
        """What is known of the queue, or of the account's queues together."""
        series, spans = self._series.get(key), resolution.spans
        now_span = self._clock.now_ms() // 1000 // resolution.span_s
        kept = _Spans(resolution) if series is None else series.resolutions[RESOLUTIONS.index(resolution)]
        columns: dict[str, Sequence[int | None]] = {}
        for field in fields:
            values = kept.column(_PLACE[field], now_span, spans)
            if field in GAUGES or field in HANDLING:
                columns[field] = [None if value == _UNKNOWN else value for value in values]
            else:
                columns[field] = values
        return SeriesView(resolution, columns)

    def troubles(self, resolution: Resolution) -> list[tuple[float, float, Trouble]]:
        """The server's troubles in the time that a view covers, each with the places in its columns where it began and ended:
        3.5 is in the middle of the fourth span."""
        span_ms = resolution.span_s * 1000
        first_ms = (self._clock.now_ms() // span_ms - resolution.spans + 1) * span_ms
        return [
            (max(0.0, (trouble.from_ms - first_ms) / span_ms), (trouble.to_ms - first_ms) / span_ms, trouble)
            for trouble in self._troubles
            if trouble.to_ms > first_ms
        ]

    def recent(self, key: Key, event: str, seconds: int = 600) -> int:
        """How often the event happened lately: at most in the last ten minutes."""
        series = self._series.get(key)
        if series is None:
            return 0
        now_span = self._clock.now_ms() // 1000 // MINUTES.span_s
        return sum(series.resolutions[0].column(_PLACE[event], now_span, seconds // MINUTES.span_s))

    def lately(self, queue_id: int) -> tuple[Mapping[str, int], int | None]:
        """What happened in the queue in the last ten minutes, and how many messages it had at the earliest look within them;
        for a look at very many queues, so nothing is worked out for one in which nothing happened."""
        series = self._series.get(queue_id)
        since_s = self._clock.now_ms() // 1000 - MINUTES.span_s * MINUTES.spans
        if series is None or all(at_s < since_s for at_s in series.happened_s.values()):
            return {}, None
        spans = series.resolutions[0]
        # All that is kept now is of the last ten minutes.
        spans.row(self._clock.now_ms() // 1000 // MINUTES.span_s)
        cells, width = spans.cells, len(FIELDS)
        happened = {
            FIELDS[place]: sum(cells[place::width])
            for place, at_s in series.happened_s.items()
            if at_s >= since_s
        }
        if not series.sampled:
            return happened, None
        for span in range(max(series.sampled, spans.latest - MINUTES.spans + 1), spans.latest + 1):
            at = span % MINUTES.spans * width
            if cells[at] != _UNKNOWN:
                return happened, sum(cells[at : at + 3])
        return happened, None

    def is_quiet(self, queue_id: int) -> bool:
        return queue_id not in self._series

    # ---- every few seconds

    def tick(self) -> None:
        """Look at depths and write what is new, where it is time; called once a second."""
        now_s = self._clock.now_ms() // 1000
        if now_s // SAMPLE_S != self._sampled_s // SAMPLE_S and self._sampling is None:
            self._sampled_s = now_s
            assert self._loop is not None
            self._sampling = self._loop.create_task(self._sample(now_s))
            self._sampling.add_done_callback(self._sampled)

    def _sampled(self, task: asyncio.Task[None]) -> None:
        self._sampling = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the history of the queues could not be taken: %s", error, exc_info=error)

    async def refresh(self) -> None:
        """Look now at the queues in which something happened since the last look, and at all if nobody has yet."""
        if self._sampling is None:
            await self._look(everywhere=not self.queues)

    async def _sample(self, now_s: int) -> None:
        everywhere = now_s - self._all_looked_s >= ALL_LOOK_S
        if everywhere:
            self._all_looked_s = now_s
        await self._look(everywhere=everywhere)
        await self._note(now_s)
        if self._file is not None and now_s - self._flushed_s >= FLUSH_S:
            self._flushed_s = now_s
            await self._flush()

    async def _look(self, *, everywhere: bool) -> None:
        touched, self._touched = self._touched, set()
        try:
            if everywhere or not touched <= self.queues.keys():
                self.queues = {queue.id: queue for queue in await self._service.store.all_queues()}
                unplaced, self._unplaced = self._unplaced, {}
                for (queue_id, place), count in unplaced.items():
                    if queue_id in self.queues:
                        self._add_to_account(queue_id, self._clock.now_ms() // 1000, place, count)
        except VeilError:  # that the store has failed /readyz tells
            return
        wanted = self.queues if everywhere else touched
        queues = [self.queues[queue_id] for queue_id in wanted if queue_id in self.queues]
        found = await queue_depths(self._service, queues)
        if everywhere:
            self.depths = found
        else:
            self.depths |= found

    async def _note(self, now_s: int) -> None:
        """Put how queues stand into their series, and the sums of each account into its own."""
        now_ms, time_slice = self._clock.now_ms(), TimeSlice(self._service.time_slices)
        sums: dict[str, list[int]] = {}
        for queue_id, ((visible, in_flight, delayed), oldest_ms, _) in list(self.depths.items()):
            await time_slice.yield_if_spent()
            queue = self.queues.get(queue_id)
            if queue is None:
                continue
            oldest_s = 0 if oldest_ms is None else max(0, now_ms - oldest_ms) // 1000
            total = sums.setdefault(queue.key.account, [0, 0, 0, 0])
            series = self._series.get(queue_id)
            if visible or in_flight or delayed:
                total[0] += visible
                total[1] += in_flight
                total[2] += delayed
                total[3] = max(total[3], oldest_s)
                if series is None and len(self._series) < SERIES_MAX:
                    series = self._of(queue_id)
            if series is not None:
                series.note(now_s, (visible, in_flight, delayed, oldest_s))
        for account, total in sums.items():
            self._of(account).note(now_s, total)

    # ---- over a restart

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._file is not None:
            troubles, self._troubles = self._troubles, deque(maxlen=TROUBLES_MAX)
            for resolution, span, key, cells in await asyncio.to_thread(self._file.read, self._oldest()):
                if resolution == _TROUBLES:
                    self.troubled(Trouble(span, int.from_bytes(cells), str(key)))
                    continue
                series = self._of(key)
                series.resolutions[resolution].put(span, cells)
                series.flushed[resolution] = span
                if resolution == 0:
                    series.happened_s = dict.fromkeys(map(_PLACE.__getitem__, EVENTS), span * MINUTES.span_s)
            for trouble in troubles:  # told since the store was opened: the start itself
                self.troubled(trouble)

    async def stop(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
        if self._file is not None:
            await self._flush()
            await asyncio.to_thread(self._file.close)

    async def _flush(self) -> None:
        assert self._file is not None
        troubles, self._new_troubles = self._new_troubles, deque(maxlen=TROUBLES_MAX)
        rows: list[HistoryRow] = [
            (_TROUBLES, each.from_ms, str(each.kind), each.to_ms.to_bytes(8)) for each in troubles
        ]
        time_slice = TimeSlice(self._service.time_slices)
        for key, series in list(self._series.items()):
            await time_slice.yield_if_spent()
            rows.extend(self._new_rows(key, series))
        await asyncio.to_thread(self._file.write, rows, self._oldest())

    @staticmethod
    def _new_rows(key: Key, series: _Series) -> Iterator[HistoryRow]:
        for number, spans in enumerate(series.resolutions):
            first = max(series.flushed[number], spans.latest - spans.resolution.spans + 1)
            for span in range(first, spans.latest + 1):
                at = span % spans.resolution.spans * len(FIELDS)
                cells = spans.cells[at : at + len(FIELDS)]
                if cells != _BLANK:
                    yield number, span, key, cells.tobytes()
            series.flushed[number] = spans.latest  # again the next time: it is not over yet

    def _oldest(self) -> list[int]:
        now_s = self._clock.now_ms() // 1000
        oldest = [now_s // each.span_s - each.spans + 1 for each in RESOLUTIONS]
        return [*oldest, (now_s - WEEK.span_s * WEEK.spans) * 1000]
