"""Whether engines made the same tables: every column of every row goes into the comparison, and the order into none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb

from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import files_of_table
from veil.pipeline.lifecycles.tables import LEASES, MESSAGES, QUEUE_HOURS

_SUMS: Final = ("queue_hours", "queue_days", "queue_months")
_KEYS: Final = {
    "leases": ("seq", "delivery"),
    "messages": ("seq",),
    **dict.fromkeys(_SUMS, ("hour", "region", "account", "queue", "message_type")),
}
_SCHEMAS: Final = {"leases": LEASES, "messages": MESSAGES, **dict.fromkeys(_SUMS, QUEUE_HOURS)}
_COUNTED: Final = {"leases": "how", "messages": "outcome"}
_SUMMED: Final = {
    "leases": ("extensions", "held_ms", "processing_ms", "recovery_ms"),
    "messages": ("leases", "duplicates", "wait_ms", "wasted_ms", "end_to_end_ms"),
    **dict.fromkeys(_SUMS, ("sent", "leases", "deleted", "overrun", "held_ms", "wasted_ms")),
}
_HISTOGRAMS: Final = (
    "processing", "processing_failed", "processing_lapsed", "processing_censored", "waiting", "recovery", "recovery_unknown",
)  # fmt: skip
# One form of each type, however an engine writes it.
_FORMS: Final = {
    "timestamp": "epoch_us({0})",
    "string": "{0}::varchar",
    "int": "{0}::bigint",
    "bigint": "{0}::bigint",
    "boolean": "{0}::boolean",
}
_HISTOGRAM_FORM: Final = (
    "list_sort(list_transform({0}, lambda each: each.bucket::bigint * 4294967296 + each.count::bigint))"
)
Digest = dict[str, Any]


def columns(table: str) -> dict[str, str]:
    """The columns of a table and their types, as `veil.pipeline.lifecycles.tables` has them."""
    found = {}
    for line in _SCHEMAS[table].strip().splitlines():
        name, kind = line.split()[:2]
        found[name] = kind.rstrip(",")
    return found


def digest(files: dict[str, list[str]]) -> Digest:
    """What the tables in these files come to: counts and sums for people, and a hash of each column by key."""
    found: Digest = {}
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        for table, paths in files.items():
            known = columns(table)
            forms = {
                name: _FORMS.get(kind, _HISTOGRAM_FORM).format(f'"{name}"') for name, kind in known.items()
            }
            key = ", ".join(forms[name] for name in _KEYS[table])
            asked = {"rows": "count(*)"}
            asked |= {f"sum of {name}": f'sum("{name}")::bigint' for name in _SUMMED[table]}
            if table in _SUMS:
                asked |= {
                    f"in {name}": f"sum(list_sum(list_transform({name}, lambda each: each.count)))::bigint"
                    for name in _HISTOGRAMS
                }
            asked |= {
                f"column {name}": f"sum((hash({key}, {form}) % 1000000007)::bigint)::bigint"
                for name, form in forms.items()
            }
            values = db.execute(
                f"select {', '.join(asked.values())} from read_parquet($1, hive_partitioning = false)",
                [paths],
            ).fetchone()
            found[table] = dict(zip(asked, values or (), strict=True))
            if table in _COUNTED:
                rows = db.execute(
                    f"select {_COUNTED[table]}, count(*) from read_parquet($1, hive_partitioning = false) group by 1 order by 1",
                    [paths],
                ).fetchall()
                found[table] |= {f"{_COUNTED[table]} {name}": count for name, count in rows}
    return found


def differences(one: Digest, other: Digest) -> list[str]:
    """Where two digests differ, in words; none when the tables are the same."""
    found = []
    for table in one:
        for what in {**one[table], **other[table]}:
            left, right = one[table].get(what), other[table].get(what)
            if left != right:
                detail = "" if what.startswith("column") else f" {left} and {right}"
                found.append(f"{table}: {what}{detail}")
    return found


def table_files(engine: str, folder: Path) -> dict[str, list[str]]:
    """The files of the tables: Spark's by its manifest, the others' one by one."""
    if engine != "spark":
        return {table: [str(folder / f"{table}.parquet")] for table in _KEYS}
    tables = Storage.at(folder)
    return {table: [str(folder / name) for name in files_of_table(tables, table)] for table in _KEYS}
