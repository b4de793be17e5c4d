"""Rows of `queue_hours` and `queue_days` written where the pipeline reads them, without Spark: for benchmarks and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from veil.journal.place import Place
from veil.pipeline.manifest import Hour, Manifest, save_manifest
from veil.pipeline.tables import QUEUE_HOURS

HISTOGRAM: Final = pa.list_(pa.struct([pa.field("bucket", pa.int32()), pa.field("count", pa.int64())]))
_TYPES: Final = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "bigint": pa.int64(),
    "array<struct<bucket:": HISTOGRAM,
}


def _schema() -> Any:
    lines = [line.split() for line in QUEUE_HOURS.strip().rstrip(",").split(",\n")]
    return pa.schema(
        [pa.field(name, _TYPES[type_.rstrip(",")], "not" not in rest) for name, type_, *rest in lines]
    )


SCHEMA: Final = _schema()


def row(hour: datetime, queue: str, message_type: str = "", **values: Any) -> dict[str, Any]:
    """A row: counts are 0 and histograms empty unless given; histograms as counts by bucket."""
    filled: dict[str, Any] = {"region": "us-east-1", "account": "000000000000"}
    for field in SCHEMA:
        if field.type == HISTOGRAM:
            histogram: Mapping[int, int] = values.pop(field.name, Counter())
            filled[field.name] = [
                {"bucket": bucket, "count": histogram[bucket]} for bucket in sorted(histogram)
            ]
        elif field.type == pa.int64() and not field.nullable:
            filled[field.name] = values.pop(field.name, 0)
    named = {"hour": hour, "queue": queue, "message_type": message_type}
    return filled | {"window_ms": None, "window_at": None} | values | named


def write_tables(
    place: Place, days: Mapping[datetime, Any], hours: Mapping[datetime, Any] | None = None
) -> None:
    """Make these the tables: Arrow tables, or lists of rows, by day (and by hour)."""
    manifest_days = {
        _whole(day, 86_400): [_write(place, "queue_days", day, rows)] for day, rows in days.items()
    }
    manifest_hours = {
        _whole(hour, 3_600): Hour(queue_hours=(_write(place, "queue_hours", hour, rows),))
        for hour, rows in (hours or {}).items()
    }
    save_manifest(place, Manifest(generation=1, hours=manifest_hours, days=manifest_days))


def _whole(instant: datetime, length_s: int) -> int:
    return int(instant.astimezone(UTC).timestamp()) // length_s


def _write(place: Place, table: str, instant: datetime, rows: Sequence[dict[str, Any]] | Any) -> str:
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
