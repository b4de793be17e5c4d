"""Look at a data directory from outside: a second, read-only connection, whether or not a server is running there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from veil.core.errors import StoreBusy, StoreError
from veil.stores.sqlite.data_directory import DATABASE, DataLock
from veil.stores.sqlite.recovery.wal_scan import WalScan, scan_wal


class View(NamedTuple):
    """What can be seen of the data."""

    connection: apsw.Connection
    wal: (
        WalScan | None
    )  # None while a server is running: it checked its log at the start and is writing to it now


@contextmanager
def looking_at(directory: Path) -> Iterator[View]:
    """The data of a running server, or of a stopped one, which cannot be started meanwhile; raises StoreError."""
    path = directory / DATABASE
    if not path.exists():
        raise StoreError(f"{directory} holds no store: there is no {DATABASE} in it")
    lock = DataLock(directory)
    try:
        lock.acquire()
        wal = scan_wal(directory / (DATABASE + "-wal"))
    except StoreBusy:
        wal = None
    try:
        connection = connect_to_read(path)
        try:
            yield View(connection, wal)
        finally:
            connection.close()
    finally:
        lock.release()


def connect_to_read(path: Path) -> apsw.Connection:
    """A connection that can change nothing: not a row, and not the log by a checkpoint."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"{path.absolute().as_uri()}?mode=ro", flags=flags)
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error
    connection.set_busy_timeout(5_000)
    return connection
