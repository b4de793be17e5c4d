"""`veil pipeline dead-letters`: what rests among the dead letters and why, as groups, without receiving any of it.

The groups are one Parquet file beside the other tables, `dead_letters`, replaced whole by each analysis.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from veil.pipeline.dead_letters.letters import SNIPPET_CHARS, dead_letters, grouped
from veil.pipeline.dead_letters.queue import parquet_in, peeked
from veil.pipeline.lifecycles.store import load_manifest, read_table
from veil.pipeline.queues import QueueAddress
from veil.pipeline.sql import TYPE_ATTRIBUTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from veil.journal.storage import Storage

FILE: Final = "dead_letters.parquet"


class LeaseHistory(msgspec.Struct, frozen=True):
    """What came of the attempts of some messages of a group."""

    messages: int
    leases: str


class DeadLetterExample(msgspec.Struct, frozen=True):
    """One dead letter of a group."""

    message_id: str
    first_seen: datetime | None
    error_text: str | None
    body: str | None


class DeadLetterGroup(msgspec.Struct, frozen=True):
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
    leases: tuple[LeaseHistory, ...]
    examples: tuple[DeadLetterExample, ...]
    place: str | None = None  # where the error was raised; older tables do not tell


def write_groups(groups: DataFrame, tables: Storage) -> None:
    """Put the groups in the table's place: whoever reads it finds the last analysis or this one, never a part of either."""
    folder = f"_dead-letters-{uuid4().hex[:12]}"
    try:
        groups.coalesce(1).write.parquet(tables.spark_path(folder))
        (written,) = parquet_in(tables, folder)
        with tables.open_input(written) as source, tables.writing(FILE) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    finally:
        tables.remove_folder(folder)


def read_groups(tables: Storage, most: int | None = None) -> list[DeadLetterGroup]:
    """The groups of the last analysis, the largest first, up to so many; none where there was no analysis."""
    return list(islice(_groups(tables), most))


def _groups(tables: Storage) -> Iterator[DeadLetterGroup]:
    from pyarrow import parquet as pq

    try:
        opened = tables.open_input(FILE)
    except FileNotFoundError:
        return
    with opened, pq.ParquetFile(opened) as file:
        for batch in file.iter_batches(batch_size=1_000):
            yield from msgspec.convert(batch.to_pylist(), list[DeadLetterGroup])


def analyse(
    spark: SparkSession,
    where: QueueAddress,
    queues: Sequence[str],
    tables: Storage,
    *,
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES,
    now: datetime | None = None,
) -> None:
    """Look at the dead letters of the queues and replace the table `dead_letters` with their groups.

    `where` names the service (its queue is not looked at). Raises NotVeil, ApiError and TablesRefused.
    """
    with peeked(spark, where, queues, tables, body_chars_max=SNIPPET_CHARS) as messages:
        leases, lives = history_tables(spark, tables)
        letters = dead_letters(messages, leases, lives, type_attributes=type_attributes)
        write_groups(grouped(letters, now or datetime.now(UTC)), tables)


def history_tables(spark: SparkSession, tables: Storage) -> tuple[DataFrame | None, DataFrame | None]:
    """The tables `leases` and `messages`; None where `veil pipeline lifecycles` has not made them."""
    manifest = load_manifest(tables)
    leases, messages = (
        read_table(spark, tables, name) if manifest.files_of(name) else None
        for name in ("leases", "messages")
    )
    return leases, messages
