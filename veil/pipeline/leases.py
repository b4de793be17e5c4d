"""How each lease ended, from its facts and those of the other leases of its message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.facts import PART
from veil.pipeline.sql_text import ms_between, named, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASK: Final = (
    "task"  # which task has the message: a column, so that Spark knows that the message's rows are together
)


# All rows of the message, by delivery. One order for every question: Spark sorts once.
_ROWS: Final = f"partition by {PART}, {TASK}, seq order by delivery"
OF_MESSAGE: Final = f"({_ROWS} rows between unbounded preceding and unbounded following)"


def with_neighbours(facts: DataFrame) -> DataFrame:
    """Add what a lease needs of the others: `next_received_at`, `gone_at`, and where the message is at home."""
    # A receive whose answer never left is nobody's.
    received_at = where("undone_at is null", "received.received_at")
    known = where("home.message_id is not null", "home")
    gone_at = "least(deleted_at, expired_at, purged_at, redriven.redriven_at)"
    return facts.selectExpr(
        "*",
        *named(
            {
                "next_received_at": f"lead({received_at}) ignore nulls over ({_ROWS})",
                "gone_at": f"min({gone_at}) over {OF_MESSAGE}",
                "message_home": f"""coalesce(
                    first({known}) ignore nulls over {OF_MESSAGE}, first(home) ignore nulls over {OF_MESSAGE})""",
            }
        ),
    )


def judged(leases: DataFrame, newest: str) -> DataFrame:
    """Add how each lease ended, as of the last known instant."""
    # Without any deadline only a late word of the holder is known: it lapsed.
    how = f"""case
        when undone_at is not null then 'undone'
        when deleted_at is not null then 'deleted'
        when setting.set_released then 'released'
        when gone_at < setting.deadline then 'removed'
        when dead is not null then 'dead_lettered'
        when next_received_at is not null then 'superseded'
        when setting.deadline is null or setting.deadline <= {newest} then 'expired'
        else 'open' end"""
    ended_at = """case how
        when 'undone' then undone_at
        when 'deleted' then deleted_at
        when 'released' then setting.set_at
        when 'removed' then gone_at
        when 'open' then null
        else setting.deadline end"""
    return leases.selectExpr("*", *named({"how": how})).selectExpr("*", *named({"ended_at": ended_at}))


def measured(leases: DataFrame, newest: str) -> DataFrame:
    """Add the lengths: how long the lease was held, what is known of the work, how long recovery took."""
    received_at = "received.received_at"
    until = f"if(how = 'open', {newest}, ended_at)"
    # A delete that was refused still tells when the work was done.
    done_at = "coalesce(deleted_at, delete_refused_at)"
    work_until = f"coalesce({done_at}, greatest({until}, refused_at))"
    # After an accepted delete, further ones are repeats and no sign of work. An extension after somebody else's receive
    # was accepted because that holder had lapsed too.
    too_late = "coalesce(coalesce(deleted_at, refused_at) > setting.deadline, false)"
    revived = "coalesce(last_extended_at > next_received_at, false)"
    lengths = {
        "held_ms": ms_between(received_at, until),
        "processing_ms": where("how != 'undone'", ms_between(received_at, work_until)),
        "censored": f"how = 'undone' or {done_at} is null",
        "overrun": f"how != 'undone' and ({too_late} or {revived})",
    }
    recovery_ms = ms_between(f"greatest({received_at}, last_extended_at)", "next_received_at")
    consequences = {
        "duplicate": "overrun and next_received_at is not null",
        "recovery_ms": where("how = 'superseded' and not overrun", recovery_ms),
    }
    return leases.selectExpr("*", *named(lengths)).selectExpr("*", *named(consequences))
