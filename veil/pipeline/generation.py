"""The new files of one run over the journal, and the manifest that would make them the tables."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from veil.journal.place import Place
from veil.pipeline.facts import PART, PART_OF_SEQ, facts_of_events, stored_facts
from veil.pipeline.journal_reading import Found, hours_of, read_events
from veil.pipeline.leases import TASK
from veil.pipeline.levels import DAYS, HOURS, MONTHS, day_of, month_of
from veil.pipeline.lives import TABLE, lives
from veil.pipeline.manifest import Hour, Manifest
from veil.pipeline.queue_hours import SIGN, by_bucket, counted, stored_by_bucket, summed
from veil.pipeline.spread import spread_out
from veil.pipeline.sql_text import named
from veil.pipeline.stored_sums import TABLE_OF_FILE, sums_before, sums_beside
from veil.pipeline.table_store import GENERATION, Written, read_files, read_lives, spark_set, written_files
from veil.pipeline.touched import COPIED_ROWS_MAX, PICKED, Parted, part_hours
from veil.pipeline.touched import TABLES as LIVES

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
        journal: Place,
        tables: Place,
        before: Manifest,
        found: Found,
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


def _known_of(tables: Place, queue_hours: list[str]) -> tuple[int, int]:
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
