"""A database that no node uses: what works on the whole store wants it so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from veil.core.errors import StoreBusy, StoreError, StoreUnavailable
from veil.stores.postgres.dsn import parse_dsn
from veil.stores.postgres.failures import in_our_words
from veil.stores.postgres.nodes import DEAD_AFTER_MS
from veil.stores.postgres.opening import COPYING, SCHEMA_VERSION
from veil.stores.postgres.sql import Q

Connection = psycopg.Connection[tuple[Any, ...]]

NOW_MS: Final = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_ALIVE: Final = f"SELECT name FROM veil.node WHERE seen_ms > ({NOW_MS}) - %s"  # noqa: S608


@contextmanager
def at_rest(dsn: str) -> Iterator[Connection]:
    """A connection to the database; raises StoreBusy where a node is alive, and StoreError for whatever goes wrong."""
    try:
        connection = psycopg.connect(parse_dsn(dsn).text, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {reason}") from None
    try:
        with connection:
            refuse_use(connection)
            yield connection
    except psycopg.Error as error:
        raise in_our_words(error) from error


def refuse_use(connection: Connection) -> None:
    """Raise StoreBusy while a node is alive."""
    if not _exists(connection, "veil.node"):
        return
    alive = connection.execute(_ALIVE.encode(), (DEAD_AFTER_MS,)).fetchall()
    if alive:
        names = ", ".join(str(name) for (name,) in alive)
        raise StoreBusy(f"the database is in use by {len(alive)} Veil node(s) ({names}): stop them first")


def need_store(connection: Connection) -> None:
    """Raise StoreError unless there is a whole store of the present version."""
    if not _exists(connection, "veil.meta"):
        raise StoreError("the database holds no store: it has no schema veil")
    version = int(meta(connection, "schema_version"))
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the schema veil has version {version}, expected {SCHEMA_VERSION}: run 'veil migrate' first"
        )
    if connection.execute(Q.read_meta, {"name": COPYING}).fetchone() is not None:
        raise StoreError("the database holds an unfinished copy: finish that one first")


def meta(connection: Connection, name: str) -> Any:
    """A value that belongs to the data as a whole."""
    row = connection.execute(Q.read_meta, {"name": name}).fetchone()
    if row is None:
        raise StoreError(f"the schema veil has no {name}: it is not whole")
    return row[0]


def _exists(connection: Connection, table: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    return row is not None and row[0] is not None
