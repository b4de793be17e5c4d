"""What the events say, folded into one row of facts per lease (and one per message, as delivery 0).

Every fact is a minimum, a maximum or a sum over events, so facts of old and new events merge in any order, and it does not
matter in how many runs the events of a lease came in. What is told by one event stands together in a struct: a row then
has few columns, and what is null in it costs nothing to sort, merge and pass on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.core.event import Kind
from veil.pipeline.sql import named, quoted, struct_of_columns, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS: Final = 3_600_000
SEQ_BITS: Final = 20  # of the order key, below the millisecond of the send
PART: Final = "part"  # the hour of the send, as whole hours since 1970: the partition of every row
PART_OF_SEQ: Final = f"cast(shiftright(seq, {SEQ_BITS}) div {HOUR_MS} as int)"  # in SQL
# Of the message, wherever it is; the other kinds are of a lease.
_OF_THE_MESSAGE: Final = (Kind.SENT, Kind.DELAYED, Kind.REDRIVEN, Kind.EXPIRED, Kind.PURGED)

# Where it was and what it is about, as the first of `sent` or `received`, `dead_lettered`, anything else and a receipt of a
# message that is gone says. A message that went to its dead letters has later events in another queue.
_HOME: Final = {
    "home_rank": "int",
    "region": "string",
    "account": "string",
    "queue": "string",
    "message_id": "string",
    "message_type": "string",
    "body_bytes": "int",
}
_ABOUT: Final = ("message_id", "message_type", "body_bytes")
_UNKNOWING: Final = 3  # the rank of a receipt of a message that is gone
_RECEIVED: Final = {
    "received_at": "timestamp",
    "first_deadline": "timestamp",
    "receive_count": "int",
    "caller_key": "string",
    "caller_address": "string",
    "user_agent": "string",
}
# The latest receive, extension or release: it set the deadline. Of a message: the latest time that its delay was set anew.
# Positions tell what came first in one millisecond.
_SETTING: Final = {
    "set_at": "timestamp",
    "set_position": "bigint",
    "deadline": "timestamp",
    "set_released": "boolean",
}
STRUCTS: Final = {
    "home": _HOME,
    "sent": {"sent_at": "timestamp", "available_at": "timestamp"},
    "redriven": {"redriven_at": "timestamp", "redriven_to": "string"},
    "received": _RECEIVED,
    "setting": _SETTING,
    "dead": {"dead_lettered_at": "timestamp", "dead_letter_queue": "string"},
}
_PLAIN: Final = {
    "expired_at": "timestamp",
    "purged_at": "timestamp",
    "extensions": "int",
    "last_extended_at": "timestamp",
    "undone_at": "timestamp",
    "deleted_at": "timestamp",
    "delete_refused_at": "timestamp",
    "refused_at": "timestamp",
}
_OF_BOTH: Final = ("home", "setting")
_OF_MESSAGES: Final = ("sent", "redriven", "expired_at", "purged_at")
_GREATEST: Final = ("setting", "last_extended_at", "refused_at")
_SUM: Final = "extensions"
NAMES: Final = (*STRUCTS, *_PLAIN)

# Name → type of every fact as it is stored, one column each, in the files of `leases` and `messages`.
STORED: Final = {name: type_ for members in STRUCTS.values() for name, type_ in members.items()} | _PLAIN
STORED_OF_MESSAGES: Final = tuple(member for name in _OF_MESSAGES for member in STRUCTS.get(name, (name,)))


def facts_of_events(events: DataFrame) -> DataFrame:
    """One row of facts per event: seq, delivery and NAMES."""
    # A release is a deadline of now.
    deadline = f"if({_is(Kind.RELEASED)}, at, deadline)"
    values = {
        "home": struct_of_columns({"home_rank": _HOME_RANK, **{name: name for name in list(_HOME)[1:]}}),
        "sent": where(_is(Kind.SENT), _told("sent", "at", "coalesce(deadline, at)")),
        "redriven": where(_is(Kind.REDRIVEN), _told("redriven", "at", "other_queue")),
        "received": where(_is(Kind.RECEIVED), _told("received", "at", "deadline", *list(_RECEIVED)[2:])),
        "setting": where(
            _is(Kind.RECEIVED, Kind.EXTENDED, Kind.GIVEN_BACK, Kind.RELEASED, Kind.DELAYED),
            _told("setting", "at", "position", deadline, _is(Kind.RELEASED)),
        ),
        "dead": where(_is(Kind.DEAD_LETTERED), _told("dead", "at", "other_queue")),
        "expired_at": where(_is(Kind.EXPIRED), "at"),
        "purged_at": where(_is(Kind.PURGED), "at"),
        "extensions": f"if({_is(Kind.EXTENDED, Kind.GIVEN_BACK)}, 1, 0)",
        "last_extended_at": where(_is(Kind.EXTENDED, Kind.GIVEN_BACK), "at"),
        "undone_at": where(_is(Kind.UNDONE), "at"),
        "deleted_at": where(_is(Kind.DELETED), "at"),
        "delete_refused_at": where(_is(Kind.DELETE_REFUSED), "at"),
        "refused_at": where(_is(Kind.DELETE_REFUSED, Kind.EXTENSION_REFUSED), "at"),
    }
    delivery = f"if({_is(*_OF_THE_MESSAGE)}, 0, delivery)"
    return events.selectExpr("seq", *named({"delivery": delivery, **{name: values[name] for name in NAMES}}))


def stored_facts(rows: DataFrame) -> DataFrame:
    """The facts in rows of `leases` and `messages` as they are stored, without what was derived from other rows."""
    facts = {}
    for name in NAMES:
        is_own = "delivery = 0" if name in _OF_MESSAGES else "delivery != 0"
        if name in STRUCTS:
            # Without its first member it was not told by an event of this row. What a message is about may have been told by
            # another row too, where its own events did not know.
            is_told = f"`{next(iter(STRUCTS[name]))}` is not null"
            members = {
                member: where(f"home_rank < {_UNKNOWING}", member) if member in _ABOUT else member
                for member in STRUCTS[name]
            }
            facts[name] = where(
                is_told if name in _OF_BOTH else f"{is_told} and {is_own}", struct_of_columns(members)
            )
        else:
            facts[name] = f"if({is_own}, {name}, {0 if name == _SUM else 'null'})"
    return rows.selectExpr("seq", "delivery", *named(facts))


def merged_facts(facts: DataFrame, *keys: str) -> DataFrame:
    """One row per lease; `keys` are further columns that depend on seq alone, put in front of it."""
    from pyspark.sql import functions as F  # noqa: N812

    merged = {name: f"{'max' if name in _GREATEST else 'min'}(`{name}`)" for name in NAMES}
    merged[_SUM] = f"cast(sum({_SUM}) as int)"
    return facts.groupBy(*keys, "seq", "delivery").agg(*map(F.expr, named(merged)))


def part_of(seq: int) -> int:
    """The partition of an order key."""
    return (seq >> SEQ_BITS) // HOUR_MS


def part_of_seq_range(part: int) -> tuple[int, int]:
    """The first order key of a partition, and the first after it."""
    return (part * HOUR_MS) << SEQ_BITS, ((part + 1) * HOUR_MS) << SEQ_BITS


def _is(*kinds: Kind) -> str:
    """Whether an event is of one of these kinds, in SQL."""
    return f"kind in ({quoted(kind.label for kind in kinds)})"


_HOME_RANK: Final = f"""case
    when {_is(Kind.SENT, Kind.RECEIVED)} then 0
    when {_is(Kind.DEAD_LETTERED)} then 1
    when message_id is not null then 2
    else {_UNKNOWING} end"""


def _told(name: str, *values: str) -> str:
    """The struct of that name, in SQL."""
    members = zip(STRUCTS[name].items(), values, strict=True)
    return struct_of_columns({member: f"cast({value} as {type_})" for (member, type_), value in members})
