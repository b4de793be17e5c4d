"""A router: one streaming query from the intake to the target queues, its state, and the queues that it needs.

The rules may change between a batch that was cut short and its repetition, and a message that had been sent to one queue
would then go to another as well. So the rules of a batch are written down before its first message is sent.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from veil import words
from veil.client.api import ApiError
from veil.core.limits import ATTRIBUTES_MAX, BODY_BYTES_MAX
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import TablesRefused
from veil.pipeline.queues import QueueAddress, QueueClient
from veil.pipeline.routing.rules import (
    CHARS_MAX,
    TYPE,
    Band,
    Match,
    RouteRefused,
    RouteTable,
    Rule,
    Target,
    body_bytes,
    class_column,
)
from veil.pipeline.spark.workers import register
from veil.pipeline.sql import ATTRIBUTES, TYPE_ATTRIBUTES, F, attribute_value
from veil.pipeline.timeouts.history import History, Work, merged
from veil.pipeline.timeouts.recommendation import curve_of, sort_lapses
from veil.pipeline.timeouts.run import past

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


CHECKPOINT: Final = "checkpoint"
SEGMENTS: Final = "segments"
_INTAKE: Final = "intake.json"
_CLASSES: Final = "classes.json"
_BATCH: Final = "batch.json"


T = TypeVar("T")


class _Batch(msgspec.Struct, frozen=True):
    query: str
    batch: int
    table: RouteTable


class RouterState:
    """A directory of one router. Nothing is written there before `keep`, so that a dry run, or one that ends because a queue is
    missing, leaves nothing behind."""

    def __init__(self, place: Storage) -> None:
        self.place = place
        self._unwritten: dict[str, object] | None = {}

    def keep(self) -> None:
        """Write what was noted so far, and from now on at once."""
        unwritten, self._unwritten = self._unwritten or {}, None
        for name, value in unwritten.items():
            self._write(name, value)

    def belongs_to(self, intake: str) -> None:
        """See that the directory is this intake's; raises RouteRefused. A new one becomes it."""
        found = self._read(_INTAKE, dict[str, str])
        if found is None:
            self._write(_INTAKE, {"intake": intake})
        elif found["intake"] != intake:
            raise RouteRefused(
                f"state {self.place.uri}: it belongs to the intake {found['intake']}, expected {intake}"
            )

    def classes(self) -> dict[str, str]:
        """In which band each class is."""
        return self._read(_CLASSES, dict[str, str]) or {}

    def keep_classes(self, classes: dict[str, str]) -> None:
        if classes != self.classes():
            self._write(_CLASSES, classes)

    def query_id(self) -> str:
        """The id that Spark gave the query in the checkpoint; stable over restarts."""
        return str(json.loads(self.place.read(f"{CHECKPOINT}/metadata"))["id"])

    def rules_of(self, batch: int, query: str) -> RouteTable | None:
        """The rules that this batch was begun with; None for a batch that begins now."""
        found = self._read(_BATCH, _Batch)
        return found.table if found is not None and (found.query, found.batch) == (query, batch) else None

    def begin(self, batch: int, query: str, table: RouteTable) -> None:
        """Write down by which rules this batch is routed."""
        self._write(_BATCH, _Batch(query, batch, table))

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self.place.read(name), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as problem:
            raise RouteRefused(f"state {self.place.uri}: {name} is not readable: {problem}") from None

    def _write(self, name: str, value: object) -> None:
        if self._unwritten is None:
            self.place.write(name, msgspec.json.encode(value))
        else:
            self._unwritten[name] = value


class Prepared(NamedTuple):
    """A target queue as it was found or made; `timeout_s` is what it has, `dead_letters` the queue it was given for them."""

    target: Target
    timeout_s: int
    created: bool
    dead_letters: str | None = None


class _Redrive(NamedTuple):
    policy: str  # as the intake has it
    queue: str  # of the dead letters


def prepare_targets(intake: QueueClient, table: RouteTable, *, create: bool) -> list[Prepared]:
    """See that every target is there, or create what is missing; raises RouteRefused."""
    redrive = _redrive_of(intake) if create else None
    missing, found = list[Target](), list[Prepared]()
    for target in table.targets:
        if target.queue == intake.name:
            raise RouteRefused(f"target {target.queue}: expected a queue other than the intake")
        timeout_s = _timeout_of(intake, target.queue)
        if timeout_s is not None:
            found.append(Prepared(target, timeout_s, created=False))
        elif create:
            found.append(_create(intake, target, redrive))
        else:
            missing.append(target)
    if missing:
        names = ", ".join(target.queue for target in missing)
        raise RouteRefused(f"there is no queue {names}: create it, or add --create-queues")
    return found


def _timeout_of(intake: QueueClient, queue: str) -> int | None:
    try:
        url = intake.ask("GetQueueUrl", {"QueueUrl": None, "QueueName": queue})["QueueUrl"]
    except ApiError as error:
        if error.is_missing_queue:
            return None
        raise
    asked = {"QueueUrl": url, "AttributeNames": ["VisibilityTimeout"]}
    return int(intake.ask("GetQueueAttributes", asked)["Attributes"]["VisibilityTimeout"])


def _redrive_of(intake: QueueClient) -> _Redrive | None:
    policy = intake.attributes().get("RedrivePolicy")
    queue = json.loads(policy)["deadLetterTargetArn"].rpartition(":")[2] if policy else intake.name
    # The intake may be its own dead-letter queue. A target's spent messages would then be routed to the target again.
    return None if policy is None or queue == intake.name else _Redrive(policy, queue)


def _create(intake: QueueClient, target: Target, redrive: _Redrive | None) -> Prepared:
    fifo = target.queue.endswith(".fifo")
    attributes = {} if target.timeout_s is None else {"VisibilityTimeout": str(target.timeout_s)}
    if fifo:
        attributes["FifoQueue"] = "true"
    # A FIFO queue's dead letters are a FIFO queue, and a standard one's are not: where the two differ there are none to share.
    if redrive is not None and (redrive.queue.endswith(".fifo") != fifo or redrive.queue == target.queue):
        redrive = None
    if redrive is not None:
        attributes["RedrivePolicy"] = redrive.policy
    try:
        intake.ask("CreateQueue", {"QueueUrl": None, "QueueName": target.queue, "Attributes": attributes})
    except ApiError as error:
        raise RouteRefused(f"queue {target.queue} cannot be created: {error}") from None
    timeout_s = _timeout_of(intake, target.queue) or 0
    return Prepared(target, timeout_s, created=True, dead_letters=redrive.queue if redrive else None)


ROUTED_FROM: Final = "Veil.RoutedFrom"
CLASS: Final = "Veil.Class"
_CHAR_BYTES_MAX: Final = 4
_ID_BYTES: Final = 36


def forwarded(messages: DataFrame, table: RouteTable, *, keeps_order: bool, parts: int) -> DataFrame:
    """Rows for the sink from rows of the source; `keeps_order` for an intake that is a FIFO queue."""
    rows = messages
    if keeps_order:
        # A group's messages in one task, in their order; the sink keeps it from there.
        group = F.col("system_attributes")["MessageGroupId"]
        place = F.col("system_attributes")["SequenceNumber"].cast("decimal(38,0)")
        rows = rows.repartition(parts, group).sortWithinPartitions(place)
    queue = table.queue_column()
    group = F.col("system_attributes")["MessageGroupId"]
    return rows.select(
        "message_id",
        "body",
        _marked(table).alias("attributes"),
        # A FIFO queue wants a group. What came without one was in no order with anything.
        F.coalesce(group, F.when(queue.endswith(".fifo"), F.col("message_id"))).alias("group"),
        # Every message that the intake let in is one of its own, so its id is what tells it from the others.
        F.col("message_id").alias("deduplication_id"),
        F.col("system_attributes")["AWSTraceHeader"].alias("trace_header"),
        queue.alias("queue"),
    )


def _marked(table: RouteTable) -> Column:
    """The attributes with the marks, as far as there is room: a mark must not make a message impossible to send."""
    attributes = F.coalesce(F.col("attributes"), F.map_from_arrays(F.array(), F.array()).cast(ATTRIBUTES))
    size = body_bytes() + F.aggregate(
        F.map_entries(attributes),
        F.lit(0),
        lambda total, each: (
            total
            + F.octet_length(each["key"])
            + F.octet_length(each["value"]["data_type"])
            + F.coalesce(
                F.octet_length(each["value"]["string_value"]),
                F.octet_length(each["value"]["binary_value"]),
                F.lit(0),
            )
        ),
    )
    marked = attributes
    if table.class_by is not None:
        found = class_column(table.class_by, table.type_attributes)
        room = BODY_BYTES_MAX - CHARS_MAX * _CHAR_BYTES_MAX - len(CLASS) - len("String")
        room -= _ID_BYTES + len(ROUTED_FROM) + len("String")
        marked = _with(marked, CLASS, found, found.isNotNull() & (found != "") & (size <= room), spare=2)
    room = BODY_BYTES_MAX - _ID_BYTES - len(ROUTED_FROM) - len("String")
    # One that was routed before keeps its first id: that is what tells doubles of it apart from other messages.
    return _with(
        marked, ROUTED_FROM, F.col("message_id"), attributes[ROUTED_FROM].isNull() & (size <= room), spare=1
    )


def _with(attributes: Column, name: str, text: Column, allowed: Column, *, spare: int) -> Column:
    others = F.map_filter(attributes, lambda key, _: key != name)
    added = F.map_concat(others, F.create_map(F.lit(name), attribute_value("String", text)))
    return F.when(allowed & (F.size(others) <= ATTRIBUTES_MAX - spare), added).otherwise(attributes)


@dataclass(frozen=True)
class Routed:
    """One batch: how many messages went to each queue, and how many that were meant for it no queue took."""

    batch: int
    counts: dict[str, int]
    again: bool  # the repetition of one that was cut short
    refused: dict[str, int] = field(default_factory=dict)  # they are in the error path


@dataclass(frozen=True)
class Router:
    """From one intake, by rules that are asked for before every batch."""

    spark: SparkSession
    intake: QueueAddress
    state: RouterState
    rules: Callable[[], RouteTable]
    tell: Callable[[Routed], None] = lambda _: None
    error_path: str | None = None
    max_messages: int = 10_000
    parts: int = 2

    def start(self, *, once: bool, every_s: float = 1.0) -> StreamingQuery:
        """Begin; `once` ends when all that is there now has been routed."""
        register(self.spark)
        reader = self.spark.readStream.format("veil").options(**self._service(self.intake.queue))
        reader = reader.option("segments", self.state.place.sub(SEGMENTS).uri)
        reader = reader.option("partitions", self.parts).option("maxMessagesPerTrigger", self.max_messages)
        writer = reader.load().writeStream.foreachBatch(self._route)
        writer = writer.option("checkpointLocation", self.state.place.spark_path(CHECKPOINT))
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_s:g} seconds").start()

    def _route(self, messages: DataFrame, batch: int) -> None:
        from pyspark.sql import Observation

        query = self.state.query_id()
        table = self.state.rules_of(batch, query)
        again = table is not None
        if table is None:
            table = self.rules()
            self.state.begin(batch, query, table)
        rows = forwarded(messages, table, keeps_order=self.intake.queue.endswith(".fifo"), parts=self.parts)
        seen = Observation()
        counts = {
            target.queue: F.count(F.when(F.col("queue") == target.queue, 1)) for target in table.targets
        }
        rows = rows.observe(seen, *(count.alias(queue) for queue, count in counts.items()))
        options = {**self._service(None), "queueColumn": "queue", "keyColumn": "message_id"}
        # Named by query and batch: Veil knows the calls of a repetition again.
        options["writeId"] = f"{query}-{batch}"
        if self.error_path is not None:
            options["errorPath"] = self.error_path
        rows.write.format("veil").options(**options).mode("append").save()
        refused = self._refused(options["writeId"])
        went = {queue: int(seen.get[queue]) - refused[queue] for queue in counts}
        self.tell(Routed(batch, went, again, dict(refused)))

    def _refused(self, write_id: str) -> Counter[str]:
        """How many messages of a write are in the error path, by the queue that did not take them."""
        found = Counter[str]()
        if self.error_path is not None:
            place = Storage.at(self.error_path)
            for entry in place.entries(write_id):
                found.update(json.loads(line)["queue"] for line in place.read(entry.name).splitlines())
        return found

    def _service(self, queue: str | None) -> dict[str, str]:
        given = {name: getattr(self.intake, name) for name in ("endpoint", "region", "profile")}
        return {name: value for name, value in (("queue", queue), *given.items()) if value is not None}


# ---- which band suits each class of messages, by what the tables tell of the time that its work took
#
# A class stays where it is until the evidence is clear. It moves to a longer timeout when even the lower end of the
# confidence interval says that more of its work than allowed outlasts the present one; to a shorter one when even the upper
# end says that less of it than allowed would outlast a timeout that is yet a fifth shorter than that band's. Between the two
# lies the hysteresis: no single history asks for both.

QUANTILE_DEFAULT: Final = 0.99
MARGIN: Final = 1.25
_OBSERVATIONS_LEAST: Final = 30
# Where a deadline cuts the work off the curve ends at that deadline, up to the width of a bucket.
_EDGE: Final = 1.05


@dataclass(frozen=True, slots=True)
class BandVerdict:
    """Where the messages of a class go, whether that is new, and why."""

    message_class: str
    band: Band
    moved_from: Band | None
    observed: int
    quantile_s: float | None
    reason: str


def by_class(histories: Mapping[Work, History]) -> dict[str, History]:
    """The histories of each class, whichever queues they come from."""
    return merged(histories, lambda work: work.message_type)


def learn(
    histories: Mapping[str, History],
    bands: Sequence[Band],
    present: Mapping[str, str],
    default: Band,
    quantile: float = QUANTILE_DEFAULT,
) -> list[BandVerdict]:
    """A verdict for each class that was ever seen; `present` says in which band a class is, the default where it does not."""
    by_name = {band.name: band for band in bands}
    classes = sorted({*histories, *present})
    return [
        decide(
            each, histories.get(each, History()), bands, by_name.get(present.get(each, ""), default), quantile
        )
        for each in classes
    ]


def decide(
    message_class: str, history: History, bands: Sequence[Band], here: Band, quantile: float
) -> BandVerdict:
    """Where a class that is in the band `here` should be; `bands` from the shortest."""
    allowed = 1 - quantile
    needed = max(round(1 / allowed), _OBSERVATIONS_LEAST)
    lapses = sort_lapses(history)
    # Work that was cut off at its deadline is evidence too, and for some classes the only one.
    observed = history.completed + round(sum(count for _, count in lapses.at_work))

    def verdict(band: Band, reason: str, at_s: float | None = None) -> BandVerdict:
        return BandVerdict(message_class, band, None if band == here else here, observed, at_s, reason)

    if observed < needed:
        return verdict(here, f"{observed} leases tell of it, {needed} are needed: it stays in {here.name}")
    curve = curve_of(history, lapses)
    at_s = curve.quantile_s(quantile)
    usual = f"{words.chance(quantile)} of the work takes " + (
        "an unknown time" if at_s is None else f"up to {words.length(at_s)}"
    )

    chance, low, _ = curve.at(here.timeout_s)
    if low > allowed and here.timeout_s <= curve.end_s * _EDGE and here != bands[-1]:
        longer = [band for band in bands if band.timeout_s > here.timeout_s]
        # Beyond the end of the curve nothing is known: one step, and then the next look sees further.
        fits = (b for b in longer if b.timeout_s > curve.end_s or curve.at(b.timeout_s)[0] <= allowed)
        band = next(fits, longer[-1])
        return verdict(
            band,
            f"{usual}; {words.chance(chance)} of it (at least {words.chance(low)}) outlasts {words.length(here.timeout_s)}",
            at_s,
        )
    # Leases that lapsed in silence are taken for crashes; where that is not shown, they may have been at work.
    doubt = 0.0 if lapses.proven else lapses.crashed / max(history.leases, 1)
    for band in bands:
        if band.timeout_s >= here.timeout_s:
            break
        high = curve.at(band.timeout_s / MARGIN)[2] + doubt
        if high <= allowed:
            return verdict(
                band,
                f"{usual}; at most {words.chance(high)} of it outlasts {words.length(band.timeout_s / MARGIN)}",
                at_s,
            )
    return verdict(here, f"{usual}: {here.name} is right, or nothing else is clearly better", at_s)


@dataclass
class LearnedRules:
    """The rules that the tables tell of; `table` reads them again when they were last read too long ago."""

    tables: Storage
    state: RouterState
    bands: Sequence[Band]
    default: Band
    queue_of: Callable[[Band], str]
    queues: Sequence[str]  # whose past counts
    owner: tuple[str, str]  # their region and account: others may have queues of the same names
    class_by: str = TYPE
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES
    quantile: float = QUANTILE_DEFAULT
    since: date | None = None
    look_every_s: float = 3600.0
    tell: Callable[[list[BandVerdict]], None] = lambda _: None
    on_problem: Callable[[Exception], None] = lambda _: None
    verdicts: list[BandVerdict] = field(default_factory=list)
    _looked_at_s: float = float("-inf")

    def table(self) -> RouteTable:
        """The rules, learned at most `look_every_s` ago; a router that runs keeps those it has if the tables cannot be read."""
        if time.monotonic() - self._looked_at_s >= self.look_every_s:
            try:
                self._look()
            except (TablesRefused, OSError) as problem:
                if math.isinf(self._looked_at_s):
                    raise
                self.on_problem(problem)
            self._looked_at_s = time.monotonic()
        return self._as_table()

    def _look(self) -> None:
        histories = past(self.tables, since=self.since, queues=self.queues)
        own = {work: each for work, each in histories.items() if (work.region, work.account) == self.owner}
        self.verdicts = learn(by_class(own), self.bands, self.state.classes(), self.default, self.quantile)
        self.state.keep_classes({each.message_class: each.band.name for each in self.verdicts})
        self.tell(self.verdicts)

    def _as_table(self) -> RouteTable:
        rules = []
        for band in self.bands:
            classes = tuple(each.message_class for each in self.verdicts if each.band == band)
            if classes and band != self.default:
                rules.append(Rule(self.queue_of(band), (Match(self.class_by, classes),)))
        return RouteTable(
            tuple(Target(self.queue_of(band), band.timeout_s) for band in self.bands),
            self.queue_of(self.default),
            tuple(rules),
            tuple(self.type_attributes),
            None if self.class_by == TYPE else self.class_by,
        )
