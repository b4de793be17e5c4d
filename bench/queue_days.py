"""Rows of `queue_hours`, `queue_days` and `queue_months` written where the pipeline reads them, without Spark: for benchmarks
and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import Hour, Manifest, save_manifest
from veil.pipeline.lifecycles.tables import QUEUE_HOURS, arrow_schema, month_of

SCHEMA: Final = arrow_schema(QUEUE_HOURS)
HISTOGRAM: Final = SCHEMA.field("processing").type


def row(hour: datetime, queue: str, message_type: str = "", **values: Any) -> dict[str, Any]:
    """A row: counts are 0 and histograms empty unless given; histograms as counts by bucket."""
    filled: dict[str, Any] = {"region": "us-east-1", "account": "000000000000"}
    for field in SCHEMA:
        if field.type == HISTOGRAM:
            histogram: Mapping[int, int] = values.pop(field.name, Counter())
            filled[field.name] = [
                {"bucket": bucket, "count": histogram[bucket]} for bucket in sorted(histogram)
            ]
        elif field.type == pa.int64() and field.name != "window_ms":
            filled[field.name] = values.pop(field.name, 0)
    named = {"hour": hour, "queue": queue, "message_type": message_type}
    return filled | {"window_ms": None, "window_at": None} | values | named


def write_tables(
    place: Storage,
    days: Mapping[datetime, Any],
    hours: Mapping[datetime, Any] | None = None,
    months: Mapping[datetime, Any] | None = None,
) -> None:
    """Make these the tables: Arrow tables, or lists of rows, by day (and by hour, and by month). Where no months are given,
    they are the sums of the days."""
    manifest_days = {
        _whole(day, 86_400): [_write(place, "queue_days", day, rows)] for day, rows in days.items()
    }
    manifest_months = {
        month_of(_whole(month, 86_400)): [_write(place, "queue_months", month, rows)]
        for month, rows in (summed(days) if months is None else months).items()
    }
    manifest_hours = {
        _whole(hour, 3_600): Hour(queue_hours=(_write(place, "queue_hours", hour, rows),))
        for hour, rows in (hours or {}).items()
    }
    save_manifest(
        place, Manifest(generation=1, hours=manifest_hours, days=manifest_days, months=manifest_months)
    )


def summed(days: Mapping[datetime, Sequence[dict[str, Any]]]) -> dict[datetime, list[dict[str, Any]]]:
    """The rows of the months that these days make up."""
    months: dict[datetime, dict[tuple[Any, ...], list[dict[str, Any]]]] = {}
    for day, rows in days.items():
        for each in rows:
            key = tuple(each[name] for name in ("region", "account", "queue", "message_type"))
            months.setdefault(day.replace(day=1, hour=0), {}).setdefault(key, []).append(each)
    return {month: [_sum(month, rows) for rows in keys.values()] for month, keys in months.items()}


def _sum(month: datetime, rows: list[dict[str, Any]]) -> dict[str, Any]:
    latest = max(rows, key=lambda each: each["window_at"] or month)
    together = {**latest, "hour": month}
    for field in SCHEMA:
        if field.type == HISTOGRAM:
            counts: Counter[int] = Counter()
            for each in rows:
                counts.update({pair["bucket"]: pair["count"] for pair in each[field.name]})
            together[field.name] = [{"bucket": bucket, "count": counts[bucket]} for bucket in sorted(counts)]
        elif field.type == pa.int64() and field.name != "window_ms":
            together[field.name] = sum(each[field.name] for each in rows)
    return together


def _whole(instant: datetime, length_s: int) -> int:
    return int(instant.astimezone(UTC).timestamp()) // length_s


def _write(place: Storage, table: str, instant: datetime, rows: Sequence[dict[str, Any]] | Any) -> str:
    name = f"generation-1/table={table}/part={instant:%Y%m%d%H}/rows.parquet"
    arrow = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), SCHEMA)
    with place.writing(name) as file:
        pq.write_table(arrow, file, compression="zstd")
    return name


def histogram_column(buckets: Any, counts: Any, offsets: Iterable[int]) -> Any:
    """A column of histograms from flat arrays and where each row begins."""
    pairs = pa.StructArray.from_arrays(
        [pa.array(buckets, pa.int32()), pa.array(counts, pa.int64())], ["bucket", "count"]
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)
