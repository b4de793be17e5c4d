"""A schema as Spark has it, from one that is written out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@cache
def struct_of(ddl: str) -> StructType:
    """The columns of a table such as those in `tables.py`."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found
