"""Idempotency keys in a SQLite file, for consumers on one machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from veil.consumer.idempotency.idempotent import Claim, Claimed, Holder, Record, judge

if TYPE_CHECKING:
    import apsw

_BUSY_MS: Final = 5_000
# Each claim clears away a little of what has run out, so that the file never needs a sweep.
_CLEARED_MAX: Final = 8
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key TEXT PRIMARY KEY, is_done INTEGER NOT NULL, message_id TEXT NOT NULL, token INTEGER NOT NULL,
    until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_keys_by_end ON idempotency_keys (until_ms);
"""
_CLEAR: Final = """
DELETE FROM idempotency_keys WHERE key IN (
    SELECT key FROM idempotency_keys WHERE until_ms <= ? AND key <> ? ORDER BY until_ms LIMIT ?)
"""

_T = TypeVar("_T")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteIdempotency:
    """Keeps the contract on one file; processes of one machine may share it. What is finished is on disk."""

    def __init__(self, path: str | Path, *, now_ms: Callable[[], int] = _wall_ms) -> None:
        self._path = str(path)
        self._now_ms = now_ms
        self._connection: apsw.Connection | None = None
        # One thread: SQLite writes one after another anyway, and the event loop must not wait for the disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="veil-idempotency")

    async def claim(self, key: str, holder: Holder, *, hold_ms: int) -> Claim:
        """Claim the key for `hold_ms`."""
        return await self._in_thread(lambda db: self._claim(db, key, holder, hold_ms))

    async def finish(self, key: str, holder: Holder, *, keep_ms: int) -> bool:
        """Remember for `keep_ms` that it is done; False when the claim is not this holder's any more."""
        return await self._in_thread(lambda db: self._finish(db, key, holder, keep_ms))

    async def give_up(self, key: str, holder: Holder) -> None:
        """Forget the claim, if it is this holder's and not finished."""
        await self._in_thread(
            lambda db: _run(
                db,
                "DELETE FROM idempotency_keys WHERE key = ? AND is_done = 0 AND message_id = ? AND token = ?",
                key,
                holder.message_id,
                holder.token,
            )
        )

    async def close(self) -> None:
        """Close the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _claim(self, db: apsw.Connection, key: str, holder: Holder, hold_ms: int) -> Claim:
        now_ms = self._now_ms()
        rows = _run(
            db, "SELECT is_done, message_id, token, until_ms FROM idempotency_keys WHERE key = ?", key
        )
        record = Record(bool(rows[0][0]), Holder(rows[0][1], rows[0][2]), rows[0][3]) if rows else None
        claim = judge(record, holder, now_ms)
        if isinstance(claim, Claimed):
            _run(
                db,
                "INSERT OR REPLACE INTO idempotency_keys VALUES (?, 0, ?, ?, ?)",
                key,
                holder.message_id,
                holder.token,
                now_ms + hold_ms,
            )
            _run(db, _CLEAR, now_ms, key, _CLEARED_MAX)
        return claim

    def _finish(self, db: apsw.Connection, key: str, holder: Holder, keep_ms: int) -> bool:
        _run(
            db,
            "UPDATE idempotency_keys SET is_done = 1, until_ms = ? WHERE key = ? AND message_id = ? AND token = ?",
            self._now_ms() + keep_ms,
            key,
            holder.message_id,
            holder.token,
        )
        return bool(db.changes())

    async def _in_thread(self, work: Callable[[apsw.Connection], _T]) -> _T:
        # Shielded: a transaction that is under way ends, whoever stopped waiting for it.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, self._transaction, work))

    def _transaction(self, work: Callable[[apsw.Connection], _T]) -> _T:
        db = self._connection or self._open()
        # Immediate: to read first and ask for the write lock later can fail, or decide on an old reading.
        _run(db, "BEGIN IMMEDIATE")
        try:
            result = work(db)
            _run(db, "COMMIT")
        except BaseException:
            if not db.getautocommit():
                _run(db, "ROLLBACK")
            raise
        return result

    def _open(self) -> apsw.Connection:
        import apsw

        db = apsw.Connection(self._path)
        db.set_busy_timeout(_BUSY_MS)
        db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        db.execute(_TABLE)
        self._connection = db
        return db

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _run(db: apsw.Connection, sql: str, *values: Any) -> list[Any]:
    return db.execute(sql, values).fetchall()
