"""Which segments of the journal are new, which of them can be read, and their events as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from veil.journal.schema import COLUMNS
from veil.journal.segments import Segment, check_segment, list_segments
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.facts import HOUR_MS, PART, PART_OF_SEQ, SEQ_BITS
from veil.pipeline.lifecycles.store import Broken, Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: Final = {"text": "string", "int": "int", "long": "bigint", "instant": "timestamp"}
EVENTS: Final = ", ".join(f"{each.name} {_TYPES[each.kind]}" for each in COLUMNS)
_OPENED_AT_ONCE: Final = 16
# What the driver looks through itself: starting a job takes longer than that.
BYTES_ON_DRIVER_MAX: Final = 32 * 2**20


class NewSegments(NamedTuple):
    """New segments, those that were set aside, and the progress that a run over the new ones makes."""

    segments: tuple[Segment, ...]
    broken: tuple[Broken, ...]
    progress: dict[str, Intervals]

    def without(self, broken: Iterable[Broken]) -> NewSegments:
        """The same with more set aside."""
        broken = tuple(broken)
        names = {each.name for each in broken}
        kept = tuple(each for each in self.segments if each.name not in names)
        return self._replace(segments=kept, broken=tuple(sorted((*self.broken, *broken), key=_name)))

    def progress_made(self) -> dict[str, list[tuple[int, int]]]:
        """The progress with the segments in it."""
        made = dict(self.progress)
        for each in self.segments:
            made[each.journal_id] = added(made.get(each.journal_id, []), each.first, each.last)
        return made


class Hours(NamedTuple):
    """How many new events there are of each hour of sending, the newest instant among them, and which messages they are
    of: order keys in rising order, where the driver has looked itself."""

    events: dict[int, int]
    newest_ms: int | None
    seqs: Any = None


def find_segments(journal: Storage, manifest: Manifest) -> NewSegments:
    """Look for segments that are not in the tables yet; those that cannot be read are set aside, each with the reason."""
    progress = {journal_id: list(rows) for journal_id, rows in manifest.progress.items()}
    taken = dict(progress)
    new: list[Segment] = []
    broken: list[Broken] = []
    for each in list_segments(journal):
        rows = taken.get(each.journal_id, [])
        if covers(rows, each.first, each.last):
            continue
        if touches(rows, each.first, each.last):
            broken.append(
                Broken(each.name, "some of its outbox rows, but not all, are in the tables already")
            )
            continue
        taken[each.journal_id] = added(rows, each.first, each.last)
        new.append(each)
    # One that failed before is read to the end before Spark gets to see it.
    suspects = {each.name for each in manifest.broken}
    found = NewSegments(tuple(new), tuple(broken), progress)
    return found.without(broken_ones(journal, new, suspects))


def new_bytes(journal: Storage, manifest: Manifest) -> int:
    """The size of the segments that are not in the tables yet, by their names."""
    return sum(
        each.size
        for each in list_segments(journal)
        if not covers(manifest.progress.get(each.journal_id, []), each.first, each.last)
    )


def broken_ones(
    journal: Storage, segments: Sequence[Segment], thorough: set[str] | None = None
) -> list[Broken]:
    """Those that cannot be read; `thorough` are read to the end (None: all), the others judged by their footers."""

    def problem_of(segment: Segment) -> Broken | None:
        problem = check_segment(journal, segment, thorough=thorough is None or segment.name in thorough)
        return None if problem is None else Broken(problem.name, problem.reason)

    if not segments:
        return []
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        return [problem for problem in pool.map(problem_of, segments) if problem is not None]


def read_events(spark: SparkSession, journal: Storage, segments: Sequence[Segment]) -> DataFrame:
    """The events of the segments, by the newest schema: what an older segment lacks is null."""
    paths = [journal.spark_path(each.name) for each in segments]
    # Spark believes damaged pages unless told not to.
    reader = spark.read.schema(EVENTS).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*paths)


def hours_of(spark: SparkSession, journal: Storage, segments: Sequence[Segment]) -> Hours:
    """Which hours the events belong to: what decides how much of the tables a run reads and writes."""
    if sum(each.size for each in segments) <= BYTES_ON_DRIVER_MAX:
        return _hours_by_arrow(journal, segments)
    return hours_by_spark(read_events(spark, journal, segments))


def hours_by_spark(events: DataFrame) -> Hours:
    """Counted by Spark: one scan of two columns."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = events.groupBy(F.expr(PART_OF_SEQ).alias(PART)).agg(
        F.count(F.lit(1)).alias("events"), F.max(F.unix_millis("at")).alias("newest_ms")
    )
    rows = counts.collect()
    return Hours(
        {row[PART]: row["events"] for row in rows}, max((row["newest_ms"] for row in rows), default=None)
    )


def _hours_by_arrow(journal: Storage, segments: Sequence[Segment]) -> Hours:
    import numpy as np

    seqs, newest_ms = [np.empty(0, np.int64)], None
    for segment in segments:
        found, newest = _columns_of(journal, segment)
        seqs.append(found)
        newest_ms = max(filter(None, (newest_ms, newest)), default=None)
    together = np.concatenate(seqs)
    parts, counts = np.unique((together >> SEQ_BITS) // HOUR_MS, return_counts=True)
    events = dict(zip(parts.tolist(), counts.tolist(), strict=True))
    return Hours(events, newest_ms, np.unique(together))


def _columns_of(journal: Storage, segment: Segment) -> tuple[Any, int | None]:
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    with journal.open_input(segment.name) as file:
        table = pq.ParquetFile(file, page_checksum_verification=True).read(columns=["seq", "at"])
    newest = pc.max(table["at"].cast(pa.int64()), min_count=1).as_py()
    return table["seq"].to_numpy(), None if newest is None else newest // 1000


def _name(broken: Broken) -> str:
    return broken.name


Intervals = list[tuple[int, int]]  # first and last, rising, with a gap between one and the next


def covers(intervals: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether every number from first to last is in."""
    return any(low <= first and last <= high for low, high in intervals)


def touches(intervals: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether any number from first to last is in."""
    return any(low <= last and first <= high for low, high in intervals)


def added(intervals: Sequence[tuple[int, int]], first: int, last: int) -> Intervals:
    """The intervals with the numbers from first to last in them."""
    joined: Intervals = []
    for low, high in sorted([*intervals, (first, last)]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
