"""How each lease ended, from its facts and those of the other leases of its message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.facts import PART

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

TASK: Final = (
    "task"  # which task has the message: a column, so that Spark knows that the message's rows are together
)


def of_message() -> WindowSpec:
    """All rows of the message, by delivery. One order for every question: Spark sorts once."""
    from pyspark.sql import Window

    return (
        Window.partitionBy(PART, TASK, "seq")
        .orderBy("delivery")
        .rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    )


def with_neighbours(facts: DataFrame) -> DataFrame:
    """Add what a lease needs of the others: `next_received_at`, `gone_at`, and where the message is at home."""
    from pyspark.sql import functions as F  # noqa: N812

    message = of_message()
    # A receive whose answer never left is nobody's. (The functions of pyspark lack IGNORE NULLS for lead.)
    next_received_at = F.expr(
        "lead(case when undone_at is null then received.received_at end) ignore nulls"
        f" over (partition by {PART}, {TASK}, seq order by delivery)"
    )
    gone_at = F.least("deleted_at", "expired_at", "purged_at", "redriven.redriven_at")
    known = F.when(F.col("home.message_id").isNotNull(), F.col("home"))
    return facts.withColumns(
        {
            "next_received_at": next_received_at,
            "gone_at": F.min(gone_at).over(message),
            "message_home": F.coalesce(
                F.first(known, ignorenulls=True).over(message),
                F.first("home", ignorenulls=True).over(message),
            ),
        }
    )


def judged(leases: DataFrame, newest: Column) -> DataFrame:
    """Add how each lease ended, as of the last known instant."""
    from pyspark.sql import functions as F  # noqa: N812

    deadline, gone_at = F.col("setting.deadline"), F.col("gone_at")
    how = (
        F.when(F.col("undone_at").isNotNull(), "undone")
        .when(F.col("deleted_at").isNotNull(), "deleted")
        .when(F.col("setting.set_released"), "released")
        .when(gone_at < deadline, "removed")
        .when(F.col("dead").isNotNull(), "dead_lettered")
        .when(F.col("next_received_at").isNotNull(), "superseded")
        # Without any deadline only a late word of the holder is known: it lapsed.
        .when(deadline.isNull() | (deadline <= newest), "expired")
        .otherwise("open")
    )
    ended_at = (
        F.when(F.col("how") == "undone", F.col("undone_at"))
        .when(F.col("how") == "deleted", F.col("deleted_at"))
        .when(F.col("how") == "released", F.col("setting.set_at"))
        .when(F.col("how") == "removed", gone_at)
        .when(F.col("how") != "open", deadline)
    )
    return leases.withColumn("how", how).withColumn("ended_at", ended_at)


def measured(leases: DataFrame, newest: Column) -> DataFrame:
    """Add the lengths: how long the lease was held, what is known of the work, how long recovery took."""
    from pyspark.sql import functions as F  # noqa: N812

    received_at, next_received_at = F.col("received.received_at"), F.col("next_received_at")
    last_extended_at = F.col("last_extended_at")
    until = F.when(F.col("how") == "open", newest).otherwise(F.col("ended_at"))
    is_undone = F.col("how") == "undone"
    # A delete that was refused still tells when the work was done.
    done_at = F.coalesce("deleted_at", "delete_refused_at")
    work_until = F.coalesce(done_at, F.greatest(until, F.col("refused_at")))
    # After an accepted delete, further ones are repeats and no sign of work. An extension after somebody else's receive
    # was accepted because that holder had lapsed too.
    too_late = F.coalesce("deleted_at", "refused_at") > F.col("setting.deadline")
    revived = last_extended_at > next_received_at
    overrun = ~is_undone & (F.coalesce(too_late, F.lit(False)) | F.coalesce(revived, F.lit(False)))
    recovered = (F.col("how") == "superseded") & ~F.col("overrun")
    return leases.withColumns(
        {
            "held_ms": ms_between(received_at, until),
            "processing_ms": F.when(~is_undone, ms_between(received_at, work_until)),
            "censored": is_undone | done_at.isNull(),
            "overrun": overrun,
        }
    ).withColumns(
        {
            "duplicate": F.col("overrun") & next_received_at.isNotNull(),
            "recovery_ms": F.when(
                recovered, ms_between(F.greatest(received_at, last_extended_at), next_received_at)
            ),
        }
    )


def ms_between(start: Column, end: Column) -> Column:
    """Whole milliseconds from one instant to the other, never negative; null where either is not known."""
    from pyspark.sql import functions as F  # noqa: N812

    ms = F.unix_millis(end) - F.unix_millis(start)
    return F.when(ms < 0, F.lit(0).cast("bigint")).otherwise(ms)
