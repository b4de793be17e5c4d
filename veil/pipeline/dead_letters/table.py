"""The table `dead_letters`: one Parquet file beside the other tables, replaced whole by each analysis."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from veil.journal.place import Place

FILE: Final = "dead_letters.parquet"


@dataclass(frozen=True, slots=True)
class Example:
    """One dead letter of a group."""

    message_id: str
    first_seen: datetime | None
    error_text: str | None
    body: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """One row of the table."""

    analysed_at: datetime
    queue: str
    source: str | None
    message_type: str | None
    error_type: str | None
    fingerprint: str | None
    group_id: str
    messages: int
    in_flight: int
    redriven_before: int
    first_seen: datetime | None
    last_seen: datetime | None
    receive_count_min: int | None
    receive_count_median: int | None
    receive_count_max: int | None
    body_bytes: int
    leases: tuple[tuple[int, str], ...]
    examples: tuple[Example, ...]


def write_groups(groups: DataFrame, tables: Place) -> None:
    """Put the groups in the table's place: whoever reads it finds the last analysis or this one, never a part of either."""
    folder = f"_dead-letters-{uuid4().hex[:12]}"
    try:
        groups.coalesce(1).write.parquet(tables.spark_path(folder))
        (written,) = (
            entry.name for entry in tables.entries(folder) if entry.name.endswith(".parquet") and not entry.is_folder
        )  # fmt: skip
        with tables.open_input(written) as source, tables.writing(FILE) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    finally:
        tables.remove_folder(folder)


def read_groups(tables: Place, most: int | None = None) -> list[Group]:
    """The groups of the last analysis, the largest first, up to so many; none where there was no analysis."""
    return [group for _, group in zip(range(most) if most is not None else _for_ever(), _rows(tables))]  # noqa: B905


def _for_ever() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _rows(tables: Place) -> Iterator[Group]:
    from pyarrow import parquet as pq

    try:
        opened = tables.open_input(FILE)
    except FileNotFoundError:
        return
    with opened, pq.ParquetFile(opened) as file:
        for batch in file.iter_batches(batch_size=1_000):
            for row in batch.to_pylist():
                yield _group(row)


def _group(row: dict[str, Any]) -> Group:
    row["leases"] = tuple((each["messages"], each["leases"]) for each in row["leases"])
    row["examples"] = tuple(
        Example(**{**each, "first_seen": _utc(each["first_seen"])}) for each in row["examples"]
    )
    for name in ("analysed_at", "first_seen", "last_seen"):
        row[name] = _utc(row[name])
    return Group(**row)


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
