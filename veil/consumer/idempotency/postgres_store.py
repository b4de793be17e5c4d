"""Idempotency keys in PostgreSQL, for consumers on many machines. Needs `psycopg` 3."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

from veil.consumer.idempotency.idempotent import Busy, Claim, Claimed, Done, Holder

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS veil_idempotency_keys (
    key text PRIMARY KEY, is_done boolean NOT NULL, message_id text NOT NULL, token bigint NOT NULL,
    until timestamptz NOT NULL)
"""
# One statement, so that two who claim at once are put in order by the row's lock. The condition is `judge`, in SQL.
_CLAIM: Final = """
INSERT INTO veil_idempotency_keys AS old (key, is_done, message_id, token, until)
VALUES (%(key)s, false, %(message_id)s, %(token)s, clock_timestamp() + %(ms)s * interval '1 ms')
ON CONFLICT (key) DO UPDATE
    SET is_done = false, message_id = excluded.message_id, token = excluded.token, until = excluded.until
    WHERE CASE WHEN NOT old.is_done AND old.message_id = excluded.message_id THEN old.token <= excluded.token
               ELSE old.until <= clock_timestamp() END
RETURNING true
"""
_LOOK: Final = """
SELECT is_done, greatest(1, (extract(epoch FROM until - clock_timestamp()) * 1000)::bigint)
FROM veil_idempotency_keys WHERE key = %(key)s
"""
_FINISH: Final = """
UPDATE veil_idempotency_keys SET is_done = true, until = clock_timestamp() + %(ms)s * interval '1 ms'
WHERE key = %(key)s AND message_id = %(message_id)s AND token = %(token)s
RETURNING true
"""
_GIVE_UP: Final = """
DELETE FROM veil_idempotency_keys
WHERE key = %(key)s AND message_id = %(message_id)s AND token = %(token)s AND NOT is_done
"""


class PostgresIdempotency:
    """Keeps the contract on a table of its own, by the database's clock. Rows that ran out are yours to clear away:
    `DELETE FROM veil_idempotency_keys WHERE until < now()`."""

    def __init__(self, conninfo: str) -> None:
        try:
            self._psycopg: Any = importlib.import_module("psycopg")
        except ImportError:
            raise ImportError("PostgresIdempotency needs psycopg 3: pip install 'psycopg[binary]'") from None
        self._conninfo = conninfo
        self._connection: Any = None
        self._lock = asyncio.Lock()

    async def claim(self, key: str, holder: Holder, *, hold_ms: int) -> Claim:
        """Claim the key for `hold_ms`."""
        if await self._run(_CLAIM, key, holder, hold_ms):
            return Claimed()
        row = await self._run(_LOOK, key, holder, 0)
        # Given up between the two looks: whoever asks again soon will have it.
        if row is None:
            return Busy(1)
        return Done() if row[0] else Busy(int(row[1]))

    async def finish(self, key: str, holder: Holder, *, keep_ms: int) -> bool:
        """Remember for `keep_ms` that it is done; False when the claim is not this holder's any more."""
        return bool(await self._run(_FINISH, key, holder, keep_ms))

    async def give_up(self, key: str, holder: Holder) -> None:
        """Forget the claim, if it is this holder's and not finished."""
        await self._run(_GIVE_UP, key, holder, 0)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _run(self, sql: str, key: str, holder: Holder, ms: int) -> Any:
        async with self._lock:
            try:
                if self._connection is None:
                    self._connection = await self._psycopg.AsyncConnection.connect(
                        self._conninfo, autocommit=True
                    )
                    await self._connection.execute(_TABLE)
                values = {"key": key, "message_id": holder.message_id, "token": holder.token, "ms": ms}
                cursor = await self._connection.execute(sql, values)
                return await cursor.fetchone() if cursor.description else None
            except BaseException:
                # Broken or in an unknown state, also when cancelled on the way: the next call opens another.
                broken, self._connection = self._connection, None
                if broken is not None:
                    await broken.close()
                raise
