"""From sums (of hours, days or months: they have the same columns) to the history of each queue and message type.

One small job: it spreads the histograms out, and sums them by queue, type and bucket, with the counts as one bucket more. What
comes back is queues × types × buckets, small enough for this process however long the past is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from veil.pipeline.history import History
from veil.pipeline.levels import day_number, month_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from veil.pipeline.manifest import Manifest


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
