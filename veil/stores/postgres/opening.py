"""Open the database: refused where it could not keep the promises, and brought to the present schema."""

from __future__ import annotations

import logging
import secrets
from importlib.resources import files
from typing import Final, NamedTuple

import psycopg

from veil.core.errors import StoreError, StoreTooNew, StoreUnavailable
from veil.stores.postgres.connection import Dsn, first_line, in_our_words, parse_dsn
from veil.stores.postgres.pipeline import Q

_log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 5
_MIGRATIONS: Final = {
    1: "001_schema.sql",
    2: "002_count_generations.sql",
    3: "003_filtered_moves.sql",
    4: "004_servers.sql",
    5: "005_lease_time.sql",
}
VERSION_MIN: Final = 14
# What an unfinished copy into the database is noted under (stores/copying/postgres.py).
COPYING: Final = "copying"
# Beside the class of the queues' locks: nobody else's.
_MIGRATION_LOCK: Final = (1447381326, 0)


class Identity(NamedTuple):
    """What belongs to the data as a whole."""

    receipt_key: bytes
    store_id: str
    journal_id: str


async def migrate(dsn: Dsn | str, *, up_to: int = SCHEMA_VERSION) -> list[int]:
    """Check the database and bring it to the present schema; the versions that were new to it.

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
            return await _migrate(connection, up_to)
    except psycopg.Error as error:
        raise in_our_words(error) from error


async def schema_version(connection: psycopg.AsyncConnection) -> int:
    """The version that the data is in; 0 where there is none."""
    # As a row, not by name: names are looked up in a memory of the session that may be behind what another node just did.
    if await (await connection.execute(Q.has_meta)).fetchone() is None:
        return 0
    row = await (await connection.execute(Q.read_meta, {"name": "schema_version"})).fetchone()
    return 0 if row is None else int(row[0])


async def identity(connection: psycopg.AsyncConnection) -> Identity:
    """The keys and names that were made with the data; raises StoreError while a copy into it is unfinished."""
    if await (await connection.execute(Q.read_meta, {"name": COPYING})).fetchone() is not None:
        raise StoreError(
            "a copy into this database is not finished: go on with it by the same 'veil store copy'"
        )
    values = []
    for name in ("receipt_key", "store_id", "journal_id"):
        row = await (await connection.execute(Q.read_meta, {"name": name})).fetchone()
        if row is None:
            raise StoreError(f"the schema veil has no {name}: it is not whole")
        values.append(bytes(row[0]))
    return Identity(values[0], values[1].decode(), values[2].decode())


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


async def _migrate(connection: psycopg.AsyncConnection, up_to: int) -> list[int]:
    """Each step is one transaction with its version in it, so a crash leaves the old version or the new one."""
    present = await schema_version(connection)
    if present > SCHEMA_VERSION:
        raise StoreTooNew(
            f"the schema veil has version {present}, this Veil knows up to {SCHEMA_VERSION}: use the newer Veil that wrote it"
        )
    done = []
    while present < up_to:
        async with connection.transaction():
            # Several nodes may start at once: one migrates, the others find it done.
            await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", _MIGRATION_LOCK)
            present = await schema_version(connection)
            if present >= up_to:
                break
            present += 1
            if present == 1:
                await connection.execute("CREATE SCHEMA IF NOT EXISTS veil")
            await connection.execute(_sql_of(present))
            if present == 1:
                for name, value in _made_with_the_data().items():
                    await connection.execute(Q.write_meta, {"name": name, "value": value})
            version = str(present).encode()
            await connection.execute(Q.write_meta, {"name": "schema_version", "value": version})
            done.append(present)
    return done


def _sql_of(version: int) -> bytes:
    return files("veil.stores.postgres").joinpath(_MIGRATIONS[version]).read_bytes()


def _made_with_the_data() -> dict[str, bytes]:
    return {
        "receipt_key": secrets.token_bytes(32),
        "store_id": secrets.token_hex(8).encode(),
        "journal_id": secrets.token_hex(8).encode(),
    }
