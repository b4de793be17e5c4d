"""How queues fared, over a restart: a small file beside the store's, written once a minute.

Nothing in it is precious. It is never synced, so that it takes nothing from the syncs that messages wait for; what cannot be
read is started over; and it cannot grow beyond BYTES_MAX.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import apsw

_log = logging.getLogger(__name__)

HISTORY_FILE: Final = "history.db"
BYTES_MAX: Final = 64 << 20
_PAGE_BYTES: Final = 4096
_VERSION: Final = 1  # of the cells' shape: another one's are of no use

HistoryRow = tuple[int, int, int | str, bytes]  # resolution, span, whose, cells: see service.history

_TABLE: Final = """
create table if not exists history (
    resolution integer not null,
    span integer not null,
    key not null,
    cells blob not null,
    primary key (resolution, span, key)
) without rowid
"""


class HistoryFile:
    """Rows in a file of SQLite's, for one thread at a time. What is wrong with the file is logged, and raised by no method."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None

    def read(self, oldest: Sequence[int]) -> list[HistoryRow]:
        """The rows of each resolution from its oldest span on, by rising span; none where the file cannot be read."""
        try:
            return self._read(self._open(), oldest)
        except (apsw.Error, OSError) as problem:
            self._start_over(problem)
            return []

    def write(self, rows: Iterable[HistoryRow], oldest: Sequence[int]) -> None:
        """Keep the rows in place of earlier ones, and drop what is older than the oldest spans."""
        try:
            connection = self._open()
            with connection:
                for resolution, span in enumerate(oldest):
                    connection.execute(
                        "delete from history where resolution = ? and span < ?", (resolution, span)
                    )
                connection.executemany("insert or replace into history values (?, ?, ?, ?)", rows)
        except (apsw.Error, OSError) as problem:
            self._start_over(problem)

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # its companions get the same mode
            connection = apsw.Connection(str(self._path))
            self._connection = connection
            # Whole after a kill; after a power cut perhaps not.
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = off")
            connection.execute(f"pragma max_page_count = {BYTES_MAX // _PAGE_BYTES}")
            if connection.execute("pragma user_version").get != _VERSION:
                connection.execute("drop table if exists history")
                connection.execute(f"pragma user_version = {_VERSION}")
            connection.execute(_TABLE)
        return self._connection

    @staticmethod
    def _read(connection: apsw.Connection, oldest: Sequence[int]) -> list[HistoryRow]:
        rows: list[HistoryRow] = []
        for resolution, span in enumerate(oldest):
            query = "select resolution, span, key, cells from history where resolution = ? and span >= ? order by span"
            rows += cast(list[HistoryRow], connection.execute(query, (resolution, span)).fetchall())
        return rows

    def _start_over(self, problem: Exception) -> None:
        _log.warning("the history of the console starts again: %s: %s", self._path, problem)
        try:
            self.close()
        except apsw.Error:
            self._connection = None
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
