"""What became of each message, from its own facts and its leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.leases import ms_between, of_message

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MARK: Final = "of_message_"  # what is told of the message, on every row of it


def with_message(leases: DataFrame) -> DataFrame:
    """Add to each row what the leases tell of its message, and `is_first`: exactly one row of a message has it."""
    from pyspark.sql import functions as F  # noqa: N812

    message = of_message()
    is_lease = F.col("delivery") > 0
    counted_at = F.when(F.col("undone_at").isNull(), F.col("received.received_at"))
    is_wasted = is_lease & ~F.col("how").isin("deleted", "open")
    told = {
        "first_received_at": F.min(counted_at),
        "leases": F.count(F.when(is_lease, 1)),
        "extensions": F.sum("extensions"),
        "duplicates": F.count(F.when(is_lease & F.col("duplicate"), 1)),
        "wasted_ms": F.sum(F.when(is_wasted, F.coalesce("held_ms", F.lit(0))).otherwise(0)),
        "deleted_at": F.max("deleted_at"),
        "dead_lettered_at": F.max("dead.dead_lettered_at"),
        # Dead letters may have dead letters of their own: the last is where it rests.
        "dead": F.last("dead", ignorenulls=True),
    }
    columns = {f"{_MARK}{name}": value.over(message) for name, value in told.items()}
    return leases.withColumns({**columns, "is_first": F.min("delivery").over(message) == F.col("delivery")})


def message_columns() -> dict[str, Column]:
    """The columns of `messages` on the first row of a message.

    The facts of the message itself stand on its row of delivery 0, which is the first; where the first is a lease there are
    none.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def of(name: str) -> Column:
        return F.col(f"{_MARK}{name}")

    sent_at, available_at = F.col("sent.sent_at"), F.col("sent.available_at")
    redriven_at, purged_at, expired_at = (
        F.col("redriven.redriven_at"),
        F.col("purged_at"),
        F.col("expired_at"),
    )
    outcome = (
        F.when(of("deleted_at").isNotNull(), "deleted")
        .when(redriven_at.isNotNull(), "redriven")
        .when(purged_at.isNotNull(), "purged")
        .when(expired_at.isNotNull(), "expired")
        .when(of("dead_lettered_at").isNotNull(), "dead_lettered")
        .otherwise("open")
    )
    ended_at = F.coalesce(of("deleted_at"), redriven_at, purged_at, expired_at)
    return {
        "sent_at": sent_at,
        "available_at": available_at,
        "first_received_at": of("first_received_at"),
        "wait_ms": ms_between(available_at, of("first_received_at")),
        "leases": of("leases"),
        "extensions": of("extensions"),
        "duplicates": of("duplicates"),
        "wasted_ms": of("wasted_ms"),
        "outcome": outcome,
        "ended_at": ended_at,
        "end_to_end_ms": ms_between(sent_at, ended_at),
        "dead_lettered_at": of("dead_lettered_at"),
        "dead_letter_queue": F.col(f"{_MARK}dead.dead_letter_queue"),
        "redriven_to": F.col("redriven.redriven_to"),
    }
