"""Work on a whole database beside the nodes: while none of them uses it (`offline`), and after a restore."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from veil.core.errors import StoreBusy, StoreError, StoreUnavailable
from veil.stores.postgres.connection import first_line, in_our_words, parse_dsn
from veil.stores.postgres.nodes import DEAD_AFTER_MS
from veil.stores.postgres.opening import COPYING, SCHEMA_VERSION
from veil.stores.postgres.pipeline import Q

Connection = psycopg.Connection[tuple[Any, ...]]

NOW_MS: Final = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_ALIVE: Final = f"SELECT name FROM veil.node WHERE seen_ms > ({NOW_MS}) - %s"  # noqa: S608


@contextmanager
def offline(dsn: str) -> Iterator[Connection]:
    """A connection to the database; raises StoreBusy where a node is alive, and StoreError for whatever goes wrong."""
    try:
        connection = psycopg.connect(parse_dsn(dsn).text, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {first_line(error)}") from None
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


# ---- after a restore

NUMBER_GAP: Final = 1_000


def mark_restored(dsn: str) -> None:
    """Let numbers jump ahead and begin a new journal, in one transaction; raises StoreError.

    To be done once after a database was restored to an earlier time. The data then knows nothing of the deliveries made
    since. Counting on from where it stands would write receipts that are out in the world already, and a consumer of before
    could touch the lease of one of after; so numbers jump ahead, as they do when a backup of a data directory is restored
    (stores/sqlite/recovery/backup.py).
    """
    with offline(dsn) as connection:
        need_store(connection)
        with connection.transaction():
            run = connection.execute
            # Leases that were open go on: their holder is noted apart.
            run("UPDATE veil.message SET delivery = delivery + %s", (NUMBER_GAP,))
            # A repeated receive would answer with numbers from before the jump.
            run("DELETE FROM veil.attempt")
            run(
                "SELECT setval(pg_get_serial_sequence('veil.queue', 'id'),"
                " coalesce(pg_sequence_last_value(pg_get_serial_sequence('veil.queue', 'id')), 0) + %s)",
                (NUMBER_GAP,),
            )
            run("DELETE FROM veil.outbox")
            run("DELETE FROM veil.outbox_count")
            run("UPDATE veil.export SET done = 0, last = NULL, day = NULL")
            run(Q.write_meta, {"name": "journal_id", "value": secrets.token_hex(8).encode()})
