"""Pieces of Spark SQL that several jobs share: its functions, schemas from columns that are written out, attributes of
messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, functions
    from pyspark.sql.types import StructType

    F = functions
else:

    class _Functions:
        """Spark's functions, imported with the first that is used: `--help`, and what needs no Spark, is quick without."""

        def __getattr__(self, name):
            from pyspark.sql import functions

            return getattr(functions, name)

    F = _Functions()


@cache
def struct_of(ddl: str) -> StructType:
    """The columns of a table such as those in `lifecycles/tables.py`."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """The same columns as Arrow has them; instants in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


# ---- attributes of messages, as the source gives them and the sink takes them

ATTRIBUTE: Final = "struct<data_type: string, string_value: string, binary_value: binary>"
ATTRIBUTES: Final = f"map<string, {ATTRIBUTE}>"
# What the server's journal takes for the type of a message, unless it is set otherwise.
TYPE_ATTRIBUTES: Final = ("MessageType", "message_type", "Type", "type")
TYPE_CHARS_MAX: Final = 256


def attribute_text(name: str) -> Column:
    """The text of the attribute of that name; null where there is none."""
    return F.element_at("attributes", F.lit(name)).getField("string_value")


def message_type(names: Sequence[str]) -> Column:
    """The type of a message: the text of the first of these attributes that it has."""
    each = [F.element_at("attributes", F.lit(name)) for name in names]
    texts = [
        F.when(one.getField("data_type").startswith("String"), one.getField("string_value")) for one in each
    ]
    return F.left(F.coalesce(*texts, F.lit(None)), F.lit(TYPE_CHARS_MAX))


def attribute_value(data_type: str, text: Column | None = None, raw: Column | None = None) -> Column:
    """An attribute of that type, with a text or bytes."""
    return F.struct(
        F.lit(data_type).alias("data_type"),
        (F.lit(None) if text is None else text).cast("string").alias("string_value"),
        (F.lit(None) if raw is None else raw).cast("binary").alias("binary_value"),
    )
