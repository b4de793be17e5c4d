"""How each lease and each message ended, from the facts: the rows of `leases` and `messages`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from veil.pipeline.lifecycles.facts import HOUR_MS, PART, STORED, STORED_OF_MESSAGES, STRUCTS, merged_facts
from veil.pipeline.lifecycles.tables import LEASES, MESSAGES
from veil.pipeline.sql import ms_between, named, struct_of, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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


TABLE: Final = "table"
_IS_MESSAGE: Final = "(`table` = 'messages')"
_HIDDEN: Final = {"duplicate": "boolean"}  # of a lease, beside the facts
_PLACE: Final = ("region", "account", "queue")
_ABOUT: Final = ("message_id", "message_type", "body_bytes")


@cache
def lives_schema() -> StructType:
    """The columns of the files of `leases` and `messages`."""
    fields: dict[str, str] = {}
    for table in (LEASES, MESSAGES):
        for field in struct_of(table):
            fields.setdefault(field.name, field.dataType.simpleString())
    for name, type_ in {**STORED, **_HIDDEN}.items():
        fields.setdefault(name, type_)
    return struct_of(", ".join(f"{name} {type_}" for name, type_ in fields.items()))


def lives(facts: DataFrame, newest: str) -> DataFrame:
    """The rows of both tables, with `table` and `part` in front, from facts that are spread by PART and TASK. `newest` is the
    last known instant, in SQL."""
    leases = merged_facts(facts, PART, TASK)
    rows = with_message(measured(judged(with_neighbours(leases), newest), newest))
    # A message whose send is not in the journal has no row of its own yet: its first lease makes one.
    tables = """explode(case
        when delivery = 0 then array('messages')
        when is_first then array('messages', 'leases')
        else array('leases') end)"""
    return rows.selectExpr("*", *named({TABLE: tables})).selectExpr(f"`{TABLE}`", PART, *named(_columns()))


def _columns() -> dict[str, str]:
    of_messages = message_columns()
    inside = {member: f"{name}.{member}" for name, members in STRUCTS.items() for member in members}
    of_leases = {*struct_of(LEASES).fieldNames(), *STORED, *_HIDDEN} - {*STORED_OF_MESSAGES}
    columns = {}
    for field in lives_schema():
        name = field.name
        own = inside.get(name, name)
        if name == "hour":
            value = f"timestamp_millis(cast({PART} as bigint) * {HOUR_MS})"
        elif name == "seq":
            value = own
        elif name == "delivery":
            value = f"if({_IS_MESSAGE}, 0, {own})"
        elif name == "home_rank" or name in STRUCTS["setting"]:
            # A message that was made from a lease has this from there: no fact of its own.
            value = where(f"not {_IS_MESSAGE} or delivery = 0", own)
        elif name in _PLACE:
            value = f"if({_IS_MESSAGE}, message_home.{name}, {own})"
        elif name in _ABOUT:
            knows = f"not {_IS_MESSAGE} and home.message_id is not null"
            value = f"if({knows}, {own}, message_home.{name})"
        elif name in of_messages:
            value = f"if({_IS_MESSAGE}, {of_messages[name]}, {own if name in of_leases else 'null'})"
        elif name in STORED_OF_MESSAGES:
            value = where(_IS_MESSAGE, own)
        else:
            value = where(f"not {_IS_MESSAGE}", own)
        columns[name] = f"cast({value} as {field.dataType.simpleString()})"
    return columns
