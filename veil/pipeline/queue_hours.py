"""Sums per queue, message type and hour, and the same per day: counts, and histograms that add up.

Leases and messages are first counted by their buckets, which is most of the work and shrinks them; the rest runs on those
counts, and adds stored hours to days in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.buckets import BUCKET_MAX, bucket_column
from veil.pipeline.facts import HOUR_MS, PART
from veil.pipeline.schemas import struct_of
from veil.pipeline.tables import HOW, OUTCOME, QUEUE_HOURS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TABLE: Final = "table"
HOURS_A_DAY: Final = 24
HISTOGRAMS: Final = ("processing", "processing_censored", "waiting", "recovery")
_KEYS: Final = ("region", "account", "queue", "message_type")
_SIZE: Final = BUCKET_MAX + 1
_NO_BUCKET: Final = -1  # in place of a bucket: the row has the sums
_WINDOW_BITS: Final = 26  # of a window in milliseconds: 18 hours
# Sums that are not just counts of rows.
_LENGTHS: Final = ("extensions", "held_ms", "wasted_ms")
_OUTCOME_COLUMNS: Final = {
    outcome: f"messages_{'dead' if outcome == 'dead_lettered' else outcome}" for outcome in OUTCOME
}
SUMS: Final = (
    "sent", "leases", *HOW, "overrun", "duplicates", *_LENGTHS, *_OUTCOME_COLUMNS.values(),
)  # fmt: skip
_LATEST: Final = "window"  # window_at, in milliseconds since the epoch, and window_ms in one number


def counted(lives: DataFrame) -> DataFrame:
    """Rows of `leases` and `messages` as counts: PART, keys, two buckets (each with its histogram's number), sums."""
    from pyspark.sql import functions as F  # noqa: N812

    is_message = F.col("delivery") == 0
    is_lease = ~is_message

    def histogram(name: str, length_ms: Column) -> Column:
        return bucket_column(length_ms) + HISTOGRAMS.index(name) * _SIZE

    none = F.lit(_NO_BUCKET)
    work = F.when(
        is_lease & F.col("processing_ms").isNotNull(),
        F.when(F.col("censored"), histogram("processing_censored", F.col("processing_ms"))).otherwise(
            histogram("processing", F.col("processing_ms"))
        ),
    )
    around = F.when(is_message, histogram("waiting", F.col("wait_ms"))).otherwise(
        histogram("recovery", F.col("recovery_ms"))
    )
    # The greatest number is the latest window; one number instead of two keeps the aggregation in fixed-width memory.
    window_ms = F.least(
        F.greatest(F.unix_millis("first_deadline") - F.unix_millis("received_at"), F.lit(0)),
        F.lit((1 << _WINDOW_BITS) - 1),
    )
    since_hour_ms = F.unix_millis("received_at") - F.col(PART).cast("bigint") * HOUR_MS
    window = F.when(is_lease, F.shiftleft(since_hour_ms, _WINDOW_BITS) + window_ms)
    grouped = (
        lives.withColumn("message_type", F.coalesce("message_type", F.lit("")))
        .withColumn("work", F.coalesce(work, none))
        .withColumn("around", F.coalesce(around, none))
        .withColumn("is_message", is_message)
        .withColumn("state", F.when(is_message, F.col("outcome")).otherwise(F.col("how")))
        .groupBy(PART, *_KEYS, "work", "around", "is_message", "state")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.max(window).alias(_LATEST),
            F.count("sent_at").alias("sent"),
            F.count(F.when(is_lease & F.col("overrun"), 1)).alias("overrun"),
            F.count(F.when(is_lease & F.col("duplicate"), 1)).alias("duplicates"),
            F.sum(F.when(is_lease, F.col("extensions")).otherwise(0)).alias("extensions"),
            F.sum(F.coalesce("held_ms", F.lit(0))).alias("held_ms"),
        )
    )
    return grouped.select(
        PART, *_KEYS, "work", "around", "count", _LATEST, *_named(_by_state(F.col("is_message")))
    )


def _by_state(is_message: Column) -> dict[str, Column]:
    """The sums of rows that are of one state each. Told apart here, where they are few, and not for each lease."""
    from pyspark.sql import functions as F  # noqa: N812

    state = F.col("state")

    def if_(condition: Column, column: str) -> Column:
        return F.when(condition, F.col(column)).otherwise(0)

    return {
        **{name: F.col(name) for name in ("sent", "overrun", "duplicates", "extensions", "held_ms")},
        "leases": if_(~is_message, "count"),
        **{how: if_(~is_message & (state == how), "count") for how in HOW},
        "wasted_ms": if_(~is_message & ~state.isin("deleted", "open"), "held_ms"),
        **{
            column: if_(is_message & (state == outcome), "count")
            for outcome, column in _OUTCOME_COLUMNS.items()
        },
    }


def by_bucket(counts: DataFrame) -> DataFrame:
    """Counts as rows of (table, part, keys, bucket, count, window, sums), once for the hour and once for the day."""
    from pyspark.sql import functions as F  # noqa: N812

    hour = F.col(PART)
    day = F.floor(hour / HOURS_A_DAY).cast("int")
    # The window of an hour is counted from the hour; in the day, from the day.
    shift = F.shiftleft(((hour - day * HOURS_A_DAY) * HOUR_MS).cast("bigint"), _WINDOW_BITS)
    levels = F.array(
        F.struct(F.lit("queue_hours").alias(TABLE), hour.alias(PART), F.lit(0).cast("bigint").alias("shift")),
        F.struct(F.lit("queue_days").alias(TABLE), day.alias(PART), shift.alias("shift")),
    )
    rows = counts.withColumn("level", F.explode(levels)).withColumn(
        "bucket", F.explode(F.array("work", "around", F.lit(_NO_BUCKET - 1)))
    )
    is_sum = F.col("bucket") < _NO_BUCKET
    return rows.where(F.col("bucket") != _NO_BUCKET).select(
        F.col(f"level.{TABLE}").alias(TABLE),
        F.col(f"level.{PART}").alias(PART),
        *_KEYS,
        F.when(is_sum, _NO_BUCKET).otherwise(F.col("bucket")).alias("bucket"),
        F.when(is_sum, 0).otherwise(F.col("count")).cast("bigint").alias("count"),
        F.when(is_sum, F.col(_LATEST) + F.col("level.shift")).alias(_LATEST),
        *(F.when(is_sum, F.col(name)).otherwise(0).cast("bigint").alias(name) for name in SUMS),
    )


def stored_by_bucket(queue_hours: DataFrame) -> DataFrame:
    """Stored rows of `queue_hours` in the same form, for the day only."""
    from pyspark.sql import functions as F  # noqa: N812

    day = F.floor(F.unix_millis("hour") / (HOUR_MS * HOURS_A_DAY)).cast("int")
    day_ms = F.col(PART).cast("bigint") * (HOUR_MS * HOURS_A_DAY)
    numbered = [_shifted(F.col(name), number * _SIZE) for number, name in enumerate(HISTOGRAMS)]
    sums = F.array(F.struct(F.lit(_NO_BUCKET).alias("bucket"), F.lit(0).cast("bigint").alias("count")))
    is_sum = F.col("each.bucket") == _NO_BUCKET
    window = F.shiftleft(F.unix_millis("window_at") - day_ms, _WINDOW_BITS) + F.col("window_ms")
    return (
        queue_hours.withColumn(PART, day)
        .withColumn("each", F.explode(F.concat(sums, *numbered)))
        .select(
            F.lit("queue_days").alias(TABLE),
            PART,
            *_KEYS,
            F.col("each.bucket").alias("bucket"),
            F.col("each.count").alias("count"),
            F.when(is_sum, window).alias(_LATEST),
            *(F.when(is_sum, F.col(name)).otherwise(0).cast("bigint").alias(name) for name in SUMS),
        )
    )


def summed(buckets: DataFrame) -> DataFrame:
    """Rows of `queue_hours` and `queue_days`, with `table` and `part` in front."""
    from pyspark.sql import functions as F  # noqa: N812

    # Once by what a file holds: the two steps below find their rows together, and each file has one writer.
    rows = buckets.repartition(TABLE, PART)
    totals = {name: F.sum(name) for name in SUMS}
    keys = (TABLE, PART, *_KEYS)
    rows = rows.groupBy(*keys, "bucket").agg(
        F.sum("count").alias("count"), F.max(_LATEST).alias(_LATEST), *_named(totals)
    )
    pair = F.when(F.col("bucket") != _NO_BUCKET, F.struct("bucket", "count"))
    rows = rows.groupBy(*keys).agg(
        F.sort_array(F.collect_list(pair)).alias("pairs"), F.max(_LATEST).alias(_LATEST), *_named(totals)
    )
    part_ms = F.col(PART).cast("bigint") * F.when(F.col(TABLE) == "queue_hours", HOUR_MS).otherwise(
        HOUR_MS * HOURS_A_DAY
    )
    values = {
        "hour": F.timestamp_millis(part_ms),
        "window_ms": F.col(_LATEST).bitwiseAND((1 << _WINDOW_BITS) - 1),
        "window_at": F.timestamp_millis(part_ms + F.shiftright(_LATEST, _WINDOW_BITS)),
        **{name: _histogram(number) for number, name in enumerate(HISTOGRAMS)},
    }
    columns = [
        values.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
        for field in struct_of(QUEUE_HOURS)
    ]
    return rows.select(TABLE, PART, *columns)


def _histogram(number: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    low = number * _SIZE
    of_it = F.filter("pairs", lambda pair: (pair["bucket"] >= low) & (pair["bucket"] < low + _SIZE))
    return _shifted(of_it, -low)


def _shifted(pairs: Column, by: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.transform(
        pairs, lambda pair: F.struct((pair["bucket"] + by).alias("bucket"), pair["count"].alias("count"))
    )


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
