"""From facts to rows of `leases` and `messages`, both at once: they are written by one job.

The files of both tables have the same columns: the public ones of either, and the hidden facts that later runs merge with.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from veil.pipeline.facts import HOUR_MS, PART, STORED, STORED_OF_MESSAGES, STRUCTS, merged_facts
from veil.pipeline.leases import TASK, judged, measured, with_neighbours
from veil.pipeline.messages import message_columns, with_message
from veil.pipeline.schemas import struct_of
from veil.pipeline.tables import LEASES, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

TABLE: Final = "table"
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


def lives(facts: DataFrame, newest: Column) -> DataFrame:
    """The rows of both tables, with `table` and `part` in front, from facts that are spread by PART and TASK."""
    from pyspark.sql import functions as F  # noqa: N812

    leases = merged_facts(facts, PART, TASK)
    rows = with_message(measured(judged(with_neighbours(leases), newest), newest))
    # A message whose send is not in the journal has no row of its own yet: its first lease makes one.
    tables = (
        F.when(F.col("delivery") == 0, F.array(F.lit("messages")))
        .when(F.col("is_first"), F.array(F.lit("messages"), F.lit("leases")))
        .otherwise(F.array(F.lit("leases")))
    )
    return rows.withColumn(TABLE, F.explode(tables)).select(TABLE, PART, *_columns())


def _columns() -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    is_message = F.col(TABLE) == "messages"
    is_own = ~is_message | (F.col("delivery") == 0)  # not made from a lease
    of_messages = message_columns()
    inside = {member: f"{name}.{member}" for name, members in STRUCTS.items() for member in members}
    knows = F.col("home.message_id").isNotNull()
    of_leases = {*struct_of(LEASES).fieldNames(), *STORED, *_HIDDEN} - {*STORED_OF_MESSAGES}
    columns = []
    for field in lives_schema():
        name = field.name
        own = F.col(inside.get(name, name))
        if name == "hour":
            value = F.timestamp_millis(F.col(PART).cast("bigint") * HOUR_MS)
        elif name == "seq":
            value = own
        elif name == "delivery":
            value = F.when(is_message, 0).otherwise(own)
        elif name == "home_rank":
            # What a row has from another one is no fact of its own.
            value = F.when(is_own, own)
        elif name in _PLACE:
            value = F.when(is_message, F.col(f"message_home.{name}")).otherwise(own)
        elif name in _ABOUT:
            value = F.when(~is_message & knows, own).otherwise(F.col(f"message_home.{name}"))
        elif name in of_messages:
            value = F.when(is_message, of_messages[name])
            value = value.otherwise(own) if name in of_leases else value
        elif name in STORED_OF_MESSAGES:
            value = F.when(is_message, own)
        else:
            value = F.when(~is_message, own)
        columns.append(value.cast(field.dataType).alias(name))
    return columns
