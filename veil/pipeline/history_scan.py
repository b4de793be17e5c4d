"""From `queue_days` (or `queue_hours`, which has the same columns) to the history of each queue and message type.

Two small jobs. The first sums the counts, and so learns which queues and types there are; each gets a number. The second
spreads the histograms out and sums them by that number and the bucket: one number as the key, since hashing four names for
each of some ten million buckets would cost most of the time. What comes back is queues × types × buckets, small enough for
this process however long the past is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from veil.pipeline.buckets import BUCKET_MAX
from veil.pipeline.history import History

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Work(NamedTuple):
    """Whose history: one message type of one queue; '' for messages without a type."""

    region: str
    account: str
    queue: str
    message_type: str


# Columns of the table, and where a history has them.
_HISTOGRAMS: Final = {"processing": "processing", "processing_censored": "censored", "recovery": "recovery"}
_COUNTS: Final = ("leases", "deleted", "expired", "superseded", "dead_lettered", "overrun", "duplicates")
_SIZE: Final = BUCKET_MAX + 1
_EACH: Final = _SIZE * len(_HISTOGRAMS)


def read_histories(
    table: DataFrame, *, since: date | None = None, queues: Sequence[str] = ()
) -> dict[Work, History]:
    """The history of every queue and type in the table, of the days from `since` on and the queues named."""
    from pyspark.sql import functions as F  # noqa: N812

    if since is not None:
        table = table.where(F.col("hour") >= F.lit(datetime(since.year, since.month, since.day, tzinfo=UTC)))
    if queues:
        table = table.where(F.col("queue").isin(list(queues)))
    histories = _counted(table)
    if histories:
        works = list(histories)
        found = summed_buckets(table, works).toArrow()
        for key, count in zip(found["key"].to_pylist(), found["count"].to_pylist(), strict=True):
            number, place = divmod(key, _EACH)
            which, bucket = divmod(place, _SIZE)
            histogram = getattr(histories[works[number]], list(_HISTOGRAMS.values())[which])
            histogram[bucket] += count
    return histories


def _counted(table: DataFrame) -> dict[Work, History]:
    """The histories without their histograms."""
    histories: dict[Work, History] = {}
    for row in summed_counts(table).toArrow().to_pylist():
        history = histories.setdefault(Work(*(row[name] for name in Work._fields)), History())
        history.leases += row["leases"]
        history.deleted += row["deleted"]
        history.lapsed += row["expired"] + row["superseded"] + row["dead_lettered"]
        history.dead_lettered += row["dead_lettered"]
        history.overrun += row["overrun"]
        history.duplicates += row["duplicates"]
        if row["window_ms"] is not None:
            history.windows[row["window_ms"]] += row["leases"]
            history.saw_window(row["window_ms"], row["window_at"])
        history.saw_hours(_utc(row["first"]), _utc(row["last"]))
    return histories


def summed_counts(table: DataFrame) -> DataFrame:
    """The counts of each queue, type and window, and the hours that they come from."""
    from pyspark.sql import functions as F  # noqa: N812

    return table.groupBy(*Work._fields, "window_ms").agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        F.max("window_at").alias("window_at"),
        F.min("hour").alias("first"),
        F.max("hour").alias("last"),
    )


def summed_buckets(table: DataFrame, works: Sequence[Work]) -> DataFrame:
    """The histograms of these, summed: `key` is the place in `works`, the histogram and the bucket in one number."""
    from pyspark.sql import functions as F  # noqa: N812

    numbered = table.sparkSession.createDataFrame(
        [(*work, number * _EACH) for number, work in enumerate(works)],
        "region string, account string, queue string, message_type string, base bigint",
    )
    # Arrays of arrays, and no function of each element: those are not compiled.
    each = F.array(
        *(
            F.struct(F.lit(n * _SIZE).alias("at"), F.col(name).alias("pairs"))
            for n, name in enumerate(_HISTOGRAMS)
        )
    )
    return (
        table.join(F.broadcast(numbered), list(Work._fields))
        .select("base", F.inline(each))
        .select((F.col("base") + F.col("at")).alias("base"), F.inline("pairs"))
        .groupBy((F.col("base") + F.col("bucket")).alias("key"))
        .agg(F.sum("count").alias("count"))
    )


def _utc(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
