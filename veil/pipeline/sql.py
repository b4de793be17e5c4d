"""Pieces of Spark SQL, and schemas from columns that are written out.

Large plans are written as text, since one put together in Python is thousands of calls to the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def named(expressions: Mapping[str, str]) -> list[str]:
    """Each expression under its name, for `selectExpr`."""
    return [f"{expression} as `{name}`" for name, expression in expressions.items()]


def quoted(words: Iterable[str]) -> str:
    """The words as literals in a list. They are our own: none of them has a quote in it."""
    return ", ".join(f"'{word}'" for word in words)


def where(condition: str, value: str) -> str:
    """The value where the condition holds, null elsewhere."""
    return f"case when {condition} then {value} end"


def struct_of_columns(members: Mapping[str, str]) -> str:
    """A struct of these members, by name."""
    return "named_struct(" + ", ".join(f"'{name}', {value}" for name, value in members.items()) + ")"


def ms_between(start: str, end: str) -> str:
    """Whole milliseconds from one instant to the other, never negative; null where either is not known."""
    ms = f"unix_millis({end}) - unix_millis({start})"
    return f"case when {ms} < 0 then 0L else {ms} end"


@cache
def struct_of(ddl: str) -> StructType:
    """The columns of a table such as those in `tables.py`."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """The same columns as Arrow has them; instants in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
