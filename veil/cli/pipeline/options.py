"""Options that the pipeline's commands share: which data, where the journal and the tables are, which Spark."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from veil.cli.failures import ArgumentWrong, CommandFailed
from veil.cli.options import DataDirectory, connect, server_settings, shared, widened
from veil.cli.output import echo_err
from veil.journal import import_arrow_alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veil.journal.storage import Storage
    from veil.pipeline.spark.session import SparkSettings


# Spark and the server's settings are imported when they are used: `--help` needs neither.

T = TypeVar("T")

JournalPlace = Annotated[
    str | None,
    shared(
        "--journal PLACE", "The journal's location: a directory, s3://… or hdfs://… Default: the server's."
    ),
]
TablesPlace = Annotated[
    str | None,
    shared("--tables PLACE", "The tables' location: a directory, s3://… or hdfs://… Default: DATA/tables."),
]
Master = Annotated[
    str | None, shared("--master URL", "The Spark master, such as spark://HOST:7077. Default: local[*].")
]
Conf = Annotated[list[str] | None, shared("--conf NAME=VALUE", "A Spark setting. Can be repeated.")]


def with_tables(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --data and --tables; its `tables` is the directory that they name. So for its `journal`, if it has one."""
    options = {"data": DataDirectory, "journal": JournalPlace, "tables": TablesPlace}
    has_journal = "journal" in inspect.signature(command).parameters
    if not has_journal:
        del options["journal"]

    def call(given: dict[str, Any]) -> None:
        where = (given.pop(name, None) for name in ("data", "journal", "tables"))
        journal, tables = places(*where)
        command(tables=tables, **({"journal": journal} if has_journal else {}), **given)

    return widened(command, ("journal", "tables"), options, call)


def with_spark(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --master and --conf; its `spark` is the settings that they name."""

    def call(given: dict[str, Any]) -> None:
        from veil.pipeline.spark.session import SessionRefused, SparkSettings, read_conf

        # Mistakes are told before a command has done anything: created queues, made a folder.
        try:
            spark = SparkSettings(master=given.pop("master"), conf=read_conf(given.pop("conf") or []))
            command(spark=spark, **given)
        except SessionRefused as refused:
            raise ArgumentWrong(str(refused)) from None

    return widened(command, ["spark"], {"master": Master, "conf": Conf}, call)


def journal_location(data: str | None, journal: str | None) -> str:
    """Where the journal is: as the option says, else where the server of the same settings writes it."""
    if journal is not None:
        return journal
    home, configured = _server_places(data)
    return configured or str(home / "journal")


def places(data: str | None, journal: str | None, tables: str | None) -> tuple[Storage, Storage]:
    """The journal and the tables: as the options say, else where the server of the same settings keeps them."""
    if tables is None:
        tables = str(_server_places(data)[0] / "tables")
    return place_of("journal", journal_location(data, journal)), place_of("tables", tables)


def place_of(name: str, where: str) -> Storage:
    """The directory that a text names; raises ArgumentWrong where it names none."""
    from veil.journal.storage import Storage

    try:
        return Storage.at(where)
    except ValueError as expected:
        raise ArgumentWrong(f"{name} {where!r}: expected {expected}") from None


def read_beside(tables: Storage, file: str, decode: Callable[[bytes], T], otherwise: str) -> T:
    """What a file beside the tables says; raises CommandFailed, with the text `otherwise` where there is none."""
    try:
        return decode(tables.read(file))
    except FileNotFoundError:
        raise CommandFailed(otherwise) from None
    except ValueError as refused:
        raise CommandFailed(f"{tables.uri}: {refused}") from None


def _server_places(data: str | None) -> tuple[Path, str | None]:
    """The server's directory, and the journal's place where the settings give it one of its own."""
    from veil.server.make_store import store_directory

    settings = server_settings({"data": data})
    if data is not None:
        # Who names a data directory means its journal, not the one that the server here writes to.
        return settings.data, None
    own = None if settings.journal in ("on", "off") else settings.journal
    return store_directory(settings) or settings.data, own


def service_of(queues: Sequence[str], endpoint: str | None, region: str | None) -> tuple[str, str]:
    """The address and the region of the service that the options name, once it has said that it has these queues."""
    with connect(endpoint, region) as client:
        for name in queues:
            client.queue_url(name)
        return client.target.endpoint, client.target.region


@contextmanager
def spark_session(settings: SparkSettings, title: str, *, quiet: bool = False) -> Iterator[SparkSession]:
    """A session for the command: started quietly or the given one, with a bar on a terminal while the block runs.

    `quiet` (for `--json`) shows neither the bar nor where Spark's pages are. A failure of Spark's own in the block becomes
    SparkFailed.
    """
    from veil.pipeline.spark.session import session, shown_progress, ui_address, without_query_pages

    is_watched = sys.stderr.isatty() and not quiet
    with ExitStack() as stack:
        with _shown("starting Spark", is_watched):
            spark = stack.enter_context(session(replace(settings, title=f"veil {title}")))
        address = ui_address(spark)
        if address is not None and not quiet:
            echo_err(f"Spark's pages are at {address} while this runs")
        stack.enter_context(_without_py4j_traces())
        stack.enter_context(without_query_pages())
        if is_watched:
            stack.enter_context(shown_progress(spark, title, sys.stderr))
        yield spark


@contextmanager
def spark_when_needed(
    settings: SparkSettings, title: str, *, quiet: bool = False
) -> Iterator[tuple[Callable[[], SparkSession], bool]]:
    """A function that gives a session, started with the first call; and whether somebody chose Spark for this command: by
    `--master` or `--conf`, or by running it under `spark-submit`."""
    from veil.pipeline.spark.session import is_given

    started: list[SparkSession] = []
    is_watched = sys.stderr.isatty() and not quiet
    with ExitStack() as stack, ExitStack() as working:
        working.enter_context(_shown(title, is_watched))

        def spark() -> SparkSession:
            if not started:
                working.close()  # Spark's start and its tasks are shown from here on
                started.append(stack.enter_context(spark_session(settings, title, quiet=quiet)))
            return started[0]

        is_chosen = settings.asks_for_something or is_given()
        if not is_chosen:
            import_arrow_alone()
        yield spark, is_chosen


@contextmanager
def _without_py4j_traces() -> Iterator[None]:
    """The library between Python and the JVM logs a trace for each broken connection, and raises the same as well."""

    def is_other(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


@contextmanager
def _shown(what: str, is_watched: bool) -> Iterator[None]:
    """Something that moves on a terminal while this takes its seconds."""
    if not is_watched:
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(what):
        yield
