"""Open the database: refused where it could not keep the promises, and brought to the present schema; or work on it offline."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final, NamedTuple

import psycopg

from veil.core.errors import StoreBusy, StoreError, StoreTooNew, StoreUnavailable
from veil.stores.postgres.connection import Dsn, as_store_error, first_line, parse_dsn
from veil.stores.postgres.leases import DEAD_AFTER_MS
from veil.stores.postgres.pipeline import Q

_log = logging.getLogger(__name__)

_MIGRATIONS: Final = sorted(
    each.name for each in files("veil.stores.postgres").iterdir() if each.name[:3].isdigit()
)
SCHEMA_VERSION: Final = len(_MIGRATIONS)
VERSION_MIN: Final = 14
# What an unfinished copy into the database is noted under (stores/copying/postgres.py).
COPYING: Final = "copying"
# Beside the class of the queues' locks: nobody else's.
_MIGRATION_LOCK: Final = (1447381326, 0)


class StoreIdentity(NamedTuple):
    """What belongs to the data as a whole."""

    receipt_key: bytes
    store_id: bytes
    journal_id: bytes


async def migrate(dsn: Dsn | str, *, dry_run: bool = False) -> int:
    """Check the database and bring it to the present schema; the version that it had.

    Raises StoreError in words where it could not keep the promises, StoreTooNew, StoreUnavailable.
    """
    dsn = parse_dsn(dsn) if isinstance(dsn, str) else dsn
    try:
        connection = await psycopg.AsyncConnection.connect(dsn.text, **dsn.options())
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {first_line(error)}") from error
    try:
        async with connection:
            await _check(connection)
            before = await schema_version(connection)
            if before > SCHEMA_VERSION:
                raise StoreTooNew(
                    f"the schema veil has version {before}, this Veil knows up to {SCHEMA_VERSION}:"
                    " use the newer Veil that wrote it"
                )
            if not dry_run:
                await _migrate(connection, before)
            return before
    except psycopg.Error as error:
        raise as_store_error(error) from error


async def schema_version(connection: psycopg.AsyncConnection) -> int:
    """The version that the data is in; 0 where there is none."""
    # As a row, not by name: names are looked up in a memory of the session that may be behind what another node just did.
    if await (await connection.execute(Q.has_meta)).fetchone() is None:
        return 0
    row = await (await connection.execute(Q.read_meta, {"name": "schema_version"})).fetchone()
    return 0 if row is None else int(row[0])


async def identity(connection: psycopg.AsyncConnection, *, one_of_several: bool) -> StoreIdentity:
    """The keys and names that were made with the data; raises StoreError while a copy into it is unfinished, and for one of
    several servers that is opened alone: it would know a part of the queues only."""
    known: dict[str, Any] = dict(await (await connection.execute(Q.all_meta)).fetchall())
    if COPYING in known:
        raise StoreError(
            "a copy into this database is not finished: go on with it by the same 'veil store copy'"
        )
    if "home" in known and not one_of_several:
        raise StoreError(
            "the database is one of several servers: name all of them in 'store', the first one first"
        )
    return identity_in(known)


def identity_in(known: dict[str, Any]) -> StoreIdentity:
    """The same of what is written in `meta`."""
    try:
        return StoreIdentity(*(bytes(known[name]) for name in ("receipt_key", "store_id", "journal_id")))
    except KeyError as missing:
        raise StoreError(f"the schema veil has no {missing.args[0]}: it is not whole") from None


async def _check(connection: psycopg.AsyncConnection) -> None:
    row = await (await connection.execute(Q.settings)).fetchone()
    assert row is not None
    version, fsync, synchronous_commit, full_page_writes, encoding = row
    if version < VERSION_MIN * 10_000:
        raise StoreError(f"PostgreSQL {version // 10_000} is too old: {VERSION_MIN} or newer is needed")
    if fsync != "on":
        raise StoreError(
            "PostgreSQL runs with fsync=off: a crash of its machine would lose or damage what was acknowledged; set"
            " fsync=on"
        )
    if encoding != "UTF8":
        raise StoreError(f"the database has the encoding {encoding}; Veil needs UTF8")
    if synchronous_commit == "off":
        _log.warning(
            "PostgreSQL runs with synchronous_commit=off: what was acknowledged within the last moments before a crash is"
            " lost"
        )
    if full_page_writes != "on":
        _log.warning(
            "PostgreSQL runs with full_page_writes=off: only a file system that never tears a page makes that safe"
        )


async def _migrate(connection: psycopg.AsyncConnection, present: int) -> None:
    """Each step is one transaction with its version in it, so a crash leaves the old version or the new one."""
    while present < SCHEMA_VERSION:
        async with connection.transaction():
            # Several nodes may start at once: one migrates, the others find it done.
            await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", _MIGRATION_LOCK)
            present = await schema_version(connection)
            if present >= SCHEMA_VERSION:
                break
            present += 1
            if present == 1:
                await connection.execute("CREATE SCHEMA IF NOT EXISTS veil")
            await connection.execute(sql_of(present))
            if present == 1:
                made = {"receipt_key": secrets.token_bytes(32)}
                made |= {name: secrets.token_hex(8).encode() for name in ("store_id", "journal_id")}
                for name, value in made.items():
                    await connection.execute(Q.write_meta, {"name": name, "value": value})
            version = str(present).encode()
            await connection.execute(Q.write_meta, {"name": "schema_version", "value": version})


def sql_of(version: int) -> bytes:
    """What brings a schema to that version from the one before."""
    return files("veil.stores.postgres").joinpath(_MIGRATIONS[version - 1]).read_bytes()


Connection = psycopg.Connection[tuple[Any, ...]]

# ---- offline: while no node uses the database

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
        raise as_store_error(error) from error


def refuse_use(connection: Connection) -> None:
    """Raise StoreBusy while a node is alive."""
    if not _exists(connection, "veil.node"):
        return
    alive = connection.execute(_ALIVE.encode(), (DEAD_AFTER_MS,)).fetchall()
    if alive:
        names = ", ".join(str(name) for (name,) in alive)
        raise StoreBusy(f"the database is in use by {len(alive)} Veil node(s) ({names}): stop them first")


def need_store(connection: Connection) -> dict[str, Any]:
    """What is written in `meta`; raises StoreError unless there is a whole store of the present version."""
    if not _exists(connection, "veil.meta"):
        raise StoreError("the database holds no store: it has no schema veil")
    known: dict[str, Any] = dict(connection.execute(Q.all_meta).fetchall())
    version = int(known.get("schema_version", 0))
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the schema veil has version {version}, expected {SCHEMA_VERSION}: run 'veil migrate' first"
        )
    if COPYING in known:
        raise StoreError("the database holds an unfinished copy: finish that one first")
    return known


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
