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
from veil.pipeline.sql_text import named, where
from veil.pipeline.tables import LEASES, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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
