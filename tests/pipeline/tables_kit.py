"""The tables as plain rows, to be compared with what they should be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from tests.pipeline.lifecycle_model import Row, Tables
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import TABLES, files_of_table


def rows_of(tables: Storage, name: str) -> list[Row]:
    """The rows of a table, with instants in milliseconds; read without Spark, which takes far longer for so few."""
    wanted = [line.split()[0] for line in TABLES[name].strip().splitlines()]
    rows = list[Row]()
    for file in files_of_table(tables, name):
        with tables.open_input(file) as opened:
            found = pq.ParquetFile(opened).read(columns=wanted)
        for at, field in enumerate(found.schema):
            if pa.types.is_timestamp(field.type):
                instants = pc.divide(found[at].cast("timestamp[us]").cast("int64"), 1_000)
                found = found.set_column(at, field.name, instants)
        rows += ({key: _plain(value) for key, value in row.items()} for row in found.to_pylist())
    return rows


def all_rows(tables: Storage) -> Tables:
    """All tables, in one order."""
    return {name: in_order(rows_of(tables, name)) for name in TABLES}


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
    return [tuple(each.values()) for each in value] if isinstance(value, list) else value
