"""The new files of one run over the journal, and the manifest that would make them the tables.

New events are of few messages. To send whole hours through Spark for their sake would cost as much as making those hours
did; telling the touched rows from the others is a look at two columns, and needs no Spark. A file that has none of them
stays as it is, of one that has the others are copied, and the touched rows go into a file of their own, which Spark merges
with the new events and counts off the sums.

Messages are spread over tasks by how many rows each hour has: small hours share a task, large ones have several, and an hour
becomes as few files as its size allows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from veil.journal.storage import Storage
from veil.pipeline.lifecycles.facts import PART, PART_OF_SEQ, facts_of_events, part_of_seq_range, stored_facts
from veil.pipeline.lifecycles.journal import NewSegments, hours_of, read_events
from veil.pipeline.lifecycles.lives import TABLE, TASK, lives, lives_schema
from veil.pipeline.lifecycles.queue_hours import (
    SIGN,
    TABLE_OF_FILE,
    by_bucket,
    counted,
    stored_by_bucket,
    summed,
    sums_before,
    sums_beside,
)
from veil.pipeline.lifecycles.scales import DAYS, HOURS, MONTHS, day_of, month_of
from veil.pipeline.lifecycles.store import (
    GENERATION,
    Hour,
    Manifest,
    Written,
    read_files,
    read_lives,
    spark_set,
    written_files,
)
from veil.pipeline.sql import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SETTINGS: Final = {
    # Rows of two tables and several hours alternate in a task: sorting them by file would cost more than open files.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Structs pass whole through the sorts and windows; taken apart below them, each member would be copied each time.
    "spark.sql.optimizer.expression.nestedPruning.enabled": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "2000",
}
OnStep = Callable[[str], None]


class Generation:
    """One run over new segments: three steps that write files, and the manifest that would make them the tables."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Storage,
        tables: Storage,
        before: Manifest,
        found: NewSegments,
        on_step: OnStep,
    ) -> None:
        self._spark, self._journal, self._tables = spark, journal, tables
        self._before, self._found, self._on_step = before, found, on_step
        self._folder = f"{GENERATION}{before.generation + 1:08d}-{secrets.token_hex(4)}"
        self._parted: Parted | None = None  # None: hours are written anew
        self.events = 0
        self.touched: list[int] = []

    def made(self) -> Manifest:
        """Write the new files and say what the tables would then be."""
        before = self._before
        hours = hours_of(self._spark, self._journal, self._found.segments)
        self.events = sum(hours.events.values())
        newest_ms = max(filter(None, (hours.newest_ms, before.newest_ms)), default=None)
        time_has_passed = newest_ms != before.newest_ms
        touched = set(hours.events)
        if time_has_passed:
            touched.update(part for part, hour in before.hours.items() if hour.open)
        self.touched = sorted(touched)
        self._on_step("looked through")
        written: list[Written] = []
        if touched and newest_ms is not None:
            stored = {part: before.hours[part] for part in self.touched if part in before.hours}
            known = {part: hour.rows for part, hour in stored.items()}
            taken = [file for hour in stored.values() for file in (*hour.leases, *hour.messages)]
            if hours.seqs is not None and sum(known.values()) <= COPIED_ROWS_MAX and self._is_one_journal():
                self._parted = part_hours(
                    self._tables, self._folder, stored, hours.seqs, time_has_passed=time_has_passed
                )
                taken, known = self._parted.picked, self._parted.rows
            rows = {part: hours.events.get(part, 0) + known.get(part, 0) for part in self.touched}
            with spark_set(self._spark, _SETTINGS):
                written += self._write("lives", self._lives(rows, taken, newest_ms))
                self._on_step("leases and messages written")
                written += self._write("sums", self._sums(written))
                self._on_step("sums written")
            self._tables.remove_folder(f"{self._folder}/{PICKED}")
        return self._manifest(written, newest_ms)

    def _is_one_journal(self) -> bool:
        """Whether all events, old and new, are of one journal, so that no lease was received twice. A store that was restored
        from a backup may give out a delivery number again; what such a lease began with is not known before all is read."""
        return len(self._found.progress_made()) <= 1

    def _lives(self, rows: dict[int, int], taken: list[str], newest_ms: int) -> DataFrame:
        spark, tables = self._spark, self._tables
        facts = facts_of_events(read_events(spark, self._journal, self._found.segments))
        if taken:
            facts = facts.unionAll(stored_facts(read_lives(spark, tables, taken)))
        spread = spread_out(rows)
        facts = facts.selectExpr("*", *named({PART: PART_OF_SEQ}))
        facts = facts.selectExpr("*", *named({TASK: spread.sql(PART, "seq")}))
        # The only shuffle: everything after it finds the rows of a message together.
        spread_facts = facts.repartitionById(spread.tasks, TASK)
        return lives(spread_facts, f"timestamp_millis({newest_ms}L)")

    def _sums(self, written: list[Written]) -> DataFrame:
        """The sums of the touched hours, days and months: stored ones, with the touched rows as they were taken off and as
        they are added; or, where hours are written anew, of these and of what stands beside them."""
        files = [each.name for each in written]
        if self._parted is None:
            stored = sums_beside(self._before, self.touched)
        else:
            stored = sums_before(self._before, self.touched)
            files += self._parted.picked
        was = f"contains(_metadata.file_path, '{self._folder}/{PICKED}/')"
        now = read_lives(self._spark, self._tables, files).selectExpr(
            "*", *named({PART: PART_OF_SEQ, SIGN: f"if({was}, -1, 1)"})
        )
        rows = by_bucket(counted(now))
        if stored.files:
            known = read_files(self._spark, self._tables, HOURS, stored.files)
            known = known.selectExpr("*", *named({TABLE: TABLE_OF_FILE}))
            rows = rows.unionAll(stored_by_bucket(known, stored.counts_for))
        return summed(rows)

    def _write(self, name: str, rows: DataFrame) -> list[Written]:
        folder = f"{self._folder}/{name}"
        writer = rows.write.partitionBy(TABLE, PART).mode("error").options(**_encodings(rows.schema))
        writer.parquet(self._tables.spark_path(folder))
        return written_files(self._tables, folder)

    def _manifest(self, written: list[Written], newest_ms: int | None) -> Manifest:
        before = self._before
        files: dict[tuple[str, int], list[str]] = {}
        for each in written:
            files.setdefault((each.table, each.part), []).append(each.name)
        hours, days, months = dict(before.hours), dict(before.days), dict(before.months)
        kept = {} if self._parted is None else self._parted.kept
        for part in self.touched:
            sums = files.get((HOURS, part), [])
            rows, is_open = _known_of(self._tables, sums)
            lives = {
                name: (*kept.get(part, {}).get(name, ()), *files.get((name, part), ())) for name in LIVES
            }
            hours[part] = Hour(**lives, queue_hours=tuple(sums), rows=rows, open=is_open)
        for day in {day_of(part) for part in self.touched}:
            days[day] = files.get((DAYS, day), [])
            months[month_of(day)] = files.get((MONTHS, month_of(day)), [])
        after = msgspec.structs.replace(
            before,
            generation=before.generation + 1,
            newest_ms=newest_ms,
            progress=self._found.progress_made(),
            hours=hours,
            days=days,
            months=months,
        )
        still = set(after.files())
        return msgspec.structs.replace(
            after, retired=sorted(file for file in before.files() if file not in still)
        )


def _encodings(schema: StructType) -> dict[str, str]:
    """Instants, lengths and keys hardly repeat: differences are shorter than a dictionary, and quicker to write."""
    distinct = [
        field.name
        for field in schema
        if field.name == "message_id" or field.dataType.simpleString() in ("timestamp", "bigint")
    ]
    return {
        "parquet.writer.version": "v2",
        **{f"parquet.enable.dictionary#{name}": "false" for name in distinct},
    }


def _known_of(tables: Storage, queue_hours: list[str]) -> tuple[int, int]:
    """How many rows an hour has in `leases` and `messages`, and how many leases are open, by its sums."""
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    counts = ["leases", "messages_deleted", "messages_expired", "messages_purged", "messages_redriven",
              "messages_dead", "messages_open"]  # fmt: skip
    rows = is_open = 0
    for file in queue_hours:
        with tables.open_input(file) as opened:
            found: Any = pq.ParquetFile(opened).read(columns=[*counts, "open"])
        rows += sum(pc.sum(found[name]).as_py() or 0 for name in counts)
        is_open += pc.sum(found["open"]).as_py() or 0
    return rows, is_open


PICKED: Final = "picked"  # the folder of the rows that were taken out; nobody names it once the run is over
FILES_MAX: Final = 8  # of an hour, in one table: more are put together when the hour is touched
COPIED_ROWS_MAX: Final = 5_000_000  # looked at by this process; with more, Spark's many are quicker
LIVES: Final = ("leases", "messages")


class Parted(NamedTuple):
    """The stored hours in two: files that stay, by hour and table, and the file of the touched rows, if there are any."""

    kept: dict[int, dict[str, list[str]]]
    picked: list[str]
    rows: dict[int, int]  # that were taken out of each hour


def part_hours(
    tables: Storage, folder: str, hours: Mapping[int, Hour], seqs: Any, *, time_has_passed: bool
) -> Parted:
    """Part the hours by the messages of these order keys (a sorted array), and by those with open leases if time has passed
    since they were judged. What is written goes to the folder."""
    import pyarrow as pa

    kept: dict[int, dict[str, list[str]]] = {}
    rows: dict[int, int] = {}
    picked: list[Any] = []
    for part, hour in hours.items():
        wanted = _touched(tables, hour, part, seqs, time_has_passed=time_has_passed)
        kept[part] = {}
        for name in LIVES:
            stay, taken = _part_files(
                tables, f"{folder}/kept/table={name}/part={part}", getattr(hour, name), wanted
            )
            kept[part][name] = stay
            picked += taken
            rows[part] = rows.get(part, 0) + sum(each.num_rows for each in taken)
    if not picked:
        return Parted(kept, [], rows)
    file = f"{folder}/{PICKED}/rows.parquet"
    _write(tables, file, pa.concat_tables(picked))
    return Parted(kept, [file], rows)


def _touched(tables: Storage, hour: Hour, part: int, seqs: Any, *, time_has_passed: bool) -> Any:
    """The order keys of the touched messages of one hour."""
    import pyarrow as pa
    from pyarrow import compute as pc

    low, high = (seqs.searchsorted(each) for each in part_of_seq_range(part))
    found = [pa.chunked_array([pa.array(seqs[low:high], pa.int64())])]
    if time_has_passed and hour.open:
        for file in hour.leases:
            known = _read(tables, file, ["seq", "how"])
            found.append(known["seq"].filter(pc.equal(known["how"], "open")))
    return pa.chunked_array([chunk for each in found for chunk in each.chunks], pa.int64()).combine_chunks()


def _part_files(
    tables: Storage, folder: str, files: Iterable[str], wanted: Any
) -> tuple[list[str], list[Any]]:
    """The files that stay (old ones and at most one new), and the touched rows of the others."""
    import pyarrow as pa
    from pyarrow import compute as pc

    files = tuple(files)
    stay, left, taken = [], [], []
    for file in files:
        is_touched = pc.is_in(_read(tables, file, ["seq"])["seq"], value_set=wanted)
        if len(files) <= FILES_MAX and not pc.any(is_touched).as_py():
            stay.append(file)
            continue
        rows = _read(tables, file, lives_schema().fieldNames())
        taken.append(rows.filter(is_touched))
        left.append(rows.filter(pc.invert(is_touched)))
    together = pa.concat_tables(left) if left else None
    if together is not None and together.num_rows:
        stay.append(f"{folder}/kept.parquet")
        _write(tables, stay[-1], together)
    return stay, [each for each in taken if each.num_rows]


def _read(tables: Storage, file: str, columns: list[str]) -> Any:
    from pyarrow import parquet as pq

    with tables.open_input(file) as opened:
        return pq.ParquetFile(opened).read(columns=columns).replace_schema_metadata(None)


def _write(tables: Storage, file: str, rows: Any) -> None:
    from pyarrow import parquet as pq

    distinct = distinct_columns()
    with tables.writing(file) as out:
        pq.write_table(
            rows,
            out,
            compression="zstd",
            data_page_version="2.0",
            store_schema=False,
            use_dictionary=[name for name in rows.schema.names if name not in distinct],
            column_encoding={
                name: "DELTA_BYTE_ARRAY" if type_ == "string" else "DELTA_BINARY_PACKED"
                for name, type_ in distinct.items()
            },
        )


def distinct_columns() -> dict[str, str]:
    """Columns of the lives whose values hardly repeat, with their types: no dictionary pays for them."""
    types = {field.name: field.dataType.simpleString() for field in lives_schema()}
    return {
        name: type_
        for name, type_ in types.items()
        if name == "message_id" or type_ in ("timestamp", "bigint")
    }


ROWS_A_TASK_MAX: Final = 600_000  # sorted in memory by a task that has a gigabyte
ROWS_A_TASK_MIN: Final = 200_000
TASKS: Final = 32  # aimed at in between


class Slice(NamedTuple):
    """Hours from `first` up to the next slice's, in `tasks` tasks from number `base` on."""

    first: int
    base: int
    tasks: int


class Spread(NamedTuple):
    """Slices by hour; the first begins with whatever comes first."""

    slices: tuple[Slice, ...]

    @property
    def tasks(self) -> int:
        """How many there are in all."""
        return self.slices[-1].base + self.slices[-1].tasks

    def sql(self, part: str, seq: str) -> str:
        """The number of a row's task: a tree of comparisons, since a list of thousands would be walked for each row."""
        if self.tasks == 1:
            # Not a constant, which Spark would fold away together with its knowledge of what is sorted by it.
            return f"pmod(hash({seq}), 1)"
        return _tree(self.slices, part, seq)


def spread_out(rows: Mapping[int, int]) -> Spread:
    """The spread for so many rows in each part (hour)."""
    target = min(ROWS_A_TASK_MAX, max(ROWS_A_TASK_MIN, sum(rows.values()) // TASKS))
    slices: list[Slice] = []
    base = filled = 0
    for part in sorted(rows):
        count = rows[part]
        fits = slices and slices[-1].tasks == 1 and filled + count <= target
        if fits:
            filled += count
            continue
        tasks = max(1, -(-count // target))
        slices.append(Slice(part, base, tasks))
        base, filled = base + tasks, count
    return Spread(tuple(slices) or (Slice(0, 0, 1),))


def _tree(slices: tuple[Slice, ...], part: str, seq: str) -> str:
    if len(slices) == 1:
        (only,) = slices
        return f"({only.base} + pmod(hash({seq}), {only.tasks}))" if only.tasks > 1 else str(only.base)
    middle = len(slices) // 2
    left, right = _tree(slices[:middle], part, seq), _tree(slices[middle:], part, seq)
    return f"(case when {part} < {slices[middle].first} then {left} else {right} end)"
