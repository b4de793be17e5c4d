"""A data directory as the source of a copy, and as its target."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from veil.core.clock import Clock, ClockMark
from veil.core.errors import StoreError
from veil.core.limits import REPEATED_SEND_MS
from veil.core.sequence import COUNTER_BITS, first_seq_of, instant_of
from veil.stores.copying.copy import (
    ATTEMPT,
    MESSAGE,
    REPEATABLE_SEND,
    TABLES,
    CopiedRow,
    CopyMark,
    Source,
    StoreFacts,
    Table,
    decode_mark,
    encode_mark,
)
from veil.stores.sqlite.commit import CHECKPOINT_WAL_PAGES
from veil.stores.sqlite.data_directory import DATABASE, locked, sync_path
from veil.stores.sqlite.database import Q
from veil.stores.sqlite.opening import open_database
from veil.stores.sqlite.recovery.verify import CHECKS

MARK: Final = "copying"
_UNFINISHED: Final = "copying"  # a directory within the target's: nobody starts a server on it by mistake
_COUNTER_MAX: Final = 1 << COUNTER_BITS
_SENDS: Final = ("seq", "sends")  # several of them in a row, under the order key of the first message


class SqliteSource(Source):
    """The data of a directory where no server runs."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock

    def facts(self) -> StoreFacts:
        engine_ms, wall_ms, boot_ms, boot_id, last_seq = self._connection.execute(
            "SELECT engine_ms, wall_ms, boot_ms, boot_id, last_seq FROM clock_mark"
        ).fetchone() or (0, 0, 0, "", 0)
        self._clock.resume(ClockMark(engine_ms, wall_ms, boot_ms, boot_id))
        return StoreFacts(
            store_id=bytes(self._meta("store_id")).decode(),
            receipt_key=bytes(self._meta("receipt_key")),
            now_ms=self._clock.now_ms(),
            last_seq=last_seq,
            last_queue_id=self._last_id("queue"),
            last_move=self._last_id("move_task"),
            rows=sum(self.one(f"SELECT count(*) FROM {table.name}") for table in TABLES),  # noqa: S608
            waiting_events=self.one("SELECT count(*) FROM outbox"),
        )

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[CopiedRow]:
        return self._connection.execute(query, tuple(arguments)).fetchall()

    def stored_as(self, table: Table) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        keys, columns, condition = super().stored_as(table)
        if table is REPEATABLE_SEND:
            columns = _SENDS
        return ("seq",) if table in (REPEATABLE_SEND, MESSAGE) else keys, columns, condition

    def unpacked(self, table: Table, rows: list[CopiedRow]) -> list[CopiedRow]:
        if table is REPEATABLE_SEND:
            return [row for seq, packed in rows for row in _sends_of(seq, packed)]
        return [(*row[:-1], msgspec.json.decode(row[-1])) for row in rows] if table is ATTEMPT else rows

    def _meta(self, name: str) -> Any:
        found = self._connection.execute(Q.read_meta, (name,)).fetchone()
        if found is None:
            raise StoreError(f"the data has no {name}: it is not whole")
        return found[0]

    def _last_id(self, table: str) -> int:
        return self.one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?", (table,))


def _sends_of(seq: int, packed: bytes) -> Iterator[CopiedRow]:
    until_ms = instant_of(seq) + REPEATED_SEND_MS
    for queue_id, retry_key, sent in msgspec.msgpack.decode(packed):
        yield queue_id, retry_key, until_ms, sent


class SqliteTarget:
    """A directory that gets its data when all of it is there."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory, self._clock = directory, clock
        self._unfinished = directory / _UNFINISHED
        self._connection: apsw.Connection | None = None

    def mark(self) -> CopyMark | None:
        if (self._directory / DATABASE).exists():
            raise StoreError(f"{self._directory} holds data already: copy into an empty directory")
        if not (self._unfinished / DATABASE).exists():
            return None
        connection = self._connect()
        found = connection.execute(Q.read_meta, (MARK,)).fetchone()
        if found is None:  # it ended before it had begun
            connection.close()
            shutil.rmtree(self._unfinished)
            return None
        return decode_mark(bytes(found[0]))

    def begin(self, mark: CopyMark) -> None:
        self._unfinished.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = self._connect()
        with connection:
            connection.execute(Q.write_meta, (MARK, encode_mark(mark)))

    def now_ms(self, source: StoreFacts) -> int:
        """The source's: a data directory carries its clock with it."""
        return source.now_ms

    def write(self, table: Table, rows: list[CopiedRow], mark: CopyMark) -> None:
        connection = self._open()
        columns = table.columns
        if table is ATTEMPT:
            rows = [(*row[:-1], msgspec.json.encode(row[-1]).decode()) for row in rows]
        elif table is REPEATABLE_SEND:
            columns, rows = _SENDS, _as_sends(rows, mark.rows)
        marks = ", ".join("?" * len(columns))
        with connection:
            try:
                connection.executemany(
                    f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608
                    [tuple(_plain(cell) for cell in row) for row in rows],
                )
            except apsw.ConstraintError as error:
                raise StoreError(f"a row of {table.name} cannot stand beside the others: {error}") from error
            connection.execute(Q.write_meta, (MARK, encode_mark(mark)))

    def finish(self, facts: StoreFacts) -> None:
        connection = self._open()
        last_seq = max(facts.last_seq, connection.execute(CHECKS.highest_seq).get or 0)
        present = self._clock.mark()
        with connection:
            connection.execute(CHECKS.count_messages)
            connection.execute(CHECKS.mark_ranked)
            connection.execute("DELETE FROM clock_mark")
            connection.execute(
                "INSERT INTO clock_mark VALUES (1, ?, ?, ?, ?, ?, 0, 0)",
                (facts.now_ms, present.wall_ms, present.boot_ms, present.boot_id, last_seq),
            )
            for table, last in (("queue", facts.last_queue_id), ("move_task", facts.last_move)):
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last))
            connection.execute(Q.write_meta, ("store_id", facts.store_id.encode()))
            connection.execute(Q.write_meta, ("receipt_key", facts.receipt_key))
            connection.execute("DELETE FROM meta WHERE name = ?", (MARK,))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()
        self._connection = None
        self._give_name()

    def _give_name(self) -> None:
        made = self._unfinished / DATABASE
        sync_path(made)
        made.rename(self._directory / DATABASE)
        sync_path(self._directory)
        shutil.rmtree(self._unfinished)

    def _connect(self) -> apsw.Connection:
        connection = self._connection = open_database(self._unfinished)
        # No group commit syncs the log here, nor keeps it short.
        connection.pragma("synchronous", "full")
        connection.wal_autocheckpoint(CHECKPOINT_WAL_PAGES)
        return connection

    def _open(self) -> apsw.Connection:
        assert self._connection is not None, "begun or resumed first"
        return self._connection

    def close(self) -> None:
        """Let go; an unfinished copy stays as it is."""
        if self._connection is not None:
            self._connection.close()


def _as_sends(rows: list[CopiedRow], rows_so_far: int) -> list[CopiedRow]:
    # The order key only tells the instant; its low bits keep the keys apart.
    kept = []
    for number, (queue_id, retry_key, until_ms, sent) in enumerate(rows):
        seq = first_seq_of(max(0, until_ms - REPEATED_SEND_MS)) + (rows_so_far - number) % _COUNTER_MAX
        kept.append((seq, msgspec.msgpack.encode([(queue_id, retry_key, sent)])))
    return kept


def _plain(cell: Any) -> Any:
    return int(cell) if isinstance(cell, bool) else bytes(cell) if isinstance(cell, memoryview) else cell


@contextmanager
def sqlite_source(directory: Path, clock: Clock) -> Iterator[SqliteSource]:
    """The data of the directory, which no server can open meanwhile; raises StoreError."""
    if not (directory / DATABASE).exists():
        raise StoreError(f"{directory} holds no store: there is no {DATABASE} in it")
    with locked(directory):
        connection = open_database(directory)
        try:
            yield SqliteSource(connection, clock)
        finally:
            connection.close()


@contextmanager
def sqlite_target(directory: Path, clock: Clock) -> Iterator[SqliteTarget]:
    """The directory as a target, which no server can open meanwhile; raises StoreError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(directory):
        target = SqliteTarget(directory, clock)
        try:
            yield target
        finally:
            target.close()
