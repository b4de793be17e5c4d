"""`veil pipeline dead-letters`: what rests among the dead letters and why, as groups, without receiving any of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from veil.pipeline.dead_letters.groups import SNIPPET_CHARS, grouped
from veil.pipeline.dead_letters.letters import TYPE_ATTRIBUTES, dead_letters
from veil.pipeline.dead_letters.reading import peeked
from veil.pipeline.dead_letters.table import write_groups
from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.table_store import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from veil.journal.place import Place

_HISTORY_TABLES: Final = ("leases", "messages")


@dataclass(frozen=True, slots=True)
class Analysis:
    """What an analysis came to; the groups are in the table."""

    queues: tuple[str, ...]
    read_s: float
    group_s: float


def analyse(
    spark: SparkSession,
    where: QueuePlace,
    queues: Sequence[str],
    tables: Place,
    *,
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES,
    now: datetime | None = None,
) -> Analysis:
    """Look at the dead letters of the queues and replace the table `dead_letters` with their groups.

    `where` names the service (its queue is not looked at). Raises NotVeil, ApiError and TablesRefused.
    """
    begun_s = time.monotonic()
    with peeked(spark, where, queues, tables, body_chars_max=SNIPPET_CHARS) as messages:
        read_s = time.monotonic() - begun_s
        leases, lives = history_tables(spark, tables)
        letters = dead_letters(messages, leases, lives, type_attributes=type_attributes)
        write_groups(grouped(letters, now or datetime.now(UTC)), tables)
    return Analysis(tuple(queues), read_s, time.monotonic() - begun_s - read_s)


def history_tables(spark: SparkSession, tables: Place) -> tuple[DataFrame | None, DataFrame | None]:
    """The tables `leases` and `messages`; None where `veil pipeline lifecycles` has not made them."""
    from veil.pipeline.manifest import load_manifest

    manifest = load_manifest(tables)
    leases, messages = (
        read_table(spark, tables, name) if manifest.files_of(name) else None for name in _HISTORY_TABLES
    )
    return leases, messages
