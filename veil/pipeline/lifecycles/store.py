"""The tables as files: the manifest that names them, reading them, and removing what nobody names any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from veil.core.clock import Trouble
from veil.core.errors import VeilError
from veil.journal.segments import SegmentProblem
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.tables import LEASES, MESSAGES, QUEUE_HOURS, arrow_schema
from veil.pipeline.sql import struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "manifest.json"
VERSION: Final = 4


class TablesRefused(VeilError):
    """The tables cannot be read or written as they are."""


class Hour(msgspec.Struct, frozen=True):
    """The rows of the messages that were sent in one hour: files by table, and what later runs must know of them."""

    leases: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    queue_hours: tuple[str, ...] = ()
    rows: int = 0  # of leases and messages
    open: int = 0  # leases: how they end depends on what time it is


TROUBLES_MAX: Final = 1_000
# For so long, by the events' own time, files that were replaced stay for those who began to read before.
READERS_MS: Final = 15 * 60_000


class Replaced(msgspec.Struct, frozen=True):
    """Files that belong to the tables no more, and the last known instant when they were replaced."""

    newest_ms: int
    files: list[str]


class Manifest(msgspec.Struct, frozen=True):
    """What the tables are. Hours, days and months are whole ones since 1970."""

    version: int = VERSION
    generation: int = 0  # how many times the tables have changed
    store_id: str | None = None  # whose journal it is
    newest_ms: int | None = None  # the last known instant: the newest event
    progress: dict[str, list[tuple[int, int]]] = {}  # journal id → outbox rows that are in the tables
    broken: list[SegmentProblem] = []  # segments that were set aside
    hours: dict[int, Hour] = {}
    days: dict[int, list[str]] = {}
    months: dict[int, list[str]] = {}
    troubles: list[Trouble] = []  # times in which the server could not take renewals, the latest of them
    replaced: list[Replaced] = []  # the latest last; kept for their readers

    def files(self) -> Iterator[str]:
        """Every file that the tables consist of."""
        for hour in self.hours.values():
            yield from (*hour.leases, *hour.messages, *hour.queue_hours)
        for files in (*self.days.values(), *self.months.values()):
            yield from files

    def files_kept(self) -> Iterator[str]:
        """These, and those that may still be read."""
        yield from self.files()
        for each in self.replaced:
            yield from each.files

    def files_of(self, table: str) -> list[str]:
        """The files of one table, oldest hour first."""
        if table in ("queue_days", "queue_months"):
            parts = self.days if table == "queue_days" else self.months
            return [file for part in sorted(parts) for file in parts[part]]
        return [file for hour in sorted(self.hours) for file in getattr(self.hours[hour], table)]


def load_manifest(tables: Storage) -> Manifest:
    """The manifest as it is now; an empty one where there are no tables yet."""
    try:
        content = tables.read(NAME)
    except FileNotFoundError:
        return Manifest()
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise TablesRefused(
                f"{tables.uri}/{NAME} has version {version}, this Veil knows {VERSION}: "
                + (
                    "upgrade Veil"
                    if version > VERSION
                    else "create new tables in another place, with --tables"
                )
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as problem:
        raise TablesRefused(f"{tables.uri}/{NAME} cannot be read: {problem}") from None


def save_manifest(tables: Storage, manifest: Manifest) -> None:
    """Make the tables what the manifest says, from one instant to the next."""
    tables.write(NAME, msgspec.json.encode(manifest))


class _Versioned(msgspec.Struct):
    version: int


TABLES: Final = {
    "leases": LEASES,
    "messages": MESSAGES,
    "queue_hours": QUEUE_HOURS,
    "queue_days": QUEUE_HOURS,
    "queue_months": QUEUE_HOURS,
}
GENERATION: Final = "generation-"  # a folder of each run that changed something begins so
# Asking for each file's length in a job of its own pays only for very many.
_LISTED_BY_JOB: Final = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "2000"}


def read_table(spark: SparkSession, tables: Storage, name: str) -> DataFrame:
    """One of the tables as the last run left it; empty where there are none yet.

    What is read is fixed now: a run that ends meanwhile changes nothing in it, and its files stay for a while (READERS_MS).
    """
    files = files_of_table(tables, name)
    wanted = struct_of(TABLES[name])
    if not files:
        return spark.createDataFrame([], wanted)
    check_files(tables, name, files)
    with spark_set(spark, _LISTED_BY_JOB):
        return spark.read.schema(wanted).parquet(*(tables.spark_path(file) for file in files))


def check_table(name: str) -> None:
    """Raise TablesRefused for a name that no table has."""
    if name not in TABLES:
        raise TablesRefused(f"table {name!r}: expected one of {', '.join(TABLES)}")


def files_of_table(tables: Storage, name: str) -> list[str]:
    """The Parquet files of a table, for whoever reads them without Spark."""
    check_table(name)
    return load_manifest(tables).files_of(name)


def check_files(tables: Storage, name: str, files: Sequence[str]) -> None:
    """See that the files have the columns of the table: one of each generation, which writes all its files alike. Raises
    TablesRefused."""
    from pyarrow import parquet as pq

    for file in {file.partition("/")[0]: file for file in files}.values():
        with reading(tables, file) as opened:
            found = {field.name: field.type for field in pq.ParquetFile(opened).schema_arrow}
        for field in arrow_schema(TABLES[name]):
            if found.get(field.name) != field.type:
                raise TablesRefused(
                    f"table {name}: column {field.name} of {tables.uri}/{file} is {found.get(field.name, 'missing')}, "
                    f"expected {field.type}"
                )


@contextmanager
def reading(tables: Storage, file: str) -> Iterator[Any]:
    """A file of the tables, to be read in the block; raises TablesRefused where it is gone or damaged."""
    import pyarrow as pa

    try:
        with tables.open_input(file) as opened:
            yield opened
    except FileNotFoundError:
        raise TablesRefused(f"{tables.uri}/{file} is gone, though it belongs to the tables") from None
    except (pa.ArrowException, OSError) as problem:
        raise TablesRefused(f"{tables.uri}/{file} cannot be read: {problem}") from None


def remove_orphans(tables: Storage, manifest: Manifest) -> None:
    """Remove the folders of runs that died or whose files have all been replaced, and manifests that they had half written; for
    the only run on the tables."""
    named = {file.partition("/")[0] for file in manifest.files_kept()}
    for entry in tables.entries():
        if entry.is_folder and entry.name.startswith(GENERATION) and entry.name not in named:
            tables.remove_folder(entry.name)
        elif entry.name.startswith(f"_{NAME}."):
            tables.remove(entry.name)


@contextmanager
def spark_set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings during the block, and as it was after."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
