"""What the tests of the SQLite store's failures share."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest

from tests.waiting import PATIENCE_S
from veil.core.clock import Clock, ManualClock
from veil.stores.sqlite import SqliteStore, commit
from veil.stores.sqlite.data_directory import DATABASE

WAL = f"{DATABASE}-wal"


@asynccontextmanager
async def open_store(
    directory: Path, clock: Clock | None = None, *, journal: bool = False
) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(directory, clock or ManualClock(), journal=journal)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def crashed_copy(directory: Path, target: Path) -> Path:
    """The files as a crash at this moment would leave them."""
    target.mkdir()
    for name in (DATABASE, WAL):
        if (directory / name).exists():
            shutil.copy(directory / name, target / name)  # with its mode
    return target


def rows(directory: Path, query: str) -> list[tuple[object, ...]]:
    """What a connection of its own reads."""
    connection = apsw.Connection(str(directory / DATABASE))
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def change(directory: Path, statement: str) -> None:
    """Change the data of a stopped store behind its back."""
    rows(directory, statement)


def take_priorities_away(directory: Path) -> None:
    """Bring the data of a stopped store back to version 2 of the schema."""
    for statement in (
        "DROP TABLE lease_log",
        "DROP INDEX lane_waiting",
        "DROP INDEX visible_alone",
        "DROP INDEX visible_grouped",
        "DROP INDEX visible_ranked",
        "DROP INDEX ranked_by_age",
        "ALTER TABLE move_task DROP COLUMN scan",
        "ALTER TABLE message DROP COLUMN priority",
        "ALTER TABLE queue DROP COLUMN ranked",
        "CREATE INDEX visible_alone ON message (queue_id) WHERE state = 0 AND group_name IS NULL",
        "CREATE INDEX visible_grouped ON message (queue_id) WHERE state = 0 AND group_name IS NOT NULL",
        "PRAGMA user_version = 2",
    ):
        change(directory, statement)


def flip_bit(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def flip_bit_in_text(path: Path, text: str) -> None:
    """Flip a bit in the middle of a text that stands in the file."""
    at = path.read_bytes().index(text.encode())
    flip_bit(path, at + len(text) // 2, bit=0)


class SyncGate:
    """Holds every fdatasync until it is opened; then lets it through or fails it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = os.fdatasync
        self._turn = threading.Condition()
        self._permits: float = math.inf
        self.error: OSError | None = None
        self.calls = 0
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)
        monkeypatch.setattr(commit, "QUICK_SYNC_S", 0.0)  # held on the loop, it would hold the test too

    def _fdatasync(self, fd: int) -> None:
        self.calls += 1
        with self._turn:
            assert self._turn.wait_for(lambda: self._permits > 0, PATIENCE_S)
            self._permits -= 1
        if self.error is not None:
            raise self.error
        self._real(fd)

    def shut(self) -> None:
        self._permits = 0

    def open(self, permits: float = math.inf) -> None:
        """Let every sync through from now on, or only so many."""
        with self._turn:
            self._permits = permits
            self._turn.notify_all()


async def turns(count: int = 20) -> None:
    """Let everything that can run on the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)
