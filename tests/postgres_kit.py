"""Databases for tests: on a PostgreSQL that this process starts for itself, or on one that `VEIL_TEST_POSTGRES` names.

A test gets a database of its own, with a name that nobody else has, and no other database is ever touched. The server of
our own lives in memory where it can: a test about meaning then pays nothing for syncs that are done all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import re
import secrets
from collections import OrderedDict
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.postgres_server import PostgresServer, why_no_server

VARIABLE = "VEIL_TEST_POSTGRES"
GIVEN = os.environ.get(VARIABLE)  # read once: tests of commands take every variable of ours away
_KEPT = 6  # databases of directories: more than any test has at once
_numbers = itertools.count(1)
_RUN = secrets.token_hex(4)


def why_no_postgres() -> str | None:
    """Why tests cannot have a PostgreSQL here; None where they can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'veilmq[postgres]'"
    if GIVEN:
        return None
    reason = why_no_server()
    return None if reason is None else f"{reason}, and {VARIABLE} names none"


@cache
def own_server() -> PostgresServer:
    """The server of this process, started when it is first asked for and gone with the process."""
    server = PostgresServer(
        in_memory=True,
        settings={
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "checkpoint_timeout": "1h",
            "autovacuum_naptime": "10s",
        },
    )
    server.create()
    server.start()
    atexit.register(server.remove)
    return server


def new_database() -> str:
    """The DSN of an empty database."""
    name = f"veil_test_{_RUN}_{os.getpid()}_{next(_numbers)}"
    _administer(f'CREATE DATABASE "{name}" TEMPLATE template0')
    if GIVEN:
        atexit.register(_drop, name)
    return _dsn_of(name)


PASSWORD = "hunter2"


def with_password(dsn: str) -> str:
    """The same DSN with a password in it, which our server does not ask for."""
    return dsn.replace("veil@", f"veil:{PASSWORD}@", 1)


def drop_database(dsn: str) -> None:
    """Remove a database that `new_database` made, whoever is still connected."""
    _drop(database_name(dsn))


def database_name(dsn: str) -> str:
    """The database that a DSN of ours names."""
    return urlsplit(dsn).path.lstrip("/")


_by_directory: OrderedDict[Path, str] = OrderedDict()


def database_of(directory: Path) -> str:
    """The database that stands for a directory: without data the first time, then the same again.

    Only the latest few are kept. The oldest is emptied and stands for the next directory: to make a database and its schema
    costs three times as much.
    """
    if directory in _by_directory:
        return _by_directory[directory]
    dsn = None
    if len(_by_directory) >= _KEPT:
        _, dsn = _by_directory.popitem(last=False)
        if not _emptied(dsn):
            drop_database(dsn)
            dsn = None
    dsn = _by_directory[directory] = dsn or new_database()
    return dsn


def _emptied(dsn: str) -> bool:
    """Make the database as it was right after its migrations; False where it has not had all of them."""
    import psycopg

    from veil.stores.postgres.connection import parse_dsn
    from veil.stores.postgres.opening import SCHEMA_VERSION, sql_of

    with psycopg.connect(parse_dsn(dsn).text) as connection:  # it may say what only Veil understands
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        kinds: dict[str, set[str]] = {"r": set(), "S": set()}
        for kind, name in connection.execute(
            "SELECT relkind, relname FROM pg_class WHERE relnamespace = to_regnamespace('veil') AND relkind IN ('r', 'S')"
        ):
            kinds[kind].add(f"veil.{name}")
        if "veil.meta" not in kinds["r"]:
            return False
        version = connection.execute("SELECT value FROM veil.meta WHERE name = 'schema_version'").fetchone()
        if version is None or int(version[0]) != SCHEMA_VERSION:
            return False
        migrations = "".join(sql_of(number).decode() for number in range(1, SCHEMA_VERSION + 1))
        statements = [f"DELETE FROM {table}" for table in kinds["r"] - {"veil.meta"}]  # cheaper than TRUNCATE
        statements += [f"SELECT setval('{sequence}', 1, false)" for sequence in kinds["S"]]
        statements += re.findall(r"^INSERT INTO [^;]*", migrations, re.MULTILINE)
        statements.append(
            "DELETE FROM veil.meta WHERE name NOT IN ('schema_version', 'receipt_key', 'store_id', 'journal_id')"
        )
        connection.execute(";".join(statements).encode())
    return True


def _dsn_of(database: str) -> str:
    if not GIVEN:
        return own_server().dsn(database)
    parts = urlsplit(GIVEN)
    return urlunsplit((parts.scheme, parts.netloc, "/" + database, parts.query, ""))


def _drop(name: str) -> None:
    import psycopg

    assert name.startswith(f"veil_test_{_RUN}_"), f"{name} is not ours"
    with contextlib.suppress(psycopg.OperationalError):  # the server may be gone at the end of the process
        _administer(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _administer(statement: str) -> None:
    import psycopg

    from veil.stores.postgres.connection import parse_dsn

    dsn = parse_dsn(GIVEN or own_server().dsn("postgres"))
    with psycopg.connect(dsn.text, autocommit=True) as connection:
        connection.execute(statement.encode())
