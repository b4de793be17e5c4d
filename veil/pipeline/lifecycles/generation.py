"""The new files of one run over the journal, and the manifest that would make them the tables.

Four stages, each a function of the rows that share a key:

    split    a few segments            → their events by slice (a span of order keys: messages that were sent together)
    make     the events of a slice     → the rows of its messages, written; what they add to the sums of their hours
    days     what a day's hours gained → the sums of these hours and of the day, written; what the month gains
    months   what a month gained       → its sums, written

Between the stages Spark moves the rows to where the key's other rows are: a few megabytes of Arrow each, which it neither
unpacks nor sorts. What is written is named by the rows that come out at the end; the driver makes the manifest of them, so
whatever a task that failed or was overtaken has written is nobody's. Where little is new, the same stages run in this process,
which takes less time than Spark does to start.

A slice takes the rows of the messages that its events are of out of the stored hours, tells them as events again, and leaves
the other rows as they are: a file without any of them stays, of one that has some the others are copied. So that few are,
messages that are still in a queue are in files of their own, apart from those that have ended.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from veil.core.clock import Trouble
from veil.core.sequence import COUNTER_BITS
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.columns import (
    Coded,
    Ints,
    are_among,
    distinct,
    packed,
    read_rows,
    unpacked,
    write_rows,
)
from veil.pipeline.lifecycles.journal import MINUTE_MS, NewSegments, minutes_of, read_events
from veil.pipeline.lifecycles.lives import lives, rows_as_events
from veil.pipeline.lifecycles.store import (
    GENERATION,
    READERS_MS,
    TROUBLES_MAX,
    Hour,
    Manifest,
    Replaced,
    spark_set,
)
from veil.pipeline.lifecycles.sums import added_up, sums_of, without_empty
from veil.pipeline.lifecycles.tables import (
    DAY_MS,
    DAYS,
    HOUR_MS,
    HOURS,
    LEASES_STORED,
    MESSAGES_STORED,
    MONTHS,
    QUEUE_HOURS,
    arrow_schema,
    day_of,
    month_of,
)
from veil.pipeline.spark import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnStep = Callable[[str], None]
LIVES: Final = {"leases": LEASES_STORED, "messages": MESSAGES_STORED}
FILES_MAX: Final = 8  # of an hour, in one table, that stay as they are when the hour is touched
BYTES_HERE_MAX: Final = 32 * 2**20  # of new segments that this process works through by itself
_BYTES_A_SPLIT: Final = 32 * 2**20  # of segments: what one task reads at a time
_EVENTS_A_SLICE_MAX: Final = 500_000  # a few hundred megabytes in a task
_EVENTS_A_SLICE_MIN: Final = 100_000
_SLICES: Final = 32  # aimed at in between
_MINUTES: Final = HOUR_MS // MINUTE_MS
_THREADS_MAX: Final = 8
_SEQ: Final = pa.schema({"seq": pa.int64()})
_SEQ_AND_HOW: Final = pa.schema({"seq": pa.int64(), "how": pa.string()})
_KINDS_WITH_ROWS: Final = ("events", "gained", "lost")


class StageRow(NamedTuple):
    """What passes between the stages."""

    key: int
    kind: str
    data: Any  # an Arrow table where the kind is one of _KINDS_WITH_ROWS, otherwise bytes


Stage = Callable[[int, Sequence[StageRow]], Iterable[StageRow]]


class Slice(NamedTuple):
    """The messages with order keys from `first` up to `end`, and what is stored of the hours that they were sent in."""

    first: int
    end: int
    hours: dict[int, Hour]
    is_whole: bool  # the hours are this slice's alone, so that it may leave files of theirs as they are


class WrittenFile(msgspec.Struct, frozen=True):
    """A file of the tables: to which table and part (hour, day or month) it belongs; of an hour's sums, what they say."""

    table: str
    part: int
    name: str
    rows: int = 0
    open: int = 0


@dataclass(frozen=True, kw_only=True)
class GenerationWork:
    """All that a task must know, wherever it runs."""

    journal: str
    tables: str
    folder: str
    newest_ms: int
    time_has_passed: bool  # since the stored rows were judged
    rebuilds_sums: bool  # sums are made from below: see `Generation._is_one_journal`
    slices: list[Slice]
    days: list[int]
    months: list[int]
    stored: dict[tuple[str, int], Sequence[str]] = field(default_factory=dict)  # sums: table and part → files

    def split(self, key: int, rows: Sequence[StageRow]) -> Iterator[StageRow]:
        """Segments in, events by slice out."""
        if key == 0:  # time alone may have ended a lease: a slice has work to do without any event
            yield from (StageRow(number, "begin", b"") for number in range(len(self.slices)))
        journal = Storage.at(self.journal)
        firsts = np.array([each.first for each in self.slices])
        names = (name for row in rows for name in json.loads(row.data))
        for events in (events for name in names for events in read_events(journal, name)):
            if not events.num_rows:
                continue
            numbers = np.searchsorted(firsts, events["seq"].to_numpy(), side="right") - 1
            order = np.argsort(numbers.astype(np.int16 if len(firsts) < 2**15 else np.int64), kind="stable")
            found, starts = np.unique(numbers[order], return_index=True)
            events = events.unify_dictionaries().combine_chunks().take(pa.array(order))
            for number, start, end in zip(found, starts, [*starts[1:], len(order)], strict=True):
                yield StageRow(int(number), "events", events.slice(start, end - start))

    def make(self, key: int, rows: Sequence[StageRow]) -> Iterator[StageRow]:
        """Events of a slice in, its rows written; out come the files' names and what the sums gain."""
        own, tables = self.slices[key], Storage.at(self.tables)
        events = [row.data for row in rows if row.kind == "events"]
        kept: dict[int, dict[str, list[Any]]] = defaultdict(lambda: {name: [] for name in LIVES})
        touched: dict[str, list[Any]] = {name: [] for name in LIVES}
        for part, hour in own.hours.items():
            wanted = self._touched(tables, hour, events)
            for name in LIVES:
                stay, left, taken = self._parted(tables, name, getattr(hour, name), own, wanted)
                touched[name] += taken
                kept[part][name] += left
                for file in stay:
                    yield self._file(WrittenFile(name, part, file))
        before = {
            name: pa.concat_tables(touched[name] or [arrow_schema(ddl).empty_table()])
            for name, ddl in LIVES.items()
        }
        together = pa.concat_tables([*events, rows_as_events(before["leases"], before["messages"])])
        if together.num_rows:
            now = dict(zip(LIVES, lives(together, self.newest_ms), strict=True))
            for kind, found in (("gained", now), ("lost", before)):
                for day, sums in _by_part(sums_of(found["leases"], found["messages"]), DAY_MS):
                    yield StageRow(self.days.index(day), kind, sums)
            for name in LIVES:
                for part, found in _by_part(now[name], HOUR_MS):
                    kept[part][name].append(found)
        for part, pieces in kept.items():
            for name, rows in _open_apart(pieces):
                yield self._file(self._write(tables, name, part, rows))

    def _file(self, written: WrittenFile) -> StageRow:
        return StageRow(self.days.index(day_of(written.part)), "file", _encode(written))

    def _touched(self, tables: Storage, hour: Hour, events: Sequence[pa.Table]) -> Ints | None:
        """The order keys of the messages that are to be made anew; None for all."""
        if self.rebuilds_sums:
            return None
        found = [np.empty(0, np.int64), *(each["seq"].to_numpy() for each in events)]
        if self.time_has_passed and hour.open:
            for file in hour.leases:
                known = read_rows(tables, file, _SEQ_AND_HOW)
                found.append(known.filter(pc.equal(known["how"], "open"))["seq"].to_numpy())
        return distinct(np.concatenate(found))

    def _parted(
        self, tables: Storage, name: str, files: Sequence[str], own: Slice, wanted: Ints | None
    ) -> tuple[list[str], list[Any], list[Any]]:
        """The files that stay, and of the others the rows to keep and the touched ones, as far as they are this slice's."""
        seqs = {file: read_rows(tables, file, _SEQ)["seq"].to_numpy() for file in files}
        touched = {
            file: np.ones(len(keys), bool) if wanted is None else are_among(keys, wanted)
            for file, keys in seqs.items()
        }
        untouched = [file for file in files if own.is_whole and not touched[file].any()]
        # The largest: what the runs before this one have added, little by little, is put together.
        stay = sorted(untouched, key=lambda file: len(seqs[file]), reverse=True)[:FILES_MAX]
        left, taken = [], []
        for file in files:
            if file in stay:
                continue
            is_own = (seqs[file] >= own.first) & (seqs[file] < own.end)
            rows = read_rows(tables, file, arrow_schema(LIVES[name]))
            left.append(rows.filter(pa.array(is_own & ~touched[file])))
            taken.append(rows.filter(pa.array(is_own & touched[file])))
        return stay, left, taken

    def sum_days(self, key: int, rows: Sequence[StageRow]) -> Iterator[StageRow]:
        """What the hours of a day gained and lost in; their sums and the day's written."""
        day, tables = self.days[key], Storage.at(self.tables)
        yield from (row._replace(key=0) for row in rows if row.kind == "file")
        # Sums that are made anew have not counted what the stored rows were.
        signs = {"gained": 1} if self.rebuilds_sums else {"gained": 1, "lost": -1}
        changes = [(signs[row.kind], row.data) for row in rows if row.kind in signs]
        if not changes:
            return
        gained = added_up(changes)
        for part, found in _by_part(self._with_stored(HOURS, _parts(gained, HOUR_MS), gained), HOUR_MS):
            yield StageRow(0, "file", _encode(self._write(tables, HOURS, part, found)))
        of_day = added_up([(1, gained)], "day")
        whole = self._with_stored(DAYS, [day], of_day, "day")
        yield StageRow(0, "file", _encode(self._write(tables, DAYS, day, whole)))
        of_month = whole if self.rebuilds_sums else of_day
        yield StageRow(self.months.index(month_of(day)), "gained", of_month)

    def sum_months(self, key: int, rows: Sequence[StageRow]) -> Iterator[StageRow]:
        """What the days of a month gained in; its sums written."""
        yield from (row for row in rows if row.kind == "file")
        days = [(1, row.data) for row in rows if row.kind == "gained"]
        if days:
            month = self.months[key]
            gained = added_up(days, "month")
            whole = self._with_stored(MONTHS, [month], gained, "month")
            yield StageRow(0, "file", _encode(self._write(Storage.at(self.tables), MONTHS, month, whole)))

    def _with_stored(self, level: str, parts: Iterable[int], gained: Any, by: str = "hour") -> Any:
        """The sums that are stored and what they gain, added up already; a queue or type that nothing is left of has no row."""
        tables = Storage.at(self.tables)
        files = [file for part in parts for file in self.stored.get((level, part), ())]
        known = [(1, read_rows(tables, file, arrow_schema(QUEUE_HOURS))) for file in files]
        return without_empty(added_up([*known, (1, gained)], by) if known else gained)

    def _write(self, tables: Storage, table: str, part: int, rows: Any) -> WrittenFile:
        name = f"{self.folder}/{table}-{part}-{secrets.token_hex(8)}.parquet"
        write_rows(tables, name, rows)
        if table != HOURS:
            return WrittenFile(table, part, name, rows.num_rows)
        return WrittenFile(table, part, name, *_known_of(rows))


class Generation:
    """One run over new segments: the work, where it is done, and the manifest that comes of it."""

    def __init__(
        self,
        # For so many bytes of segments; None: this process does it.
        session: Callable[[int], SparkSession | None],
        journal: Storage,
        tables: Storage,
        before: Manifest,
        found: NewSegments,
        on_step: OnStep,
    ) -> None:
        self._session, self._journal, self._tables = session, journal, tables
        self._before, self._found, self._on_step = before, found, on_step
        self._folder = f"{GENERATION}{before.generation + 1:08d}-{secrets.token_hex(4)}"
        self.events = 0
        self.touched: list[int] = []
        self._troubles = set(before.troubles)

    def made(self) -> Manifest:
        """Write the new files and say what the tables would then be."""
        before = self._before
        reads = [
            StageRow(key, "segments", json.dumps(names).encode())
            for key, names in enumerate(self._portions())
        ]
        minutes: dict[int, int] = defaultdict(int)
        newest_ms = before.newest_ms
        for row in self._run([(_minutes(self._journal.uri), len(reads))], reads):
            counts, newest, troubles = json.loads(row.data)
            self._troubles.update(Trouble(*each) for each in troubles)
            newest_ms = max(filter(None, (newest, newest_ms)), default=None)
            for minute, count in counts:
                minutes[minute] += count
        self.events = sum(minutes.values())
        time_has_passed = newest_ms != before.newest_ms
        touched = {minute // _MINUTES for minute in minutes}
        if time_has_passed:
            touched.update(part for part, hour in before.hours.items() if hour.open)
        self.touched = sorted(touched)
        self._on_step("looked through")
        if not touched or newest_ms is None:
            return self._manifest([], newest_ms)
        work = self._work(minutes, newest_ms, time_has_passed=time_has_passed)
        stages = [
            (work.split, len(reads)), (work.make, len(work.slices)), (work.sum_days, len(work.days)),
            (work.sum_months, len(work.months)),
        ]  # fmt: skip
        written = [msgspec.json.decode(row.data, type=WrittenFile) for row in self._run(stages, reads)]
        self._on_step("tables written")
        self._remove_unnamed(written)
        return self._manifest(written, newest_ms)

    def _portions(self) -> Iterator[list[str]]:
        """The names of the segments, a task's reading each."""
        names: list[str] = []
        size = 0
        for segment in self._found.segments:
            if names and size + segment.size > _BYTES_A_SPLIT:
                yield names
                names, size = [], 0
            names.append(segment.name)
            size += segment.size
        yield names

    def _run(self, stages: Sequence[tuple[Stage, int]], rows: Sequence[StageRow]) -> list[StageRow]:
        spark = self._session(sum(each.size for each in self._found.segments))
        return run_here(stages, rows) if spark is None else run_on_spark(spark, stages, rows)

    def _work(self, minutes: Mapping[int, int], newest_ms: int, *, time_has_passed: bool) -> GenerationWork:
        before, touched = self._before, set(self.touched)
        stored_hours = {part: before.hours[part] for part in self.touched if part in before.hours}
        days = sorted({day_of(part) for part in touched})
        months = sorted({month_of(day) for day in days})
        rebuilds_sums = not self._is_one_journal()
        stored: dict[tuple[str, int], Sequence[str]] = {}
        if rebuilds_sums:  # what else the days and months consist of
            for day in days:
                beside = [part for part in before.hours if day_of(part) == day and part not in touched]
                stored[DAYS, day] = [file for part in beside for file in before.hours[part].queue_hours]
            for month in months:
                beside = [day for day in before.days if month_of(day) == month and day not in days]
                stored[MONTHS, month] = [file for day in beside for file in before.days[day]]
        else:
            stored |= {(HOURS, part): hour.queue_hours for part, hour in stored_hours.items()}
            stored |= {(DAYS, day): before.days.get(day, ()) for day in days}
            stored |= {(MONTHS, month): before.months.get(month, ()) for month in months}
        return GenerationWork(
            journal=self._journal.uri,
            tables=self._tables.uri,
            folder=self._folder,
            newest_ms=newest_ms,
            time_has_passed=time_has_passed,
            rebuilds_sums=rebuilds_sums,
            slices=slices_of(self.touched, minutes, stored_hours),
            days=days,
            months=months,
            stored=stored,
        )

    def _is_one_journal(self) -> bool:
        """Whether all events, old and new, are of one journal, so that no lease was received twice. A store that was restored
        from a backup may give out a delivery number again; what such a lease began with is not known before all is read."""
        return len(self._found.progress_made()) <= 1

    def _remove_unnamed(self, written: Iterable[WrittenFile]) -> None:
        """Take away what tasks that failed or were overtaken have left."""
        named = {each.name for each in written}
        for entry in self._tables.entries(self._folder, recursive=True):
            if not entry.is_folder and entry.name not in named:
                self._tables.remove(entry.name)

    def _manifest(self, written: list[WrittenFile], newest_ms: int | None) -> Manifest:
        before = self._before
        files: dict[tuple[str, int], list[str]] = defaultdict(list)
        for each in written:
            if each.table in LIVES or each.rows:
                files[each.table, each.part].append(each.name)
        known = {each.part: each for each in written if each.table == HOURS}
        hours, days, months = dict(before.hours), dict(before.days), dict(before.months)
        for part in self.touched:
            hours[part] = Hour(
                leases=tuple(files["leases", part]),
                messages=tuple(files["messages", part]),
                queue_hours=tuple(files[HOURS, part]),
                rows=known[part].rows,
                open=known[part].open,
            )
        for day in {day_of(part) for part in self.touched}:
            days[day] = files[DAYS, day]
            months[month_of(day)] = files[MONTHS, month_of(day)]
        after = msgspec.structs.replace(
            before,
            generation=before.generation + 1,
            newest_ms=newest_ms,
            progress=self._found.progress_made(),
            hours=hours,
            days=days,
            months=months,
            troubles=sorted(self._troubles)[-TROUBLES_MAX:],
        )
        now_ms, still = newest_ms or 0, set(after.files())
        kept = [each for each in before.replaced if now_ms < each.newest_ms + READERS_MS]
        if replaced := sorted(file for file in before.files() if file not in still):
            kept.append(Replaced(now_ms, replaced))
        return msgspec.structs.replace(after, replaced=kept)


def _minutes(journal: str) -> Stage:
    """The first look at new segments: how many events there are of each minute of sending."""

    def count(key: int, rows: Sequence[StageRow]) -> Iterator[StageRow]:
        place = Storage.at(journal)
        for name in (name for row in rows for name in json.loads(row.data)):
            counts, newest_ms, troubles = minutes_of(place, name)
            yield StageRow(0, "minutes", json.dumps([list(counts.items()), newest_ms, troubles]).encode())

    return count


def slices_of(touched: Sequence[int], minutes: Mapping[int, int], stored: Mapping[int, Hour]) -> list[Slice]:
    """The slices for so many new events in each minute, besides what is stored of the hours: small hours share one, large
    ones are cut between minutes. An hour of which more is stored than is new stays in one: most of its files can then too."""
    rows: dict[int, int] = {}
    for part in touched:
        hour = stored.get(part)
        for minute in range(part * _MINUTES, (part + 1) * _MINUTES):
            rows[minute] = minutes.get(minute, 0) + (0 if hour is None else hour.rows // _MINUTES)
    target = min(_EVENTS_A_SLICE_MAX, max(_EVENTS_A_SLICE_MIN, sum(rows.values()) // _SLICES))
    spans: list[list[int]] = []  # minutes
    filled = 0
    for part in touched:
        own = range(part * _MINUTES, (part + 1) * _MINUTES)
        total, known = sum(rows[minute] for minute in own), stored[part].rows if part in stored else 0
        limit = _EVENTS_A_SLICE_MAX if total < 2 * known else target
        if spans and filled + total <= target:
            spans[-1] += own
            filled += total
            continue
        spans.append([])
        filled = 0
        for minute in own:
            if filled and filled + rows[minute] > limit:
                spans.append([])
                filled = 0
            spans[-1].append(minute)
            filled += rows[minute]
    sharing = Counter(part for span in spans for part in {minute // _MINUTES for minute in span})
    found = []
    for span in spans:
        parts = sorted({minute // _MINUTES for minute in span})
        found.append(
            Slice(
                (span[0] * MINUTE_MS) << COUNTER_BITS,
                ((span[-1] + 1) * MINUTE_MS) << COUNTER_BITS,
                {part: stored[part] for part in parts if part in stored},
                all(sharing[part] == 1 for part in parts),
            )
        )
    return found


# ---- where the stages run

_SCHEMA: Final = "key int, kind string, data binary"
_ARROW: Final = pa.schema({"key": pa.int32(), "kind": pa.string(), "data": pa.binary()})


def run_here(stages: Sequence[tuple[Stage, int]], rows: Iterable[StageRow]) -> list[StageRow]:
    """The stages one after the other in this process."""
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _THREADS_MAX)) as pool:
        for stage, _ in stages:
            # The most work first, or one thread would wait for the other in the end.
            work = sorted(_by_key(rows).items(), key=_amount, reverse=True)
            done = pool.map(lambda own, stage=stage: list(stage(*own)), work)
            rows = [row for each in done for row in each]
    return list(rows)


def _amount(own: tuple[int, list[StageRow]]) -> int:
    return sum(len(row.data) for row in own[1])


def _by_key(rows: Iterable[StageRow]) -> dict[int, list[StageRow]]:
    together: dict[int, list[StageRow]] = defaultdict(list)
    for row in rows:
        together[row.key].append(row)
    return together


def run_on_spark(
    spark: SparkSession, stages: Sequence[tuple[Stage, int]], rows: Iterable[StageRow]
) -> list[StageRow]:
    """The stages as one job of Spark's. The tasks of the first have its rows with them; before each of the others, the rows of a
    key come together in a task of their own."""
    from veil.pipeline.spark.workers import refusing_workers_without_veil, this_python

    given = _by_key(rows)

    def first_rows(numbers: _Batches) -> Iterator[StageRow]:
        return (row for batch in numbers for key in batch.column(0).to_pylist() for row in given[key])

    (first, width), *others = stages
    # A row is megabytes: a batch of the usual ten thousand would be more than there is memory.
    with (
        spark_set(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "4"}),
        this_python(spark),
        refusing_workers_without_veil(),
    ):
        found: DataFrame = spark.range(0, width, 1, width).mapInArrow(_in_task(first, first_rows), _SCHEMA)
        for stage, width in others:
            found = found.repartitionById(width, found["key"]).mapInArrow(_in_task(stage, _rows_in), _SCHEMA)
        return [StageRow(*row) for row in found.collect()]


_Batches = Iterator[pa.RecordBatch]


def _in_task(
    stage: Stage, rows_in: Callable[[_Batches], Iterable[StageRow]]
) -> Callable[[_Batches], _Batches]:
    def run(batches: _Batches) -> _Batches:
        for key, own in _by_key(rows_in(batches)).items():
            for made in stage(key, own):
                data = packed(made.data) if made.kind in _KINDS_WITH_ROWS else made.data
                yield pa.RecordBatch.from_pylist([made._replace(data=data)._asdict()], _ARROW)
        freeze_imports()

    return run


def _rows_in(batches: _Batches) -> Iterator[StageRow]:
    for row in (StageRow(**row) for batch in batches for row in batch.to_pylist()):
        yield row._replace(data=unpacked(row.data)) if row.kind in _KINDS_WITH_ROWS else row


# ---- parts of tables

_encode = msgspec.json.encode


def _by_part(rows: pa.Table, length_ms: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each part by their `hour`, in the order of which they come: rows by message, and sums."""
    parts, starts, counts = np.unique(_part_numbers(rows, length_ms), return_index=True, return_counts=True)
    for part, start, count in zip(parts.tolist(), starts, counts, strict=True):
        yield part, rows.slice(start, count)


def _open_apart(pieces: Mapping[str, Sequence[pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of an hour by file: those of messages that are in a queue still by themselves, since later runs will hear of
    these, and can leave the large file of the others as it is."""
    rows = {
        name: pa.concat_tables(pieces[name] or [arrow_schema(ddl).empty_table()])
        for name, ddl in LIVES.items()
    }
    outcome = Coded.of(rows["messages"]["outcome"])
    there = distinct(rows["messages"]["seq"].to_numpy()[outcome.is_in("open", "dead_lettered")])
    for name, found in rows.items():
        is_there = are_among(found["seq"].to_numpy(), there)
        for which in (is_there, ~is_there):
            if which.any():
                yield name, found if which.all() else found.filter(pa.array(which))


def _parts(rows: pa.Table, length_ms: int) -> list[int]:
    found: list[int] = distinct(_part_numbers(rows, length_ms)).tolist()
    return found


def _part_numbers(rows: pa.Table, length_ms: int) -> Ints:
    found: Ints = rows["hour"].cast(pa.int64()).to_numpy() // 1000 // length_ms
    return found


def _known_of(sums: pa.Table) -> tuple[int, int]:
    """How many rows an hour has in `leases` and `messages`, and how many leases are open, by its sums."""
    counts = [name for name in sums.column_names if name == "leases" or name.startswith("messages_")]
    return sum(pc.sum(sums[name]).as_py() or 0 for name in counts), pc.sum(sums["open"]).as_py() or 0
