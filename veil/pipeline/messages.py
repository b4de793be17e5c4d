"""What became of each message, from its own facts and its leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.pipeline.leases import OF_MESSAGE
from veil.pipeline.sql_text import ms_between, named, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IS_LEASE: Final = "delivery > 0"
# What the leases tell of their message, on every row of it.
_TOLD: Final = {
    "first_received_at": f"min({where('undone_at is null', 'received.received_at')})",
    "leases": f"count({where(_IS_LEASE, '1')})",
    "extensions": "sum(extensions)",
    "duplicates": f"count({where(f'{_IS_LEASE} and duplicate', '1')})",
    "wasted_ms": f"sum(if({_IS_LEASE} and how not in ('deleted', 'open'), coalesce(held_ms, 0L), 0L))",
    "deleted_at": "max(deleted_at)",
    "dead_lettered_at": "max(dead.dead_lettered_at)",
    # Dead letters may have dead letters of their own: the last is where it rests.
    "dead": "last(dead) ignore nulls",
}


def with_message(leases: DataFrame) -> DataFrame:
    """Add to each row what the leases tell of its message, and `is_first`: exactly one row of a message has it."""
    told = {_of(name): f"{value} over {OF_MESSAGE}" for name, value in _TOLD.items()}
    return leases.selectExpr("*", *named({**told, "is_first": f"min(delivery) over {OF_MESSAGE} = delivery"}))


def message_columns() -> dict[str, str]:
    """The columns of `messages` on the first row of a message, in SQL.

    The facts of the message itself stand on its row of delivery 0, which is the first; where the first is a lease there are
    none.
    """
    deleted_at, dead_lettered_at = _of("deleted_at"), _of("dead_lettered_at")
    ended_at = f"coalesce({deleted_at}, redriven.redriven_at, purged_at, expired_at)"
    available_at = f"coalesce({where(f'not ({_IS_LEASE})', 'setting.deadline')}, sent.available_at)"
    outcome = f"""case
        when {deleted_at} is not null then 'deleted'
        when redriven.redriven_at is not null then 'redriven'
        when purged_at is not null then 'purged'
        when expired_at is not null then 'expired'
        when {dead_lettered_at} is not null then 'dead_lettered'
        else 'open' end"""
    return {
        "sent_at": "sent.sent_at",
        "available_at": available_at,
        "first_received_at": _of("first_received_at"),
        "wait_ms": ms_between(available_at, _of("first_received_at")),
        "leases": _of("leases"),
        "extensions": _of("extensions"),
        "duplicates": _of("duplicates"),
        "wasted_ms": _of("wasted_ms"),
        "outcome": outcome,
        "ended_at": ended_at,
        "end_to_end_ms": ms_between("sent.sent_at", ended_at),
        "dead_lettered_at": dead_lettered_at,
        "dead_letter_queue": f"{_of('dead')}.dead_letter_queue",
        "redriven_to": "redriven.redriven_to",
    }


def _of(name: str) -> str:
    return f"of_message_{name}"
