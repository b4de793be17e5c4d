"""What became of each message, from its own facts and its leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.leases import ms_between, of_message

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MARK: Final = "of_message_"  # what is told of the message, on every row of it


def with_message(leases: DataFrame) -> DataFrame:
    """Add to each row what is told of its message, and `is_first`: exactly one row of a message has it."""
    from pyspark.sql import functions as F  # noqa: N812

    message = of_message()
    is_lease = F.col("delivery") > 0
    counted_at = F.when(F.col("undone_at").isNull(), F.col("received_at"))
    is_wasted = is_lease & ~F.col("how").isin("deleted", "open")
    told = {
        "region": F.first("region", ignorenulls=True),
        "account": F.first("account", ignorenulls=True),
        "queue": F.first("queue", ignorenulls=True),
        "sent_at": F.first("sent_at", ignorenulls=True),
        "available_at": F.first("available_at", ignorenulls=True),
        "first_received_at": F.min(counted_at),
        "leases": F.count(F.when(is_lease, 1)),
        "extensions": F.sum("extensions"),
        "duplicates": F.count(F.when(is_lease & F.col("duplicate"), 1)),
        "wasted_ms": F.sum(F.when(is_wasted, F.coalesce("held_ms", F.lit(0))).otherwise(0)),
        "deleted_at": F.max("deleted_at"),
        "redriven_at": F.max("redriven_at"),
        "purged_at": F.max("purged_at"),
        "expired_at": F.max("expired_at"),
        "redriven_to": F.max("redriven_to"),
        # Dead letters may have dead letters of their own: the last is where it rests.
        "dead_lettered_at": F.max("dead_lettered_at"),
        "dead_letter_queue": F.last("dead_letter_queue", ignorenulls=True),
    }
    columns = {f"{_MARK}{name}": value.over(message) for name, value in told.items()}
    return leases.withColumns({**columns, "is_first": F.min("delivery").over(message) == F.col("delivery")})


def message_columns() -> dict[str, Column]:
    """The columns of `messages` on a row that has what `with_message` adds; those not here are the row's own."""
    from pyspark.sql import functions as F  # noqa: N812

    def of(name: str) -> Column:
        return F.col(f"{_MARK}{name}")

    outcome = (
        F.when(of("deleted_at").isNotNull(), "deleted")
        .when(of("redriven_at").isNotNull(), "redriven")
        .when(of("purged_at").isNotNull(), "purged")
        .when(of("expired_at").isNotNull(), "expired")
        .when(of("dead_lettered_at").isNotNull(), "dead_lettered")
        .otherwise("open")
    )
    ended_at = F.coalesce(of("deleted_at"), of("redriven_at"), of("purged_at"), of("expired_at"))
    as_told = (
        "region", "account", "queue", "sent_at", "available_at", "first_received_at", "dead_lettered_at",
        "dead_letter_queue", "redriven_to",
    )  # fmt: skip
    return {
        **{name: of(name) for name in as_told},
        "wait_ms": ms_between(of("available_at"), of("first_received_at")),
        "leases": of("leases").cast("int"),
        "extensions": of("extensions").cast("int"),
        "duplicates": of("duplicates").cast("int"),
        "wasted_ms": of("wasted_ms").cast("bigint"),
        "outcome": outcome,
        "ended_at": ended_at,
        "end_to_end_ms": ms_between(of("sent_at"), ended_at),
    }
