"""Three queues on one PostgreSQL, through one driver: Veil's store, pgmq's functions, and a plain table with SKIP LOCKED.

Each lives the whole life of a message: sent, received under a visibility timeout, deleted, each step durable before the next.
The peers get a connection for every caller, so that none ever waits for one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

import psycopg

from veil.core.message import NewMessage
from veil.core.queue import Queue, QueueKey, QueueSettings
from veil.core.receipt import Receipt
from veil.stores.postgres import PostgresStore
from veil.stores.store import QueueContent

VISIBILITY_S: Final = 3600
BODY: Final = "x" * 300
_BODY_MD5: Final = hashlib.md5(BODY.encode(), usedforsecurity=False).hexdigest()
_BODY_JSON: Final = json.dumps({"body": BODY})

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class QueueOnPostgres(Protocol):
    """A queue that callers use at the same time; each says which caller it is."""

    name: str
    tables: tuple[str, ...]  # that the messages stand in

    async def open(self, dsn: str, callers: int) -> None:
        """Make the queue, empty, and be ready for so many callers."""

    async def send(self, caller: int, count: int) -> None:
        """Send so many messages at once."""

    async def receive(self, caller: int, count: int) -> Sequence[Any]:
        """Up to so many messages, hidden for an hour; what `delete` needs of them."""

    async def delete(self, caller: int, received: Sequence[Any]) -> None:
        """Delete what was received."""

    async def close(self) -> None:
        """Let go of the connections."""


class VeilQueue:
    """Veil's store as the server uses it, without HTTP."""

    name = "veil"
    tables: tuple[str, ...] = ("veil.message",)

    def __init__(self, queue_name: str = "lives") -> None:
        self._key = QueueKey("us-east-1", "000000000000", queue_name)

    async def open(self, dsn: str, callers: int) -> None:
        self.store = PostgresStore(dsn)
        await self.store.open()
        content = QueueContent(QueueSettings(visibility_s=VISIBILITY_S), {})
        self.queue: Queue = await self.store.create_queue(self._key, content, rest_ms=0)

    async def send(self, caller: int, count: int) -> None:
        messages = [NewMessage(str(uuid4()), BODY, _BODY_MD5) for _ in range(count)]
        await self.store.send(self.queue, messages)

    async def receive(self, caller: int, count: int) -> Sequence[Any]:
        taken = await self.store.receive(self.queue, count)
        return [Receipt(self.queue.id, message.seq, message.delivery) for message in taken]

    async def delete(self, caller: int, received: Sequence[Any]) -> None:
        await self.store.delete(self.queue, received)

    async def close(self) -> None:
        await self.store.close()


class _OneConnectionEach:
    """A peer whose callers each have a connection of their own, where every statement is a transaction."""

    async def open(self, dsn: str, callers: int) -> None:
        self.connections: list[Connection] = [
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(callers)
        ]
        await self.make(self.connections[0])

    async def make(self, connection: Connection) -> None:
        """Make the queue."""
        raise NotImplementedError

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()


class PgmqQueue(_OneConnectionEach):
    """pgmq's own functions, as its clients call them."""

    name = "pgmq"
    tables: tuple[str, ...] = ("pgmq.q_lives",)

    def __init__(self, sql: str) -> None:
        self._sql = sql

    async def make(self, connection: Connection) -> None:
        if await (await connection.execute("SELECT to_regnamespace('pgmq') IS NULL")).fetchone() == (True,):
            await connection.execute(self._sql.encode())
        await connection.execute("SELECT pgmq.create('lives')")
        await connection.execute("SELECT pgmq.purge_queue('lives')")

    async def send(self, caller: int, count: int) -> None:
        connection = self.connections[caller]
        if count == 1:
            await connection.execute("SELECT * FROM pgmq.send('lives', %s::jsonb)", (_BODY_JSON,))
        else:
            await connection.execute(
                "SELECT * FROM pgmq.send_batch('lives', %s::jsonb[])", ([_BODY_JSON] * count,)
            )

    async def receive(self, caller: int, count: int) -> Sequence[Any]:
        cursor = await self.connections[caller].execute(
            "SELECT * FROM pgmq.read('lives', %s, %s)", (VISIBILITY_S, count)
        )
        return [row[0] for row in await cursor.fetchall()]

    async def delete(self, caller: int, received: Sequence[Any]) -> None:
        connection = self.connections[caller]
        if len(received) == 1:
            await connection.execute("SELECT pgmq.delete('lives', %s::bigint)", (received[0],))
        else:
            await connection.execute("SELECT pgmq.delete('lives', %s::bigint[])", (list(received),))


class PlainQueue(_OneConnectionEach):
    """The least that has a visibility timeout: one table, one index, SKIP LOCKED; no rules, no counts, no receipts."""

    name = "plain"
    tables: tuple[str, ...] = ("plain_queue",)

    async def make(self, connection: Connection) -> None:
        await connection.execute("DROP TABLE IF EXISTS plain_queue")
        await connection.execute(
            """CREATE TABLE plain_queue (
                   id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                   visible_at timestamptz NOT NULL DEFAULT clock_timestamp(),
                   receives int NOT NULL DEFAULT 0,
                   body text NOT NULL
               )"""
        )
        await connection.execute("CREATE INDEX plain_queue_visible_at ON plain_queue (visible_at)")

    async def send(self, caller: int, count: int) -> None:
        await self.connections[caller].execute(
            "INSERT INTO plain_queue (body) SELECT unnest(%s::text[]) RETURNING id", ([BODY] * count,)
        )

    async def receive(self, caller: int, count: int) -> Sequence[Any]:
        cursor = await self.connections[caller].execute(
            """UPDATE plain_queue SET visible_at = clock_timestamp() + %s * interval '1 second', receives = receives + 1
               WHERE id = ANY (ARRAY(
                   SELECT id FROM plain_queue WHERE visible_at <= clock_timestamp()
                   ORDER BY visible_at LIMIT %s FOR UPDATE SKIP LOCKED))
               RETURNING id, body""",
            (VISIBILITY_S, count),
        )
        return [row[0] for row in await cursor.fetchall()]

    async def delete(self, caller: int, received: Sequence[Any]) -> None:
        await self.connections[caller].execute(
            "DELETE FROM plain_queue WHERE id = ANY (%s::bigint[])", (list(received),)
        )
