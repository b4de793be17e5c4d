"""Sums per queue, message type and hour, and the same per day and per month: counts, and histograms that add up.

Leases and messages are first counted by their buckets, which is most of the work and shrinks them; the rest runs on those
counts, and adds stored sums in the same way. What adds up can be taken off again: a row with the sign -1 is one that the
stored sums have counted and that is there no more, or is otherwise now.

Where many columns are alike they are written in SQL: each piece of one that is put together in Python is a call or two to the
JVM, and takes longer than the work of a small run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.buckets import BUCKET_MAX, bucket_column
from veil.pipeline.facts import HOUR_MS, PART
from veil.pipeline.levels import HOURS, LEVELS, begin_ms_column, part_column
from veil.pipeline.schemas import struct_of
from veil.pipeline.tables import HOW, OUTCOME, QUEUE_HOURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

TABLE: Final = "table"
SIGN: Final = "sign"  # 1 for a row that counts, -1 for one that does so no more
HISTOGRAMS: Final = ("processing", "processing_lapsed", "processing_censored", "waiting", "recovery")
LAPSED: Final = ("expired", "superseded", "dead_lettered")
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
    """Rows of `leases` and `messages`, each with its SIGN, as counts: PART, keys, two buckets (each with its histogram's
    number), sums."""
    from pyspark.sql import functions as F  # noqa: N812

    is_message = F.col("delivery") == 0
    is_lease = ~is_message

    def histogram(name: str, length_ms: Column) -> Column:
        return bucket_column(length_ms) + HISTOGRAMS.index(name) * _SIZE

    none = F.lit(_NO_BUCKET)
    work = F.when(
        is_lease & F.col("processing_ms").isNotNull(),
        bucket_column(F.col("processing_ms"))
        + F.when(~F.col("censored"), HISTOGRAMS.index("processing") * _SIZE)
        .when(F.col("how").isin(*LAPSED), HISTOGRAMS.index("processing_lapsed") * _SIZE)
        .otherwise(HISTOGRAMS.index("processing_censored") * _SIZE),
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
    # Never taken off: a lease keeps the window that it began with.
    counts = F.col(SIGN) > 0
    window = F.when(is_lease & counts, F.shiftleft(since_hour_ms, _WINDOW_BITS) + window_ms)

    def signed(condition: Column) -> Column:
        return F.sum(F.when(condition, F.col(SIGN)).otherwise(0))

    grouped = (
        lives.withColumn("message_type", F.coalesce("message_type", F.lit("")))
        .withColumn("work", F.coalesce(work, none))
        .withColumn("around", F.coalesce(around, none))
        .withColumn("is_message", is_message)
        .withColumn("state", F.when(is_message, F.col("outcome")).otherwise(F.col("how")))
        .groupBy(PART, *_KEYS, "work", "around", "is_message", "state")
        .agg(
            F.sum(SIGN).alias("count"),
            F.max(window).alias(_LATEST),
            signed(F.col("sent_at").isNotNull()).alias("sent"),
            signed(is_lease & F.col("overrun")).alias("overrun"),
            signed(is_lease & F.col("duplicate")).alias("duplicates"),
            F.sum(F.when(is_lease, F.col("extensions") * F.col(SIGN)).otherwise(0)).alias("extensions"),
            F.sum(F.coalesce("held_ms", F.lit(0)) * F.col(SIGN)).alias("held_ms"),
        )
    )
    return grouped.selectExpr(PART, *_KEYS, "work", "around", "`count`", _LATEST, *_named(_by_state()))


def _by_state() -> dict[str, str]:
    """The sums of rows that are of one state each, in SQL. Told apart here, where they are few, and not for each lease."""
    return {
        **{name: name for name in ("sent", "overrun", "duplicates", "extensions", "held_ms")},
        "leases": "if(not is_message, `count`, 0)",
        **{how: f"if(not is_message and state = '{how}', `count`, 0)" for how in HOW},
        "wasted_ms": "if(not is_message and state not in ('deleted', 'open'), held_ms, 0)",
        **{
            column: f"if(is_message and state = '{outcome}', `count`, 0)"
            for outcome, column in _OUTCOME_COLUMNS.items()
        },
    }


def _of_sums(is_sum: str) -> list[str]:
    """Every sum in the rows that have the sums, 0 in the others, in SQL."""
    return _named({name: f"cast(if({is_sum}, `{name}`, 0) as bigint)" for name in SUMS})


def by_bucket(counts: DataFrame) -> DataFrame:
    """Counts as rows of (table, part, keys, bucket, count, window, sums), once for each level."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = counts.withColumn("level", F.explode(_levels(LEVELS, F.col(PART)))).withColumn(
        "bucket", F.explode(F.array("work", "around", F.lit(_NO_BUCKET - 1)))
    )
    is_sum = f"bucket < {_NO_BUCKET}"
    return rows.where(f"bucket != {_NO_BUCKET}").selectExpr(
        f"level.`{TABLE}`",
        f"level.`{PART}`",
        *_KEYS,
        f"if({is_sum}, {_NO_BUCKET}, bucket) as bucket",
        f"cast(if({is_sum}, 0, `count`) as bigint) as `count`",
        f"if({is_sum}, `{_LATEST}` + level.shift, null) as `{_LATEST}`",
        *_of_sums(is_sum),
    )


def stored_by_bucket(stored: DataFrame, counts_for: Mapping[str, Sequence[str]]) -> DataFrame:
    """Stored sums, each with the TABLE that it is of, in the same form; for the levels that its table is said to count for."""
    from pyspark.sql import functions as F  # noqa: N812

    hour = F.floor(F.unix_millis("hour") / HOUR_MS).cast("int")
    levels = F.coalesce(
        *(F.when(F.col(TABLE) == table, _levels(wanted, hour)) for table, wanted in counts_for.items())
    )
    numbered = [_shifted(F.col(name), number * _SIZE) for number, name in enumerate(HISTOGRAMS)]
    sums = F.array(F.struct(F.lit(_NO_BUCKET).alias("bucket"), F.lit(0).cast("bigint").alias("count")))
    is_sum = f"each.bucket = {_NO_BUCKET}"
    # From the beginning of what is stored, and from there to the level's.
    since_ms = "unix_millis(window_at) - unix_millis(hour)"
    window = f"shiftleft({since_ms}, {_WINDOW_BITS}) + window_ms + level.shift"
    return (
        stored.withColumn("level", F.explode(levels))
        .withColumn("each", F.explode(F.concat(sums, *numbered)))
        .selectExpr(
            f"level.`{TABLE}`",
            f"level.`{PART}`",
            *_KEYS,
            "each.bucket",
            "each.`count`",
            f"if({is_sum}, {window}, null) as `{_LATEST}`",
            *_of_sums(is_sum),
        )
    )


def _levels(levels: Sequence[str], hour: Column) -> Column:
    """Of each level: its name, the part that the hour belongs to, and what a window of that hour is greater there."""
    from pyspark.sql import functions as F  # noqa: N812

    def level(name: str) -> Column:
        part = part_column(name, hour)
        since_ms = begin_ms_column(HOURS, hour) - begin_ms_column(name, part)
        shift = F.shiftleft(since_ms, _WINDOW_BITS)
        return F.struct(F.lit(name).alias(TABLE), part.cast("int").alias(PART), shift.alias("shift"))

    return F.array(*(level(name) for name in levels))


def summed(buckets: DataFrame) -> DataFrame:
    """Rows of the sums at all levels, with `table` and `part` in front."""
    from pyspark.sql import functions as F  # noqa: N812

    # Once by what a file holds: the two steps below find their rows together, and each file has one writer.
    rows = buckets.repartition(TABLE, PART)
    totals = [F.expr(total) for total in _named({name: f"sum(`{name}`)" for name in SUMS})]
    keys = (TABLE, PART, *_KEYS)
    rows = rows.groupBy(*keys, "bucket").agg(
        F.sum("count").alias("count"), F.max(_LATEST).alias(_LATEST), *totals
    )
    pair = F.when((F.col("bucket") != _NO_BUCKET) & (F.col("count") != 0), F.struct("bucket", "count"))
    rows = rows.groupBy(*keys).agg(
        F.sort_array(F.collect_list(pair)).alias("pairs"), F.max(_LATEST).alias(_LATEST), *totals
    )
    # Of a queue or type that nothing is left of, there is no row.
    rows = rows.where(f"leases + {' + '.join(_OUTCOME_COLUMNS.values())} > 0")
    part_ms = begin_ms_column(LEVELS[-1], F.col(PART))
    for level in LEVELS[:-1]:
        part_ms = F.when(F.col(TABLE) == level, begin_ms_column(level, F.col(PART))).otherwise(part_ms)
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


def _named(expressions: dict[str, str]) -> list[str]:
    return [f"{expression} as `{name}`" for name, expression in expressions.items()]
