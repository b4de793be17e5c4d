"""From facts to rows of `leases` and `messages`, both at once: they are written by one job.

The files of both tables have the same columns: the public ones of either, and the hidden facts that later runs merge with.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from veil.pipeline.facts import FACTS, HOUR_MS, MESSAGE_FACTS, PART, merged_facts
from veil.pipeline.leases import TASK, judged, measured, with_neighbours
from veil.pipeline.messages import message_columns, with_message
from veil.pipeline.schemas import struct_of
from veil.pipeline.tables import LEASES, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

TABLE: Final = "table"
_HIDDEN: Final = {"duplicate": "boolean"}  # of a lease, beside the facts


@cache
def lives_schema() -> StructType:
    """The columns of the files of `leases` and `messages`."""
    fields: dict[str, str] = {}
    for table in (LEASES, MESSAGES):
        for field in struct_of(table):
            fields.setdefault(field.name, field.dataType.simpleString())
    for name, type_ in {**FACTS, **_HIDDEN}.items():
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
    of_messages = message_columns()
    public = {
        "leases": set(struct_of(LEASES).fieldNames()) | set(_HIDDEN),
        "messages": set(struct_of(MESSAGES).fieldNames()),
    }
    columns = []
    for field in lives_schema():
        name = field.name
        if name == "hour":
            value = F.timestamp_millis(F.col(PART).cast("bigint") * HOUR_MS)
        elif name == "delivery":
            value = F.when(is_message, 0).otherwise(F.col(name))
        elif name == "place_rank":
            value = F.when(~is_message | (F.col("delivery") == 0), F.col(name))
        elif name in of_messages:
            lease_value = F.col(name) if name in public["leases"] or name in FACTS else F.lit(None)
            value = F.when(is_message, of_messages[name]).otherwise(
                F.lit(None) if name in MESSAGE_FACTS else lease_value
            )
        elif name in public["messages"]:  # of both tables, the same
            value = F.col(name)
        elif name in MESSAGE_FACTS:
            value = F.when(is_message, F.col(name))
        else:
            value = F.when(~is_message, F.col(name))
        columns.append(value.cast(field.dataType).alias(name))
    return columns
