"""The journal's schema as pyarrow sees it; imported only where Parquet is written or read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from veil.journal.schema import COLUMNS, Column

TYPES: dict[str, Any] = {
    "text": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "instant": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: Iterable[Column] = COLUMNS) -> Any:
    """The columns as a pyarrow schema."""
    return pa.schema([pa.field(each.name, TYPES[each.kind], each.nullable) for each in columns])


SCHEMA = arrow_schema()
