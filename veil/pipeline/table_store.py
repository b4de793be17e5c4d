"""The tables as files: reading them, finding what a job wrote, and removing what nobody names any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from veil.journal.place import Place
from veil.pipeline.manifest import Manifest, TablesRefused, load_manifest
from veil.pipeline.schemas import struct_of
from veil.pipeline.tables import LEASES, MESSAGES, QUEUE_HOURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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


class Written(NamedTuple):
    """A file that a job wrote: to which table and part (hour, day or month) it belongs."""

    table: str
    part: int
    name: str


def read_table(spark: SparkSession, tables: Place, name: str) -> DataFrame:
    """One of the tables as the last run left it; empty where there are none yet.

    What is read is fixed now: a run that ends meanwhile changes nothing in it, and its files stay until the run after.
    """
    if name not in TABLES:
        raise TablesRefused(f"table {name!r}: expected one of {', '.join(TABLES)}")
    return read_files(spark, tables, name, load_manifest(tables).files_of(name))


def read_files(spark: SparkSession, tables: Place, name: str, files: Sequence[str]) -> DataFrame:
    """Some files of a table, in its public columns."""
    return _read(spark, tables, name, files, struct_of(TABLES[name]))


def read_lives(spark: SparkSession, tables: Place, files: Sequence[str]) -> DataFrame:
    """Files of `leases` or `messages` with the hidden columns."""
    from veil.pipeline.lives import lives_schema

    return _read(spark, tables, "leases and messages", files, lives_schema())


def files_of_table(tables: Place, name: str) -> list[str]:
    """The Parquet files of a table, for whoever reads them without Spark."""
    if name not in TABLES:
        raise TablesRefused(f"table {name!r}: expected one of {', '.join(TABLES)}")
    return load_manifest(tables).files_of(name)


def check_files(tables: Place, name: str, files: Sequence[str]) -> None:
    """See that the files have the columns of the table; for whoever reads them without Spark. Raises TablesRefused."""
    _check(tables, name, files, struct_of(TABLES[name]))


def _read(
    spark: SparkSession, tables: Place, name: str, files: Sequence[str], wanted: StructType
) -> DataFrame:
    if not files:
        return spark.createDataFrame([], wanted)
    _check(tables, name, files, wanted)
    with spark_set(spark, _LISTED_BY_JOB):
        return spark.read.schema(wanted).parquet(*(tables.spark_path(file) for file in files))


def _check(tables: Place, name: str, files: Sequence[str], wanted: StructType) -> None:
    """See that the files have the columns. One of each generation: a job writes all its files alike."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    samples = {file.partition("/")[0]: file for file in files}
    expected = {field.name: field.dataType.simpleString() for field in wanted}
    for file in samples.values():
        try:
            with tables.open_input(file) as opened:
                found = {field.name: _spark_type(field.type) for field in pq.ParquetFile(opened).schema_arrow}
        except FileNotFoundError:
            raise TablesRefused(
                f"table {name}: {tables.uri}/{file} is gone, though the manifest names it"
            ) from None
        except (pa.ArrowException, OSError) as problem:
            raise TablesRefused(f"table {name}: {tables.uri}/{file} cannot be read ({problem})") from None
        for column, type_ in expected.items():
            if found.get(column) != type_:
                raise TablesRefused(
                    f"table {name}: column {column} of {tables.uri}/{file} is {found.get(column, 'missing')}, "
                    f"expected {type_}"
                )


def _spark_type(type_: Any) -> str:
    import pyarrow as pa

    if pa.types.is_list(type_):
        return f"array<{_spark_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{each.name}:{_spark_type(each.type)}' for each in type_)}>"
    plain = {pa.int64(): "bigint", pa.int32(): "int", pa.string(): "string", pa.bool_(): "boolean"}
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.unit == "us" and type_.tz is not None else str(type_)
    return plain.get(type_, str(type_))


def written_files(tables: Place, folder: str) -> list[Written]:
    """What a job left in a folder that is partitioned by table and part."""
    found = []
    for entry in tables.entries(folder, recursive=True):
        pieces = entry.name.split("/")
        if entry.is_folder or pieces[-1][:1] in "._" or not pieces[-1].endswith(".parquet"):
            continue
        keys = dict(piece.split("=", 1) for piece in pieces[:-1] if "=" in piece)
        found.append(Written(keys["table"], int(keys["part"]), entry.name))
    return found


def remove_orphans(tables: Place, manifest: Manifest) -> list[str]:
    """Remove the folders of runs that died or whose files have all been replaced; for the only run on the tables."""
    named = {_generation(file) for file in (*manifest.files(), *manifest.retired)}
    orphans = [
        entry.name
        for entry in tables.entries()
        if entry.is_folder and entry.name.startswith(GENERATION) and entry.name not in named
    ]
    for folder in orphans:
        tables.remove_folder(folder)
    return orphans


def remove_files(tables: Place, files: Iterable[str]) -> None:
    """Remove files; those that are gone already are fine."""
    for file in files:
        tables.remove(file)


def _generation(file: str) -> str:
    return file.partition("/")[0]


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
