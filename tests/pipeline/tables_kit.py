"""The tables as plain rows, to be compared with what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.pipeline.lifecycle_model import Row, Tables
from veil.journal.place import Place
from veil.pipeline.table_store import TABLES, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(spark: SparkSession, tables: Place, name: str) -> list[Row]:
    """The rows of a table, with instants in milliseconds."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import TimestampType

    table = read_table(spark, tables, name)
    columns = [
        F.unix_millis(field.name).alias(field.name)
        if isinstance(field.dataType, TimestampType)
        else F.col(field.name)
        for field in table.schema
    ]
    return [
        {key: _plain(value) for key, value in row.asDict().items()}
        for row in table.select(*columns).collect()
    ]


def all_rows(spark: SparkSession, tables: Place) -> Tables:
    """All tables, in one order."""
    return {name: in_order(rows_of(spark, tables, name)) for name in TABLES}


def in_order(rows: list[Row]) -> list[Row]:
    """The rows by what identifies them."""
    keys = ("hour", "region", "account", "queue", "message_type", "seq", "delivery")
    return sorted(rows, key=lambda row: [str(row.get(key)) for key in keys])


def difference(found: Tables, expected: Tables) -> str:
    """The first difference in a sentence, or nothing."""
    for name in expected:
        left, right = in_order(found[name]), in_order(expected[name])
        for one, other in zip(left, right, strict=False):
            if one != other:
                fields = [key for key in other if one.get(key) != other[key]]
                which = {key: other.get(key) for key in ("queue", "seq", "delivery", "how", "outcome")}
                return f"{name} {which}: " + ", ".join(
                    f"{key} {one.get(key)} not {other[key]}" for key in fields
                )
        if len(left) != len(right):
            return f"{name}: {len(left)} rows, not {len(right)}"
    return ""


def _plain(value: Any) -> Any:
    return [tuple(each) for each in value] if isinstance(value, list) else value
