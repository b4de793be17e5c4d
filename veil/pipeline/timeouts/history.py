"""The history of each queue and message type: counts and histograms, summed from the tables' hours, days or months.

Little is summed by this process: a year of a thousand queues is ten megabytes of months, and Spark would take longer to plan
the question than this takes to answer it. From BYTES_ON_DRIVER_MAX on, Spark does it in one small job: it spreads the
histograms out and sums them by queue, type and bucket, with the counts as one bucket more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from veil.pipeline.lifecycles.journal import BYTES_ON_DRIVER_MAX
from veil.pipeline.lifecycles.scales import BUCKET_MAX, bucket_of, day_number, lower_ms, month_of, upper_ms
from veil.pipeline.lifecycles.store import check_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.store import Manifest


@dataclass(slots=True, kw_only=True)
class History:
    """Sums over the hours that were looked at. Histograms are counts by bucket; `windows` by length in milliseconds."""

    leases: int = 0
    deleted: int = 0
    lapsed: int = (
        0  # expired, superseded or dead-lettered: the deadline passed before the end of the work was heard of
    )
    dead_lettered: int = 0
    overrun: int = 0
    duplicates: int = 0  # overrun, and received by somebody else
    processing: Counter[int] = field(default_factory=Counter)
    lapses: Counter[int] = field(
        default_factory=Counter
    )  # lapsed, and nothing was heard of the end of the work: at work so long, if not dead
    censored: Counter[int] = field(default_factory=Counter)  # released, removed or open
    recovery: Counter[int] = field(default_factory=Counter)
    windows: Counter[int] = field(
        default_factory=Counter
    )  # how many leases began with a window of that length
    present_ms: int | None = None  # the latest window
    present_at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None

    def add(self, other: History) -> None:
        """Count the other's leases in."""
        for name in ("leases", "deleted", "lapsed", "dead_lettered", "overrun", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("processing", "lapses", "censored", "recovery", "windows"):
            getattr(self, name).update(getattr(other, name))
        self.saw_window(other.present_ms, other.present_at)
        self.saw_hours(other.since, other.until)

    def saw_window(self, length_ms: int | None, at: datetime | None) -> None:
        """The window that a lease began with at that instant; the latest is the present one."""
        if length_ms is not None and at is not None and (self.present_at is None or at > self.present_at):
            self.present_ms, self.present_at = length_ms, at

    def saw_hours(self, since: datetime | None, until: datetime | None) -> None:
        """The span that was looked at includes these hours."""
        if since is not None and until is not None:
            self.since = since if self.since is None else min(self.since, since)
            self.until = until if self.until is None else max(self.until, until)

    @property
    def completed(self) -> int:
        """Leases whose whole processing time is known, also those that ended too late to count."""
        return self.processing.total()

    @property
    def present_s(self) -> float | None:
        """The queue's timeout as the latest lease met it."""
        return None if self.present_ms is None else self.present_ms / 1000

    @property
    def late(self) -> int:
        """Leases that lapsed and whose holder ended the work all the same, and said so."""
        return min(max(self.completed - self.deleted, 0), self.lapsed)

    @property
    def silent(self) -> int:
        """Leases that lapsed and of whose holder nothing was heard afterwards."""
        # Not all that were overrun: those that deleted late, before anybody else had come, count as deleted.
        return max(self.lapsed - max(self.late, min(self.duplicates, self.overrun)), 0)

    @property
    def longest_s(self) -> float:
        """The upper end of the bucket of the longest complete observation."""
        return upper_ms(max(self.processing)) / 1000 if self.processing else 0.0

    @property
    def mean_s(self) -> float | None:
        """The mean of the complete observations alone: what a naive look sees."""
        if not self.processing:
            return None
        return sum(count * middle_s(bucket) for bucket, count in self.processing.items()) / self.completed


_MIDDLES_S: Final = tuple((lower_ms(bucket) + upper_ms(bucket)) / 2000 for bucket in range(BUCKET_MAX + 1))


def middle_s(bucket: int) -> float:
    """The middle of a bucket, in seconds."""
    return _MIDDLES_S[bucket]


def bucket_of_s(length_s: float) -> int:
    """The bucket of a length in seconds."""
    return bucket_of(length_s * 1000)


class Work(NamedTuple):
    """Whose history: one message type of one queue; '' for messages without a type."""

    region: str
    account: str
    queue: str
    message_type: str


# Columns of the table, and where a history has them.
HISTOGRAMS: Final = {
    "processing": "processing",
    "processing_lapsed": "lapses",
    "processing_censored": "censored",
    "recovery": "recovery",
}
COUNTS: Final = ("leases", "deleted", "expired", "superseded", "dead_lettered", "overrun", "duplicates")
_ABOUT: Final = ("window_ms", "window_at", "first", "last")
_COUNTED: Final = -1  # in place of a bucket: the row has the counts


def files_since(manifest: Manifest, since: date | None) -> list[str]:
    """The files of sums that have all that was sent on that day or later: months, and days where the first is not whole."""
    if since is None:
        return manifest.files_of("queue_months")
    first = day_number(since)
    whole = month_of(first) if since.day == 1 else month_of(first) + 1
    days = [day for day in sorted(manifest.days) if day >= first and month_of(day) < whole]
    months = [month for month in sorted(manifest.months) if month >= whole]
    return [
        *(file for day in days for file in manifest.days[day]),
        *(file for month in months for file in manifest.months[month]),
    ]


def read_histories(
    table: DataFrame, *, since: date | None = None, queues: Sequence[str] = ()
) -> dict[Work, History]:
    """The history of every queue and type in the table, of the days from `since` on and the queues named."""
    from pyspark.sql import functions as F  # noqa: N812

    if since is not None:
        table = table.where(F.col("hour") >= F.lit(datetime.combine(since, time(), UTC)))
    if queues:
        table = table.where(F.col("queue").isin(list(queues)))
    found = summed_buckets(table).toArrow()
    columns = [found[name].to_pylist() for name in (*Work._fields, "at", "bucket", "count")]
    histograms = list(HISTOGRAMS.values())
    histories: dict[Work, History] = {}
    for number, (*names, at, bucket, count) in enumerate(zip(*columns, strict=True)):
        history = histories.setdefault(Work(*names), History())
        if at == _COUNTED:
            add_counts(history, {name: found[name][number].as_py() for name in (*COUNTS, *_ABOUT)})
        else:
            getattr(history, histograms[at])[bucket] += count
    return histories


def add_counts(history: History, row: dict[str, Any]) -> None:
    """Add the counts of a row of sums, or of rows that began with the same window."""
    history.leases += row["leases"]
    history.deleted += row["deleted"]
    history.lapsed += row["expired"] + row["superseded"] + row["dead_lettered"]
    history.dead_lettered += row["dead_lettered"]
    history.overrun += row["overrun"]
    history.duplicates += row["duplicates"]
    last = _utc(row["last"])
    if row["window_ms"] is not None:
        at = _utc(row["window_at"])
        history.windows[row["window_ms"]] += row["leases"]
        history.saw_window(row["window_ms"], at)
        # A month begins long before the last of its days: the latest receive is a better witness.
        last = max(last, at.replace(hour=0, minute=0, second=0, microsecond=0))
    history.saw_hours(_utc(row["first"]), last)


def summed_buckets(table: DataFrame) -> DataFrame:
    """The histograms of each queue and type, summed: `at` is the place of the histogram in their list; and, where that is
    _COUNTED, the counts for each window."""
    from pyspark.sql import functions as F  # noqa: N812

    none = F.array(F.struct(F.lit(0).alias("bucket"), F.lit(0).cast("bigint").alias("count")))
    # Arrays of arrays, and no function of each element: those are not compiled.
    each = F.array(
        F.struct(F.lit(_COUNTED).alias("at"), none.alias("pairs")),
        *(
            F.struct(F.lit(number).alias("at"), F.col(name).alias("pairs"))
            for number, name in enumerate(HISTOGRAMS)
        ),
    )
    about = ("hour", "window_ms", "window_at", *COUNTS)
    is_counted = F.col("at") == _COUNTED

    def told(name: str) -> Column:
        return F.when(is_counted, F.col(name))

    return (
        table.select(*Work._fields, *about, F.inline(each))
        .select(*Work._fields, *about, "at", F.inline("pairs"))
        .groupBy(*Work._fields, "at", "bucket", told("window_ms").alias("window_ms"))
        .agg(
            F.sum("count").alias("count"),
            *(F.sum(told(name)).alias(name) for name in COUNTS),
            F.max(told("window_at")).alias("window_at"),
            F.min(told("hour")).alias("first"),
            F.max(told("hour")).alias("last"),
        )
    )


def _utc(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


_SIZE: Final = BUCKET_MAX + 1
_EACH: Final = _SIZE * len(HISTOGRAMS)


def is_little(tables: Storage, files: Sequence[str]) -> bool:
    """Whether the files are small enough, all together, to be read here."""
    left = BYTES_ON_DRIVER_MAX
    for file in files:
        with tables.open_input(file) as opened:
            left -= opened.size()
        if left < 0:
            return False
    return True


def read_here(tables: Storage, files: Sequence[str], *, queues: Sequence[str] = ()) -> dict[Work, History]:
    """The history of every queue and type in these files of sums, or of the queues named."""
    check_files(tables, "queue_months", files)
    histories: dict[Work, History] = {}
    numbers: dict[Work, int] = {}
    keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for file in files:
        rows = _rows(tables, file, queues)
        works = [Work(*each) for each in zip(*(rows[name].to_pylist() for name in Work._fields), strict=True)]
        known = rows.select(["window_ms", "window_at", "hour", *COUNTS]).to_pylist()
        for work, row in zip(works, known, strict=True):
            history = histories.setdefault(work, History())
            add_counts(history, {**row, "first": row["hour"], "last": row["hour"]})
        base = np.array([numbers.setdefault(work, len(numbers)) for work in works], np.int64) * _EACH
        for at, name in enumerate(HISTOGRAMS):
            column = rows[name].combine_chunks()
            pairs = column.flatten()
            lengths = np.diff(column.offsets.to_numpy())
            keys.append(np.repeat(base + at * _SIZE, lengths) + pairs.field("bucket").to_numpy())
            counts.append(pairs.field("count").to_numpy())
    found, where = np.unique(np.concatenate(keys), return_inverse=True)
    # Sums of doubles are exact as far as counts go: 2^53.
    totals = np.bincount(where, np.concatenate(counts), len(found)).astype(np.int64)
    named = list(numbers)
    into = list(HISTOGRAMS.values())
    for key, count in zip(found.tolist(), totals.tolist(), strict=True):
        number, place = divmod(key, _EACH)
        at, bucket = divmod(place, _SIZE)
        getattr(histories[named[number]], into[at])[bucket] += count
    return histories


def _rows(tables: Storage, file: str, queues: Sequence[str]) -> Any:
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    columns = [*Work._fields, "hour", "window_ms", "window_at", *COUNTS, *HISTOGRAMS]
    with tables.open_input(file) as opened:
        rows = pq.ParquetFile(opened).read(columns=columns)
    return rows.filter(pc.is_in(rows["queue"], value_set=pa.array(queues))) if queues else rows
