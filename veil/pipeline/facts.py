"""What the events say, folded into one row of facts per lease (and one per message, as delivery 0).

Every fact is a minimum, a maximum or a sum over events, so facts of old and new events merge in any order, and it does not
matter in how many runs the events of a lease came in. What is told by one event stands together in a struct: a row then
has few columns, and what is null in it costs nothing to sort, merge and pass on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.core.event import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_MS: Final = 3_600_000
SEQ_BITS: Final = 20  # of the order key, below the millisecond of the send
PART: Final = "part"  # the hour of the send, as whole hours since 1970: the partition of every row
# Of the message, wherever it is; the other kinds are of a lease.
_OF_THE_MESSAGE: Final = (Kind.SENT, Kind.REDRIVEN, Kind.EXPIRED, Kind.PURGED)

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
# The latest receive, extension or release: it set the deadline. Positions tell what came first in one millisecond.
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
_OF_BOTH: Final = ("home",)
_OF_MESSAGES: Final = ("sent", "redriven", "expired_at", "purged_at")
_GREATEST: Final = ("setting", "last_extended_at", "refused_at")
_SUM: Final = "extensions"
NAMES: Final = (*STRUCTS, *_PLAIN)

# Name → type of every fact as it is stored, one column each, in the files of `leases` and `messages`.
STORED: Final = {name: type_ for members in STRUCTS.values() for name, type_ in members.items()} | _PLAIN
STORED_OF_MESSAGES: Final = tuple(member for name in _OF_MESSAGES for member in STRUCTS.get(name, (name,)))


def facts_of_events(events: DataFrame) -> DataFrame:
    """One row of facts per event: seq, delivery and NAMES."""
    from pyspark.sql import functions as F  # noqa: N812

    def of(*kinds: Kind) -> Column:
        labels = [kind.label for kind in kinds]
        return F.col("kind") == labels[0] if len(labels) == 1 else F.col("kind").isin(labels)

    at, deadline = F.col("at"), F.col("deadline")
    is_released = of(Kind.RELEASED)
    home_rank = (
        F.when(of(Kind.SENT, Kind.RECEIVED), 0)
        .when(of(Kind.DEAD_LETTERED), 1)
        .when(F.col("message_id").isNotNull(), 2)
        .otherwise(_UNKNOWING)
    )
    values = {
        "home": F.struct(home_rank.alias("home_rank"), *list(_HOME)[1:]),
        "sent": F.when(of(Kind.SENT), _struct("sent", at, F.coalesce(deadline, at))),
        "redriven": F.when(of(Kind.REDRIVEN), _struct("redriven", at, F.col("other_queue"))),
        "received": F.when(
            of(Kind.RECEIVED),
            _struct("received", at, deadline, *(F.col(name) for name in list(_RECEIVED)[2:])),
        ),
        # A release is a deadline of now.
        "setting": F.when(
            of(Kind.RECEIVED, Kind.EXTENDED, Kind.RELEASED),
            _struct(
                "setting", at, F.col("position"), F.when(is_released, at).otherwise(deadline), is_released
            ),
        ),
        "dead": F.when(of(Kind.DEAD_LETTERED), _struct("dead", at, F.col("other_queue"))),
        "expired_at": F.when(of(Kind.EXPIRED), at),
        "purged_at": F.when(of(Kind.PURGED), at),
        "extensions": F.when(of(Kind.EXTENDED), 1).otherwise(0),
        "last_extended_at": F.when(of(Kind.EXTENDED), at),
        "undone_at": F.when(of(Kind.UNDONE), at),
        "deleted_at": F.when(of(Kind.DELETED), at),
        "delete_refused_at": F.when(of(Kind.DELETE_REFUSED), at),
        "refused_at": F.when(of(Kind.DELETE_REFUSED, Kind.EXTENSION_REFUSED), at),
    }
    delivery = F.when(of(*_OF_THE_MESSAGE), 0).otherwise(F.col("delivery"))
    return events.select("seq", delivery.alias("delivery"), *(values[name].alias(name) for name in NAMES))


def stored_facts(rows: DataFrame) -> DataFrame:
    """The facts in rows of `leases` and `messages` as they are stored, without what was derived from other rows."""
    from pyspark.sql import functions as F  # noqa: N812

    is_message = F.col("delivery") == 0
    facts = []
    for name in NAMES:
        is_own = is_message if name in _OF_MESSAGES else ~is_message
        if name in STRUCTS:
            first = next(iter(STRUCTS[name]))
            # Without its first member it was not told by an event of this row. What a message is about may have been told by
            # another row too, where its own events did not know.
            members = [
                F.when(F.col("home_rank") < _UNKNOWING, F.col(member)).alias(member)
                if member in _ABOUT
                else F.col(member)
                for member in STRUCTS[name]
            ]
            is_told = F.col(first).isNotNull()
            value = F.when(is_told if name in _OF_BOTH else is_told & is_own, F.struct(*members))
        else:
            value = F.when(is_own, F.col(name))
            value = value.otherwise(0) if name == _SUM else value
        facts.append(value.alias(name))
    return rows.select("seq", "delivery", *facts)


def merged_facts(facts: DataFrame, *keys: str) -> DataFrame:
    """One row per lease; `keys` are further columns that depend on seq alone, put in front of it."""
    from pyspark.sql import functions as F  # noqa: N812

    merged = []
    for name in NAMES:
        fold = F.max if name in _GREATEST else F.min
        value = F.sum(name).cast("int") if name == _SUM else fold(name)
        merged.append(value.alias(name))
    return facts.groupBy(*keys, "seq", "delivery").agg(*merged)


def part_of_seq() -> Column:
    """The partition of a row, from its `seq`."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"cast(shiftright(seq, {SEQ_BITS}) div {HOUR_MS} as int)")


def part_of(seq: int) -> int:
    """The same for one order key."""
    return (seq >> SEQ_BITS) // HOUR_MS


def part_of_seq_range(part: int) -> tuple[int, int]:
    """The first order key of a partition, and the first after it."""
    return (part * HOUR_MS) << SEQ_BITS, ((part + 1) * HOUR_MS) << SEQ_BITS


def _struct(name: str, *values: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    members = STRUCTS[name]
    named = zip(values, members.items(), strict=True)
    return F.struct(*(value.cast(type_).alias(member) for value, (member, type_) in named))
