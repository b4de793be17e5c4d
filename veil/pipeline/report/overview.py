"""Collect what the report shows besides the findings: sums, timelines and a few example messages.

This process reads them from the tables' files: the sums are few rows, and of the leases a few columns of seven days.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import compute as pc

from veil.core.clock import Trouble
from veil.core.queue import QueueKey
from veil.core.sequence import instant_of
from veil.pipeline.dead_letters.analysis import DeadLetterGroup, read_groups
from veil.pipeline.lifecycles.columns import read_rows
from veil.pipeline.lifecycles.store import TABLES, check_files, load_manifest
from veil.pipeline.lifecycles.tables import COUNTS, DAYS, HOUR_MS, HOURS, LAPSED, arrow_schema

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.store import Manifest

_HOW, _OUTCOME = pc.field("how"), pc.field("outcome")
_TWICE: Final = pc.field("overrun") & (_HOW == "superseded") & ~_OUTCOME.isin(["failed", "given_back"])


class Series(NamedTuple):
    """What a timeline counts: columns of the sums, or the rows of a table that meet a condition, at an instant."""

    sums: Sequence[str]
    table: str
    where: Any
    at: str = "ended_at"


SERIES: Final = {
    "sent": Series(["sent"], "messages", pc.scalar(True), "sent_at"),
    "deleted": Series(["messages_deleted"], "messages", _OUTCOME == "deleted"),
    "lapses": Series(LAPSED, "leases", _HOW.isin(LAPSED)),
    "duplicates": Series(["duplicates"], "leases", _TWICE),
    "dead_lettered": Series(["dead_lettered"], "leases", _HOW == "dead_lettered"),
}
# Why a message is shown as an example, the most telling first: by which of its leases, and what the best has most (1) or
# least (-1) of.
KINDS: Final = {
    "duplicate": (_TWICE, {"processing_ms": 1}),
    # A first lease without renewals shows best what a crash costs.
    "crash": (
        _HOW.isin(LAPSED) & (_OUTCOME == "crashed"),
        {"delivery": -1, "extensions": -1, "recovery_ms": 1},
    ),
    "dead_letter": (_HOW == "dead_lettered", {"delivery": 1, "held_ms": 1}),
    "renewed": ((_HOW == "deleted") & (pc.field("extensions") > 0), {"extensions": 1, "held_ms": 1}),
}


@dataclass(frozen=True, slots=True)
class QueueTimeline:
    """Counts of one queue over slots of equal length; `by_send`: all of them counted where their message was sent."""

    begin: datetime
    slot: timedelta
    counts: Mapping[str, tuple[int, ...]]
    by_send: bool = True


@dataclass(frozen=True, slots=True)
class QueueLife:
    """What happened in one queue; `totals` has the columns of the sums."""

    key: QueueKey
    totals: Counter[str]
    timeline: QueueTimeline | None


@dataclass(frozen=True, slots=True)
class ExampleLease:
    """One lease of an example, as the table `leases` has it."""

    queue: str
    delivery: int
    received_at: datetime
    first_deadline: datetime | None
    deadline: datetime | None
    extensions: int
    last_extended_at: datetime | None
    ended_at: datetime | None
    how: str
    outcome: str  # of the attempt
    error_type: str | None
    held_ms: int
    processing_ms: int | None
    overrun: bool
    user_agent: str | None

    @property
    def work_ended(self) -> datetime | None:
        """When the work is known to have ended: at the delete, in time or late."""
        if self.processing_ms is None or not (self.overrun or self.how == "deleted"):
            return None
        return self.received_at + timedelta(milliseconds=self.processing_ms)

    @property
    def late_s(self) -> float:
        """How long the work went on after the deadline."""
        if not self.overrun or self.work_ended is None or self.deadline is None:
            return 0.0
        return max((self.work_ended - self.deadline).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class Example:
    """One message's life, and why it is worth a look (one of KINDS)."""

    kind: str
    queue: str
    message_id: str | None
    message_type: str | None
    sent_at: datetime
    outcome: str
    ended_at: datetime | None
    leases: tuple[ExampleLease, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The tables, as far as the report needs them."""

    collected_at: datetime
    since: datetime | None  # the hours that the tables cover, UTC
    until: datetime | None
    queues: tuple[QueueLife, ...] = ()
    examples: tuple[Example, ...] = ()
    dead_letters: tuple[DeadLetterGroup, ...] = ()  # of the last analysis
    troubles: tuple[Trouble, ...] = ()  # of the server itself, in this time
    totals: Counter[str] = field(init=False, default_factory=Counter)  # of all queues

    def __post_init__(self) -> None:
        for queue in self.queues:
            self.totals.update(queue.totals)


T = TypeVar("T")
Row = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)

# Hours are drawn up to so many days, beyond that days; in less than so many hours, the events themselves.
_HOURLY_MAX: Final = timedelta(days=12)
_EVENTS_MAX: Final = timedelta(hours=6)
_KEPT_MAX: Final = timedelta(days=15)  # no queue keeps a message for longer
_SLOTS_MAX: Final = 96
_SLOTS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
_GROUPS_MAX: Final = 50
_FILES_AT_ONCE: Final = 8

_KEY: Final = ("region", "account", "queue")
_TOLD_BY: Final = ("how", "outcome", "overrun")
_OF_MESSAGE: Final = ("queue", "seq", "message_id", "message_type", "sent_at", "outcome", "ended_at")


def collect_overview(
    tables: Storage, *, since: datetime | None = None, now: datetime | None = None
) -> Overview:
    """What the tables hold of the time since then (all of it without one)."""
    manifest = load_manifest(tables)

    def known(parts: Iterable[tuple[int, Sequence[str]]], step: timedelta) -> dict[datetime, Sequence[str]]:
        begun = ((_EPOCH + part * step, files) for part, files in parts if files)
        # The row of an hour or a day that has begun before counts whole.
        return {at: files for at, files in begun if since is None or at > since - step}

    now, groups = now or datetime.now(UTC), tuple(read_groups(tables, _GROUPS_MAX))
    level, parts = DAYS, known(manifest.days.items(), _DAY)
    if not parts:
        return Overview(now, None, None, dead_letters=groups)
    begin, end = min(parts), max(parts) + _DAY
    slot = _DAY * -(-((end - begin) // _DAY) // _SLOTS_MAX)
    if end - begin <= _HOURLY_MAX:
        hours = ((part, hour.queue_hours) for part, hour in manifest.hours.items())
        level, parts, slot = HOURS, known(hours, _HOUR), _HOUR
        if parts:
            begin, end = min(parts), max(parts) + _HOUR
    totals: dict[QueueKey, Counter[str]] = {}
    counts: list[tuple[QueueKey, str, int, int]] = []  # queue, series, slot and number
    for row in _sums(tables, level, [file for files in parts.values() for file in files], begin, slot):
        totals.setdefault(_key(row), Counter()).update({name: row[f"{name}_sum"] for name in COUNTS})
        for series, of in SERIES.items():
            counts.append((_key(row), series, row["slot"], sum(row[f"{name}_sum"] for name in of.sums)))
    is_short = bool(totals) and end - begin <= _EVENTS_MAX
    events = _events(tables, manifest, begin - _HOUR) if is_short else None
    if events:
        first, last = pc.min(events["at_min"]).as_py(), pc.max(events["at_max"]).as_py()
        slots = (timedelta(seconds=each) for each in _SLOTS_S)
        slot = next((each for each in slots if (last - first) / each <= _SLOTS_MAX), _HOUR)
        begin = first - (first - _EPOCH) % slot
        end = begin + slot * ((last - begin) // slot + 1)
        by_slot = _by_queue(
            _with_slot(events, "at_min", begin, slot), ["series", "slot"], ("at_count", "sum")
        )
        counts = [(_key(row), row["series"], row["slot"], row["at_count_sum"]) for row in by_slot.to_pylist()]
    lines = {key: {series: [0] * -(-(end - begin) // slot) for series in SERIES} for key in sorted(totals)}
    for key, series, number, count in counts:
        if key in lines:  # else all messages of the queue were sent before this time
            lines[key][series][number] += count
    return Overview(
        now, begin, end,
        tuple(
            QueueLife(
                key,
                totals[key],
                QueueTimeline(begin, slot, {name: tuple(each) for name, each in own.items()}, not events),
            )
            for key, own in lines.items()
        ),
        tuple(_examples(tables, manifest, end)),
        groups,
        tuple(
            each
            for each in manifest.troubles
            if each.to_ms > begin.timestamp() * 1000 and each.from_ms < end.timestamp() * 1000
        ),
    )  # fmt: skip


def _key(row: Row) -> QueueKey:
    return QueueKey(row["region"], row["account"], row["queue"])


def _each_file(
    tables: Storage, table: str, files: Sequence[str], columns: Collection[str], make: Callable[[pa.Table], T]
) -> list[T]:
    """What is made of each file's rows, with those of the columns that the table has; few files are in memory at a time."""
    check_files(tables, table, files)
    schema = arrow_schema(TABLES[table], *sorted(columns))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return list(pool.map(lambda file: make(read_rows(tables, file, schema)), files))


def _by_queue(rows: pa.Table, by: Sequence[str], *aggregates: tuple[str, str]) -> pa.Table:
    """The rows aggregated by queue and these columns; in one thread, so that `last` follows their order."""
    return rows.unify_dictionaries().group_by([*_KEY, *by], use_threads=False).aggregate(aggregates)


def _with_slot(rows: pa.Table, at: str, begin: datetime, slot: timedelta) -> pa.Table:
    """The rows with the slot that the instant is in, numbered from the beginning on."""
    passed_us = pc.subtract(rows[at], pa.scalar(begin, rows[at].type)).cast(pa.int64())
    return rows.append_column("slot", pc.divide(passed_us, slot // timedelta(microseconds=1)))


def _sums(tables: Storage, level: str, files: Sequence[str], begin: datetime, slot: timedelta) -> list[Row]:
    """The counts by queue and slot."""
    found = _each_file(tables, level, files, ("hour", *_KEY, *COUNTS), lambda rows: rows)
    if not found:
        return []
    rows = _with_slot(pa.concat_tables(found), "hour", begin, slot)
    sums: list[Row] = _by_queue(rows, ["slot"], *((name, "sum") for name in COUNTS)).to_pylist()
    return sums


def _events(tables: Storage, manifest: Manifest, since: datetime) -> pa.Table:
    """How often what a timeline counts happened since then, by queue and second, with the first and last instant of it."""
    found: list[pa.Table] = []
    for name, (_, table, where, at) in SERIES.items():
        wanted = where & (pc.field(at) >= since)

        def counted(rows: pa.Table, name: str = name, wanted: Any = wanted, at: str = at) -> pa.Table:
            rows = rows.filter(wanted).rename_columns({at: "at"})
            rows = _with_slot(rows, "at", _EPOCH, timedelta(seconds=1))
            rows = _by_queue(rows, ["slot"], *(("at", each) for each in ("min", "max", "count"))).drop("slot")
            return rows.append_column("series", pa.repeat(name, rows.num_rows))

        files = _sent_since(manifest, table, since - _KEPT_MAX)
        found += _each_file(tables, table, files, {*_KEY, at, *_TOLD_BY}, counted)
    return pa.concat_tables(found)


def _sent_since(manifest: Manifest, table: str, since: datetime) -> list[str]:
    """The files of `leases` or `messages` with what was sent in these hours."""
    hours = ((_EPOCH + part * _HOUR, hour) for part, hour in manifest.hours.items())
    return [file for at, hour in hours if at >= since for file in getattr(hour, table)]


# ---- examples: one whose work was done twice, one lost with its holder, a dead letter, a renewed one

_RECENT: Final = timedelta(days=7)  # a year of leases is not read for a few drawings
_EACH_MAX: Final = 2


def _examples(tables: Storage, manifest: Manifest, until: datetime) -> Iterator[Example]:
    """The examples from the last days before `until`, the most telling kind first."""
    picks = _picked(tables, _sent_since(manifest, "leases", until - _RECENT))
    hours = [manifest.hours[part] for part in {instant_of(seq) // HOUR_MS for seq in picks}]

    def rows_of(table: str, columns: Collection[str]) -> list[Row]:
        files = [file for hour in hours for file in getattr(hour, table)]
        own = pc.field("seq").isin(list(picks))
        found = _each_file(tables, table, files, columns, lambda rows: rows.filter(own).to_pylist())
        return list(chain.from_iterable(found))

    names = [each.name for each in fields(ExampleLease)]
    leases = sorted(rows_of("leases", {"seq", *names}), key=itemgetter("delivery"))
    messages = rows_of("messages", _OF_MESSAGE)
    for seq, (kind, queue) in picks.items():
        own = (row for row in leases if row["seq"] == seq and row["received_at"])
        bars = tuple(
            ExampleLease(**{name: row[name] for name in names} | {"held_ms": row["held_ms"] or 0})
            for row in own
        )
        rows = [row for row in messages if row["seq"] == seq]
        if bars and rows:
            # In the dead letters a message may have a row of its own under the same key.
            message = next((row for row in rows if row["queue"] == queue), rows[0])
            yield Example(
                kind, queue, message["message_id"], message["message_type"], message["sent_at"] or bars[0].received_at,
                message["outcome"], message["ended_at"], bars,
            )  # fmt: skip


def _picked(tables: Storage, files: Sequence[str]) -> dict[int, tuple[str, str]]:
    """For each kind the best of each queue, and of these the best few, by their keys; one pass over the leases."""

    def best(leases: pa.Table) -> list[tuple[str, QueueKey, tuple[int, ...]]]:
        found = []
        for kind, (where, by) in KINDS.items():
            order = {**by, "seq": 1}
            sorting = [(name, "ascending" if sign > 0 else "descending") for name, sign in order.items()]
            rows = leases.filter(where).select([*_KEY, *order]).drop_null().sort_by(sorting)
            for row in _by_queue(rows, [], *((name, "last") for name in order)).to_pylist():
                score = tuple(sign * row[f"{name}_last"] for name, sign in order.items())
                found.append((kind, _key(row), score))
        return found

    columns = {"seq", *_KEY, *_TOLD_BY}.union(*(by for _, by in KINDS.values()))
    best_of: dict[str, dict[QueueKey, tuple[int, ...]]] = {kind: {} for kind in KINDS}
    for kind, key, score in chain.from_iterable(_each_file(tables, "leases", files, columns, best)):
        best_of[kind][key] = max(score, best_of[kind].get(key, score))
    picks: dict[int, tuple[str, str]] = {}
    for kind, queues in best_of.items():
        for key, score in sorted(queues.items(), key=itemgetter(1), reverse=True)[:_EACH_MAX]:
            picks.setdefault(score[-1], (kind, key.name))
    return picks
