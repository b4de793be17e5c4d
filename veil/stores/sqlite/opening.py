"""Open the database: checked before it is trusted, brought to the present schema, set up for durability."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path

import apsw

from veil.core.errors import StoreDamaged, StoreError, StoreTooNew
from veil.core.limits import SECOND_MS
from veil.stores.sql import UNREADABLE, decode_settings
from veil.stores.sqlite.data_directory import DATABASE, make_private, sync_path
from veil.stores.sqlite.database import Q, widened
from veil.stores.sqlite.lease_log import folded
from veil.stores.sqlite.recovery.wal_scan import scan_wal

_log = logging.getLogger(__name__)

_MIGRATIONS = (
    "schema.sql", "002_holds.sql", "003_priority.sql", "004_filtered_moves.sql", "005_waiting_groups.sql",
    "006_lease_log.sql",
)  # fmt: skip
SCHEMA_VERSION = len(_MIGRATIONS)
# Before 3.51.3 a WAL that was written and checkpointed at once could be corrupted.
SQLITE_VERSION_MIN = 3_051_003
CACHE_KIB = 24 * 1024
# Every page that a commit changes is read, written to the WAL and moved to the database by calls of its own. Twice SQLite's usual
# size has half as many of them: requests of ten take 5 to 8 % less CPU in the store, single ones as much as before. (16 KiB took
# more again.) A database that is there already keeps its own.
PAGE_BYTES = 8192


def open_database(directory: Path) -> apsw.Connection:
    """The connection, on a database of the present version; raises StoreDamaged, StoreTooNew."""
    if apsw.SQLITE_VERSION_NUMBER < SQLITE_VERSION_MIN:
        raise StoreError(f"SQLite {apsw.sqlite_lib_version()} can corrupt a WAL; 3.51.3 or newer is needed")
    path = directory / DATABASE
    scan = scan_wal(directory / (DATABASE + "-wal"))
    if scan.verdict == "damaged":
        raise StoreDamaged(
            f"{path}-wal: {scan.explain()} Starting would silently drop what was acknowledged; run 'veil verify'"
        )
    if scan.verdict == "torn_tail":
        _log.warning("%s-wal: %s", path, scan.explain())
    try:
        connection = connect(path)
        checkpoint = partial(connection.wal_checkpoint, mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        # What is left of a torn commit is gone before anything is written, and each commit is on disk before the next: else a
        # power cut now could look like damage (wal_scan.py).
        checkpoint()
        _migrate(connection, path)
        checkpoint()
        with connection:
            fold_lease_log(connection)
        checkpoint()
    except StoreError:
        raise
    except (apsw.NotADBError, apsw.CorruptError, *UNREADABLE) as error:
        raise StoreDamaged(f"{path}: {error}; run 'veil verify'") from error
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error
    for suffix in ("", "-wal", "-shm"):  # SQLite makes the others like the first
        make_private(path.with_name(path.name + suffix))
    sync_path(directory)
    return connection


def connect(path: Path) -> apsw.Connection:
    """A connection with the settings that the promises rest on; a file that is made for it is its owner's alone."""
    with suppress(OSError):  # it is there, or SQLite will say what is the matter
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # NOMUTEX: no two threads use a connection at once, and to lock it for every column that is read takes 5 % of a receive.
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(5_000)
    # Without this SQLite looks at bound values while it plans around partial indexes, and so prepares those statements
    # again at every execution: four times the cost of a receive.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = WAL",
        "synchronous = NORMAL",  # the group commit syncs the WAL itself, before it answers
        "wal_autocheckpoint = 0",  # and checkpoints when it can afford to
        "temp_store = MEMORY",
        "foreign_keys = OFF",
        f"cache_size = -{CACHE_KIB}",
        "cell_size_check = ON",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def schema_version(connection: apsw.Connection) -> int:
    return int(connection.pragma("user_version"))


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """All steps are one transaction with the version in it, so a crash leaves the old version or the new one."""
    present = schema_version(connection)
    if present > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{path} has schema version {present}, this Veil knows up to {SCHEMA_VERSION}: use the newer Veil that wrote it"
        )
    if present == SCHEMA_VERSION:
        return
    with connection:
        for version in range(present + 1, SCHEMA_VERSION + 1):
            sql = files("veil.stores.sqlite").joinpath(_MIGRATIONS[version - 1]).read_text(encoding="utf-8")
            connection.execute(sql)
            if version == 1:
                connection.execute(Q.write_meta, ("receipt_key", secrets.token_bytes(32)))
                connection.execute(Q.write_meta, ("store_id", new_journal_id()))
                connection.execute(Q.write_meta, ("journal_id", new_journal_id()))
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def fold_lease_log(connection: apsw.Connection) -> None:
    """Write the leases of the log into the rows of their messages, as a stop does and a crash does not."""
    is_there = connection.table_exists("main", "lease_log")  # not in a backup of an older version
    rows = [packed for (packed,) in connection.execute(Q.lease_log)] if is_there else []
    if not rows:
        return
    for queue_id, leases in folded(rows).items():
        settings = connection.execute(Q.queue_settings, (queue_id,)).get
        if settings is not None:
            retention_ms = decode_settings(settings).retention_s * SECOND_MS
            statement = widened(Q.open_leases, 1)
            connection.executemany(statement, ((*lease, retention_ms, seq) for seq, lease in leases.items()))
    connection.execute(Q.clear_lease_log)


def new_journal_id() -> bytes:
    """A name for a journal, or for a store, that no other has."""
    return secrets.token_hex(8).encode()
