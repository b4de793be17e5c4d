"""Collect what the report shows besides the findings: sums, timelines and a few example messages, in few jobs and few rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from veil.core.clock import Trouble
from veil.core.queue import QueueKey
from veil.pipeline.dead_letters.analysis import DeadLetterGroup, read_groups
from veil.pipeline.lifecycles.tables import COUNTS, LAPSED
from veil.pipeline.sql import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from veil.journal.storage import Storage

# What a timeline counts, and the columns of the sums that it is.
SERIES: Final[Mapping[str, Sequence[str]]] = {
    "sent": ("sent",),
    "deleted": ("messages_deleted",),
    "lapses": LAPSED,
    "duplicates": ("duplicates",),
    "dead_lettered": ("dead_lettered",),
}
# Why a message is shown as an example, the most telling first.
KINDS: Final = ("duplicate", "crash", "dead_letter", "renewed")


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
    spark_version: str = ""
    dead_letters: tuple[DeadLetterGroup, ...] = ()  # of the last analysis
    troubles: tuple[Trouble, ...] = ()  # of the server itself, in this time
    totals: Counter[str] = field(init=False, default_factory=Counter)  # of all queues

    def __post_init__(self) -> None:
        for queue in self.queues:
            self.totals.update(queue.totals)


Row = dict[str, Any]


def _rows(table: DataFrame) -> list[Row]:
    """The rows by Arrow, which tells instants with their zone; Spark's own rows have them without."""
    found: list[Row] = table.toArrow().to_pylist()
    return found


_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)

# Hours are drawn up to so many days, beyond that days; in less than so many hours, the events themselves.
_HOURLY_MAX: Final = timedelta(days=12)
_EVENTS_MAX: Final = timedelta(hours=6)
_SLOTS_MAX: Final = 96
_SLOTS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
_GROUPS_MAX: Final = 50

_KEY: Final = ("region", "account", "queue")


def collect_overview(
    spark: SparkSession, tables: Storage, *, since: datetime | None = None, now: datetime | None = None
) -> Overview:
    """What the tables hold of the time since then (all of it without one)."""
    from veil.pipeline.lifecycles.store import load_manifest, read_table

    def sums_of(name: str, step: timedelta) -> DataFrame:
        table = read_table(spark, tables, name).withColumnRenamed("hour", "at")
        # The row of an hour or a day that has begun before counts whole.
        return table if since is None else table.where(F.col("at") > since - step)

    now, groups = now or datetime.now(UTC), tuple(read_groups(tables, _GROUPS_MAX))
    sums = sums_of("queue_days", _DAY)
    begin, last = _ends(sums)
    if begin is None or last is None:
        return Overview(now, None, None, spark_version=spark.version, dead_letters=groups)
    end = last + _DAY
    slot = _DAY * -(-((end - begin) // _DAY) // _SLOTS_MAX)
    if end - begin <= _HOURLY_MAX:
        sums, slot = sums_of("queue_hours", _HOUR), _HOUR
    rows = _by_slot(sums, begin, slot, *(F.sum(name).alias(name) for name in COUNTS))
    numbers = [row["slot"] for row in rows]
    if numbers and slot == _HOUR:
        begin, end = begin + slot * min(numbers), begin + slot * (max(numbers) + 1)
    totals: dict[QueueKey, Counter[str]] = {}
    for row in rows:
        totals.setdefault(_key(row), Counter()).update({name: row[name] for name in COUNTS})
    timelines = _timelines(rows, SERIES, totals, begin, end, slot)
    leases, messages = (read_table(spark, tables, name) for name in ("leases", "messages"))
    if totals and end - begin <= _EVENTS_MAX:
        events = _events(leases, messages).where(F.col("at") >= begin - _HOUR)
        first, last = _ends(events)
        if first is not None and last is not None:
            slots = (timedelta(seconds=each) for each in _SLOTS_S)
            slot = next((each for each in slots if (last - first) / each <= _SLOTS_MAX), _HOUR)
            begin = first - (first - _BEGIN) % slot
            end = begin + slot * ((last - begin) // slot + 1)
            counts = (F.count_if(F.col("series") == name).alias(name) for name in SERIES)
            rows = _by_slot(events, begin, slot, *counts)
            columns = {name: (name,) for name in SERIES}
            timelines = _timelines(rows, columns, totals, begin, end, slot, by_send=False)
    return Overview(
        now, begin, end,
        tuple(QueueLife(key, totals[key], timelines[key]) for key in sorted(totals)),
        tuple(collect_examples(leases, messages, end)),
        spark.version,
        groups,
        tuple(
            each
            for each in load_manifest(tables).troubles
            if each.to_ms > begin.timestamp() * 1000 and each.from_ms < end.timestamp() * 1000
        ),
    )  # fmt: skip


def _key(row: Row) -> QueueKey:
    return QueueKey(row["region"], row["account"], row["queue"])


def _ends(table: DataFrame) -> tuple[datetime | None, datetime | None]:
    (row,) = _rows(table.agg(F.min("at").alias("first"), F.max("at").alias("last")))
    return row["first"], row["last"]


def _by_slot(table: DataFrame, begin: datetime, slot: timedelta, *counts: Column) -> list[Row]:
    """The counts by queue and slot, which are numbered from the beginning on."""
    passed_us = F.unix_micros("at") - F.unix_micros(F.lit(begin))
    number = F.floor(passed_us / F.lit(slot // timedelta(microseconds=1))).cast("int")
    return _rows(table.groupBy(*_KEY, number.alias("slot")).agg(*counts))


def _timelines(
    rows: Sequence[Row], columns: Mapping[str, Sequence[str]], keys: Iterable[QueueKey], begin: datetime, end: datetime,
    slot: timedelta, *, by_send: bool = True,
) -> dict[QueueKey, QueueTimeline]:  # fmt: skip
    """A timeline for each of the queues, also those without a row. It begins with the first slot that has one."""
    slots, first = -(-(end - begin) // slot), min((row["slot"] for row in rows), default=0)
    counts = {key: {series: [0] * slots for series in SERIES} for key in keys}
    for row in rows:
        for series, names in columns.items():
            counts[_key(row)][series][row["slot"] - first] += sum(row[name] for name in names)
    return {
        key: QueueTimeline(begin, slot, {name: tuple(each) for name, each in own.items()}, by_send)
        for key, own in counts.items()
    }


def _done_twice() -> Column:
    is_over = F.col("outcome").isin("failed", "given_back")
    return F.col("overrun") & (F.col("how") == "superseded") & ~is_over


def _events(leases: DataFrame, messages: DataFrame) -> DataFrame:
    """One row for each thing that a timeline counts: queue, series and instant."""

    def picked(table: DataFrame, series: str, at: str, where: Column) -> DataFrame:
        found = table.where(where & F.col(at).isNotNull())
        return found.select(*_KEY, F.lit(series).alias("series"), F.col(at).alias("at"))

    return (
        picked(messages, "sent", "sent_at", F.lit(True))
        .unionByName(picked(messages, "deleted", "ended_at", F.col("outcome") == "deleted"))
        .unionByName(picked(leases, "dead_lettered", "ended_at", F.col("how") == "dead_lettered"))
        .unionByName(picked(leases, "lapses", "ended_at", F.col("how").isin(*LAPSED)))
        .unionByName(picked(leases, "duplicates", "ended_at", _done_twice()))
    )


# ---- examples: one whose work was done twice, one lost with its holder, a dead letter, a renewed one

_RECENT: Final = timedelta(days=7)  # a year of leases is not read for a few drawings
_EACH_MAX: Final = 2


def collect_examples(leases: DataFrame, messages: DataFrame, until: datetime) -> list[Example]:
    """The examples from the last days before `until`, the most telling kind first."""
    recent = F.col("hour") >= until - _RECENT
    picks = _picked(leases.where(recent))
    if not picks:
        return []
    own = F.col("seq").isin(list(picks)) & recent
    names = [each.name for each in fields(ExampleLease)]
    bars_of: dict[int, list[ExampleLease]] = {}
    found = leases.where(own & F.col("received_at").isNotNull()).fillna(0, ["held_ms"])
    for row in _rows(found.select("seq", *names).orderBy("delivery")):
        bars_of.setdefault(row.pop("seq"), []).append(ExampleLease(**row))
    found_messages = _rows(messages.where(own))
    examples = []
    for seq, (kind, queue) in picks.items():
        bars = tuple(bars_of.get(seq, ()))
        rows = [row for row in found_messages if row["seq"] == seq]
        if bars and rows:
            # In the dead letters a message may have a row of its own under the same key.
            message = next((row for row in rows if row["queue"] == queue), rows[0])
            examples.append(
                Example(
                    kind, queue, message["message_id"], message["message_type"],
                    message["sent_at"] or bars[0].received_at, message["outcome"], message["ended_at"], bars,
                )
            )  # fmt: skip
    return examples


def _picked(leases: DataFrame) -> dict[int, tuple[str, str]]:
    """For each kind the best of each queue, and of these the best few, by their keys; one pass over the leases."""
    crashed = F.col("how").isin(*LAPSED) & (F.col("outcome") == "crashed") & F.col("recovery_ms").isNotNull()
    renewed = (F.col("how") == "deleted") & (F.col("extensions") > 0)
    scores: dict[str, tuple[Column, list[Column]]] = {
        "duplicate": (_done_twice(), [F.col("processing_ms")]),
        # A first lease without renewals shows best what a crash costs.
        "crash": (crashed, [-F.col("delivery"), -F.col("extensions"), F.col("recovery_ms")]),
        "dead_letter": (F.col("how") == "dead_lettered", [F.col("delivery"), F.col("held_ms")]),
        "renewed": (renewed, [F.col("extensions"), F.col("held_ms")]),
    }
    best = []
    for kind, (where, parts) in scores.items():
        named = [F.coalesce(part, F.lit(0)).cast("long").alias(f"by{i}") for i, part in enumerate(parts)]
        # Structs compare by their parts in turn; null ones do not take part.
        best.append(F.max(F.when(where, F.struct(*named, F.col("seq")))).alias(kind))
    rows = leases.groupBy(*_KEY).agg(*best).collect()
    picks: dict[int, tuple[str, str]] = {}
    for kind in KINDS:
        known = (row for row in rows if row[kind] is not None)
        for row in sorted(known, key=lambda row: row[kind], reverse=True)[:_EACH_MAX]:
            picks.setdefault(row[kind]["seq"], (kind, row["queue"]))
    return picks
