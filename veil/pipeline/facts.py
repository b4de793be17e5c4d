"""What the events say, folded into one row of facts per lease (and one per message, as delivery 0).

Every fact is a minimum, a maximum or a sum over events, so facts of old and new events merge in any order, and it does not
matter in how many runs the events of a lease came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.core.event import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_MS: Final = 3_600_000
SEQ_BITS: Final = 20  # of the order key, below the millisecond of the send
# Of the message, wherever it is; the other kinds are of a lease.
_OF_THE_MESSAGE: Final = (Kind.SENT, Kind.REDRIVEN, Kind.EXPIRED, Kind.PURGED)

# name → type. Those marked below are hidden: they stand in the files of `leases` and `messages` beside the public columns.
FACTS: Final = {
    "seq": "bigint",
    "delivery": "int",
    # Where it happened: as the first of `sent` or `received`, `dead_lettered` and anything else says. A message that changed
    # to its dead letters has later events in another queue.
    "place_rank": "int",
    "region": "string",
    "account": "string",
    "queue": "string",
    "message_id": "string",
    "message_type": "string",
    "body_bytes": "int",
    # of a message
    "sent_at": "timestamp",
    "available_at": "timestamp",
    "redriven_at": "timestamp",
    "redriven_to": "string",
    "expired_at": "timestamp",
    "purged_at": "timestamp",
    # of a lease
    "received_at": "timestamp",
    "first_deadline": "timestamp",
    "receive_count": "int",
    "caller_key": "string",
    "caller_address": "string",
    "user_agent": "string",
    "extensions": "int",
    "last_extended_at": "timestamp",
    # The latest receive, extension or release: it set the deadline.
    "set_at": "timestamp",
    "set_position": "bigint",
    "deadline": "timestamp",
    "set_released": "boolean",
    "undone_at": "timestamp",
    "deleted_at": "timestamp",
    "delete_refused_at": "timestamp",
    "refused_at": "timestamp",
    "dead_lettered_at": "timestamp",
    "dead_letter_queue": "string",
}
MESSAGE_FACTS: Final = ("sent_at", "available_at", "redriven_at", "redriven_to", "expired_at", "purged_at")
_KEYS: Final = ("seq", "delivery")
_PLACE: Final = ("place_rank", "region", "account", "queue")
_SETTING: Final = ("set_at", "set_position", "deadline", "set_released")
_LEAST: Final = (
    "sent_at", "available_at", "redriven_at", "expired_at", "purged_at", "received_at", "first_deadline", "undone_at",
    "deleted_at", "delete_refused_at", "dead_lettered_at",
)  # fmt: skip
_SUM: Final = ("extensions",)
PART: Final = "part"  # the hour of the send, as whole hours since 1970: the partition of every row


def facts_of_events(events: DataFrame) -> DataFrame:
    """One row of facts per event, in the columns of FACTS."""
    from pyspark.sql import functions as F  # noqa: N812

    def of(*kinds: Kind) -> Column:
        labels = [kind.label for kind in kinds]
        return F.col("kind") == labels[0] if len(labels) == 1 else F.col("kind").isin(labels)

    at, deadline = F.col("at"), F.col("deadline")
    is_setting = of(Kind.RECEIVED, Kind.EXTENDED, Kind.RELEASED)
    is_released = of(Kind.RELEASED)
    facts = {
        "seq": F.col("seq"),
        "delivery": F.when(of(*_OF_THE_MESSAGE), 0).otherwise(F.col("delivery")),
        "place_rank": F.when(of(Kind.SENT, Kind.RECEIVED), 0).when(of(Kind.DEAD_LETTERED), 1).otherwise(2),
        "region": F.col("region"),
        "account": F.col("account"),
        "queue": F.col("queue"),
        "message_id": F.col("message_id"),
        "message_type": F.col("message_type"),
        "body_bytes": F.col("body_bytes"),
        "sent_at": F.when(of(Kind.SENT), at),
        "available_at": F.when(of(Kind.SENT), F.coalesce(deadline, at)),
        "redriven_at": F.when(of(Kind.REDRIVEN), at),
        "redriven_to": F.when(of(Kind.REDRIVEN), F.col("other_queue")),
        "expired_at": F.when(of(Kind.EXPIRED), at),
        "purged_at": F.when(of(Kind.PURGED), at),
        "received_at": F.when(of(Kind.RECEIVED), at),
        "first_deadline": F.when(of(Kind.RECEIVED), deadline),
        "receive_count": F.when(of(Kind.RECEIVED), F.col("receive_count")),
        "caller_key": F.when(of(Kind.RECEIVED), F.col("caller_key")),
        "caller_address": F.when(of(Kind.RECEIVED), F.col("caller_address")),
        "user_agent": F.when(of(Kind.RECEIVED), F.col("user_agent")),
        "extensions": F.when(of(Kind.EXTENDED), 1).otherwise(0),
        "last_extended_at": F.when(of(Kind.EXTENDED), at),
        "set_at": F.when(is_setting, at),
        "set_position": F.when(is_setting, F.col("position")),
        # A release is a deadline of now.
        "deadline": F.when(is_released, at).when(is_setting, deadline),
        "set_released": F.when(is_setting, is_released),
        "undone_at": F.when(of(Kind.UNDONE), at),
        "deleted_at": F.when(of(Kind.DELETED), at),
        "delete_refused_at": F.when(of(Kind.DELETE_REFUSED), at),
        "refused_at": F.when(of(Kind.DELETE_REFUSED, Kind.EXTENSION_REFUSED), at),
        "dead_lettered_at": F.when(of(Kind.DEAD_LETTERED), at),
        "dead_letter_queue": F.when(of(Kind.DEAD_LETTERED), F.col("other_queue")),
    }
    return events.select(*(facts[name].cast(type_).alias(name) for name, type_ in FACTS.items()))


def stored_facts(rows: DataFrame, *, of_messages: bool) -> DataFrame:
    """The facts in rows of `leases` or `messages` as they are stored, without what was derived from other rows."""
    from pyspark.sql import functions as F  # noqa: N812

    own = {*_KEYS, *_PLACE, "message_id", "message_type", "body_bytes"}
    facts = []
    for name, type_ in FACTS.items():
        if name in own or (name in MESSAGE_FACTS) == of_messages:
            facts.append(F.col(name))
        else:
            facts.append(F.lit(0 if name in _SUM else None).cast(type_).alias(name))
    return rows.select(*facts)


def merged_facts(facts: DataFrame, *keys: str) -> DataFrame:
    """One row per lease; `keys` are further columns that depend on seq alone, put in front of it."""
    from pyspark.sql import functions as F  # noqa: N812

    merged = []
    for name in FACTS:
        if name in (*_KEYS, *_PLACE[1:], *_SETTING[1:]):
            continue
        if name == _PLACE[0]:
            # Without a rank the place was taken from another row, and is taken anew.
            merged.append(F.min(F.when(F.col(_PLACE[0]).isNotNull(), F.struct(*_PLACE))).alias("place"))
        elif name == _SETTING[0]:
            merged.append(F.max(F.when(F.col(_SETTING[0]).isNotNull(), F.struct(*_SETTING))).alias("setting"))
        else:
            fold = F.sum if name in _SUM else F.min if name in _LEAST else F.max
            merged.append(fold(name).cast(FACTS[name]).alias(name))
    grouped = facts.groupBy(*keys, *_KEYS).agg(*merged)
    inside = {name: F.col(f"place.{name}") for name in _PLACE} | {
        name: F.col(f"setting.{name}") for name in _SETTING
    }
    return grouped.select(*keys, *(inside.get(name, F.col(name)).alias(name) for name in FACTS))


def part_of_seq() -> Column:
    """The partition of a row, from its `seq`."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"cast(shiftright(seq, {SEQ_BITS}) div {HOUR_MS} as int)")


def part_of(seq: int) -> int:
    """The same for one order key."""
    return (seq >> SEQ_BITS) // HOUR_MS
