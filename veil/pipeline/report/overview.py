"""Collect what the report tells: the findings, and beside them sums, timelines and a handful of telling messages from the
tables, in few jobs and few rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from veil.core import findings as found
from veil.core.clock import Trouble
from veil.core.errors import VeilError
from veil.core.findings import FILE, Findings
from veil.pipeline.dead_letters.analysis import DeadLetterGroup, read_groups
from veil.pipeline.lifecycles.tables import ATTEMPT, HOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from veil.journal.storage import Storage


# What a timeline counts. `lapses`: leases whose deadline passed before their message was deleted or released.
SERIES: Final = ("sent", "deleted", "lapses", "duplicates", "dead_lettered")

# Why a message is shown as an example, the most telling first.
KINDS: Final = ("duplicate", "crash", "dead_letter", "renewed")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts of one queue over slots of equal length; `by_send`: all of them counted where their message was sent. And the
    server's own troubles in this time."""

    begin: datetime
    slot: timedelta
    counts: Mapping[str, tuple[int, ...]]
    by_send: bool = True
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over any number of queues and hours."""

    sent: int = 0
    leases: int = 0
    overrun: int = 0
    duplicates: int = 0
    extensions: int = 0
    held_ms: int = 0
    wasted_ms: int = 0
    how: Mapping[str, int] = field(default_factory=dict)  # leases by how they ended
    attempts: Mapping[str, int] = field(default_factory=dict)  # the same leases by what came of them
    outcome: Mapping[str, int] = field(default_factory=dict)  # messages by what became of them

    @classmethod
    def over(cls, parts: Iterable[Totals]) -> Totals:
        """All of them together."""
        every = list(parts)
        sums: dict[str, Any] = {}
        for each in fields(cls):
            values = [getattr(part, each.name) for part in every]
            sums[each.name] = _added(values) if each.name in ("how", "attempts", "outcome") else sum(values)
        return cls(**sums)


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


@dataclass(frozen=True, slots=True)
class QueueLife:
    """What happened in one queue."""

    region: str
    account: str
    queue: str
    totals: Totals
    timeline: Timeline | None


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

    @property
    def totals(self) -> Totals:
        return Totals.over(queue.totals for queue in self.queues)


# Instants between Spark and here are microseconds since 1970: Spark would hand them over without a zone.
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - _BEGIN) // timedelta(microseconds=1)


@overload
def moment(at_us: int) -> datetime: ...
@overload
def moment(at_us: int | None) -> datetime | None: ...
def moment(at_us: int | None) -> datetime | None:
    """The instant, in UTC; None for None."""
    return None if at_us is None else _BEGIN + timedelta(microseconds=at_us)


_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)

# Hours are drawn up to so many days, beyond that days; in less than so many hours, the events themselves.
_HOURLY_MAX: Final = timedelta(days=12)
_EVENTS_MAX: Final = timedelta(hours=6)
_SLOTS_MAX: Final = 96
_SLOTS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)

_OUTCOMES: Final = {
    "deleted": "messages_deleted",
    "expired": "messages_expired",
    "purged": "messages_purged",
    "redriven": "messages_redriven",
    "dead_lettered": "messages_dead",
    "open": "messages_open",
}
_SUMS: Final = (
    "sent", "leases", "overrun", "duplicates", "extensions", "held_ms", "wasted_ms",
    *dict.fromkeys((*HOW, *ATTEMPT)), *_OUTCOMES.values(),
)  # fmt: skip
_GROUPS_MAX: Final = 50
_LAPSED: Final = ("expired", "superseded", "dead_lettered")

Key = tuple[str, str, str]


def collect_overview(
    spark: SparkSession, tables: Storage, *, since: datetime | None = None, now: datetime | None = None
) -> Overview:
    """What the tables hold of the time since then (all of it without one)."""
    from veil.pipeline.lifecycles.store import load_manifest, read_table

    collected_at = now or datetime.now(UTC)
    dead_letters = tuple(read_groups(tables, _GROUPS_MAX))
    days = _since(read_table(spark, tables, "queue_days"), since, _DAY)
    first_day, last_day = _ends(days)
    if first_day is None or last_day is None:
        return Overview(collected_at, None, None, spark_version=spark.version, dead_letters=dead_letters)
    if last_day + _DAY - first_day > _HOURLY_MAX:
        slot = _DAY * -(-((last_day - first_day) // _DAY + 1) // _SLOTS_MAX)
        queues = _lives(_by_slot(days, first_day, slot), first_day, slot)
        begin, end = first_day, last_day + _DAY
    else:
        hours = _since(read_table(spark, tables, "queue_hours"), since, _HOUR)
        rows = _by_slot(hours, first_day, _HOUR)
        begin, end = first_day, last_day + _DAY
        if rows:
            begin = first_day + _HOUR * min(row["slot"] for row in rows)
            end = first_day + _HOUR * (max(row["slot"] for row in rows) + 1)
        queues = _lives(rows, first_day, _HOUR, begin=begin, end=end)
        if end - begin <= _EVENTS_MAX:
            leases, messages = (read_table(spark, tables, name) for name in ("leases", "messages"))
            begin, end, queues = _by_event(leases, messages, begin, end, queues)
    troubles = tuple(
        each
        for each in load_manifest(tables).troubles
        if each.to_ms * 1000 > micros(begin) and each.from_ms * 1000 < micros(end)
    )
    queues = [
        replace(life, timeline=life.timeline and replace(life.timeline, troubles=troubles)) for life in queues
    ]
    examples = collect_examples(
        read_table(spark, tables, "leases"), read_table(spark, tables, "messages"), end
    )
    return Overview(collected_at, begin, end, tuple(queues), tuple(examples), spark.version, dead_letters)


def _since(table: DataFrame, since: datetime | None, step: timedelta) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    if since is None:
        return table
    # The row of an hour or a day that has begun before counts whole.
    return table.where(F.col("hour") > F.timestamp_micros(F.lit(micros(since - step))))


def _ends(table: DataFrame) -> tuple[datetime | None, datetime | None]:
    from pyspark.sql import functions as F  # noqa: N812

    row = table.agg(
        F.min(F.unix_micros("hour")).alias("first"), F.max(F.unix_micros("hour")).alias("last")
    ).first()
    return (None, None) if row is None else (moment(row["first"]), moment(row["last"]))


def _by_slot(table: DataFrame, begin: datetime, slot: timedelta) -> list[Row]:
    from pyspark.sql import functions as F  # noqa: N812

    sums = [F.sum(name).alias(name) for name in _SUMS]
    number = _slot_of(F.unix_micros("hour"), begin, slot)
    return table.groupBy("region", "account", "queue", number.alias("slot")).agg(*sums).collect()


def _slot_of(at_us: Column, begin: datetime, slot: timedelta) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.floor((at_us - F.lit(micros(begin))) / F.lit(slot // timedelta(microseconds=1))).cast("int")


def _lives(
    rows: list[Row],
    origin: datetime,
    slot: timedelta,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> list[QueueLife]:
    """Rows of sums by queue and slot (counted from the origin) as lives whose timelines run from begin to end."""
    if not rows:
        return []
    first = 0 if begin is None else (begin - origin) // slot
    slots = max(row["slot"] for row in rows) + 1 - first if end is None else (end - origin) // slot - first
    by_queue: dict[Key, list[Row]] = {}
    for row in rows:
        by_queue.setdefault((row["region"], row["account"], row["queue"]), []).append(row)
    lives = []
    for key, own in sorted(by_queue.items()):
        counts = {series: [0] * slots for series in SERIES}
        for row in own:
            at = row["slot"] - first
            counts["sent"][at] += row["sent"]
            counts["deleted"][at] += row["messages_deleted"]
            counts["lapses"][at] += sum(row[name] for name in _LAPSED)
            counts["duplicates"][at] += row["duplicates"]
            counts["dead_lettered"][at] += row["dead_lettered"]
        timeline = Timeline(begin or origin, slot, {name: tuple(each) for name, each in counts.items()})
        lives.append(QueueLife(*key, Totals.over(_totals(row) for row in own), timeline))
    return lives


def _totals(row: Any) -> Totals:
    return Totals(
        **{name: row[name] for name in _SUMS[:7]},
        how={name: row[name] for name in HOW},
        attempts={name: row[name] for name in ATTEMPT},
        outcome={name: row[column] for name, column in _OUTCOMES.items()},
    )


def _by_event(
    leases: DataFrame, messages: DataFrame, begin: datetime, end: datetime, queues: list[QueueLife]
) -> tuple[datetime, datetime, list[QueueLife]]:
    """The same lives with timelines of what happened when, in slots as short as the time they cover asks for."""
    from pyspark.sql import functions as F  # noqa: N812

    events = _events(leases, messages).where(F.col("at_us") >= micros(begin - _HOUR))
    ends = events.agg(F.min("at_us").alias("first"), F.max("at_us").alias("last")).first()
    first, last = (moment(ends["first"]), moment(ends["last"])) if ends is not None else (None, None)
    if first is None or last is None:
        return begin, end, queues
    slot = next((each for each in map(_seconds, _SLOTS_S) if (last - first) / each <= _SLOTS_MAX), _HOUR)
    first = datetime.fromtimestamp(first.timestamp() // slot.total_seconds() * slot.total_seconds(), UTC)
    slots = (last - first) // slot + 1
    number = _slot_of(F.col("at_us"), first, slot).alias("slot")
    counted = events.groupBy("region", "account", "queue", "series", number).count().collect()
    counts: dict[Key, dict[str, list[int]]] = {}
    for row in counted:
        own = counts.setdefault(
            (row["region"], row["account"], row["queue"]), {series: [0] * slots for series in SERIES}
        )
        own[row["series"]][row["slot"]] += row["count"]
    nothing = {series: [0] * slots for series in SERIES}
    told = []
    for life in queues:
        own = counts.get((life.region, life.account, life.queue), nothing)
        timeline = Timeline(first, slot, {name: tuple(each) for name, each in own.items()}, by_send=False)
        told.append(QueueLife(life.region, life.account, life.queue, life.totals, timeline))
    return first, first + slot * slots, told


def _events(leases: DataFrame, messages: DataFrame) -> DataFrame:
    """One row for each thing that a timeline counts: queue, series and instant."""
    from pyspark.sql import functions as F  # noqa: N812

    def picked(table: DataFrame, series: str, at: str, where: Column) -> DataFrame:
        found = table.where(where & F.col(at).isNotNull())
        return found.select(
            "region", "account", "queue", F.lit(series).alias("series"), F.unix_micros(at).alias("at_us")
        )

    lapsed = F.col("how").isin(*_LAPSED)
    twice = F.col("overrun") & (F.col("how") == "superseded") & ~F.col("outcome").isin("failed", "given_back")
    parts = [
        picked(messages, "sent", "sent_at", F.lit(True)),
        picked(messages, "deleted", "ended_at", F.col("outcome") == "deleted"),
        picked(leases, "dead_lettered", "ended_at", F.col("how") == "dead_lettered"),
        picked(leases, "lapses", "ended_at", lapsed),
        picked(leases, "duplicates", "ended_at", twice),
    ]
    together = parts[0]
    for part in parts[1:]:
        together = together.unionByName(part)
    return together


def _seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


# ---- examples: one whose work was done twice, one lost with its holder, a dead letter, a renewed one

_RECENT: Final = timedelta(days=7)  # a year of leases is not read for a few drawings
_EACH_MAX: Final = 2
_INSTANTS: Final = ("received_at", "first_deadline", "deadline", "last_extended_at", "ended_at")


class _Pick(NamedTuple):
    kind: str
    queue: str
    seq: int


def collect_examples(leases: DataFrame, messages: DataFrame, until: datetime) -> list[Example]:
    """The examples from the last days before `until`, the most telling kind first."""
    from pyspark.sql import functions as F  # noqa: N812

    begin = F.timestamp_micros(F.lit(micros(until - _RECENT)))
    picks = _picked(leases.where(F.col("hour") >= begin))
    if not picks:
        return []
    seqs = [pick.seq for pick in picks]
    own = F.col("seq").isin(seqs) & (F.col("hour") >= begin)
    found_leases = leases.where(own & F.col("received_at").isNotNull()).select(
        "seq", "queue", "delivery", "extensions", "how", "outcome", "error_type", "held_ms", "processing_ms",
        "overrun", "user_agent",
        *(F.unix_micros(name).alias(name) for name in _INSTANTS),
    ).collect()  # fmt: skip
    found_messages = messages.where(own).select(
        "seq", "queue", "message_id", "message_type", "outcome",
        F.unix_micros("sent_at").alias("sent_at"), F.unix_micros("ended_at").alias("ended_at"),
    ).collect()  # fmt: skip
    made = (_example(pick, found_leases, found_messages) for pick in picks)
    return [example for example in made if example is not None]


def _picked(leases: DataFrame) -> list[_Pick]:
    """For each kind the best of each queue, and of these the best few: one pass over the leases."""
    from pyspark.sql import functions as F  # noqa: N812

    lapsed = F.col("how").isin("expired", "superseded", "dead_lettered")
    scores: dict[str, tuple[Column, list[Column]]] = {
        "duplicate": (
            F.col("overrun")
            & (F.col("how") == "superseded")
            & ~F.col("outcome").isin("failed", "given_back"),
            [F.col("processing_ms")],
        ),
        # A first lease without renewals shows best what a crash costs.
        "crash": (
            lapsed & (F.col("outcome") == "crashed") & F.col("recovery_ms").isNotNull(),
            [-F.col("delivery"), -F.col("extensions"), F.col("recovery_ms")],
        ),
        "dead_letter": (F.col("how") == "dead_lettered", [F.col("delivery"), F.col("held_ms")]),
        "renewed": (
            (F.col("how") == "deleted") & (F.col("extensions") > 0),
            [F.col("extensions"), F.col("held_ms")],
        ),
    }
    best = []
    for kind in KINDS:
        where, parts = scores[kind]
        named = [F.coalesce(part, F.lit(0)).cast("long").alias(f"by{i}") for i, part in enumerate(parts)]
        # Structs compare by their parts in turn; null ones do not take part.
        best.append(F.max(F.when(where, F.struct(*named, F.col("seq")))).alias(kind))
    rows = leases.groupBy("region", "account", "queue").agg(*best).collect()
    picks: list[_Pick] = []
    for kind in KINDS:
        ranked = sorted(
            (row for row in rows if row[kind] is not None), key=lambda row: row[kind], reverse=True
        )
        for row in ranked[:_EACH_MAX]:
            pick = _Pick(kind, row["queue"], row[kind]["seq"])
            if pick.seq not in {each.seq for each in picks}:
                picks.append(pick)
    return picks


def _example(pick: _Pick, leases: list[Row], messages: list[Row]) -> Example | None:
    own = sorted((row for row in leases if row["seq"] == pick.seq), key=lambda row: row["delivery"])
    # In the dead letters a message may have a row of its own under the same key.
    rows = sorted(
        (row for row in messages if row["seq"] == pick.seq), key=lambda row: row["queue"] != pick.queue
    )
    if not own or not rows:
        return None
    message = rows[0]
    bars = tuple(lease for row in own if (lease := _lease(row)) is not None)
    sent_at = moment(message["sent_at"]) or bars[0].received_at
    return Example(
        pick.kind, pick.queue, message["message_id"], message["message_type"], sent_at, message["outcome"],
        moment(message["ended_at"]), bars,
    )  # fmt: skip


def _lease(row: Row) -> ExampleLease | None:
    if row["received_at"] is None:
        return None
    given = {each.name: row[each.name] for each in fields(ExampleLease)}
    instants = {name: moment(row[name]) for name in _INSTANTS}
    return ExampleLease(**given | instants | {"held_ms": row["held_ms"] or 0})


class FindingsMissing(VeilError):
    """Nobody has looked for timeouts in these tables yet."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"no {FILE} in {where}; find the timeouts first: veil pipeline lifecycles, then veil pipeline timeouts"
        )


class FindingsUnreadable(VeilError):
    """The file is not what `veil pipeline timeouts` of this version writes."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}; write it again: veil pipeline timeouts")


def read_findings(tables: Storage) -> Findings:
    """The findings beside the tables."""
    try:
        text = tables.read(FILE)
    except FileNotFoundError:
        raise FindingsMissing(tables.uri) from None
    try:
        return found.decode(text)
    except found.FindingsUnreadable as error:
        raise FindingsUnreadable(tables.uri, str(error)) from None
