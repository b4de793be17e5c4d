"""Several nodes on one database, and what can be done to their connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg

from tests.stores.kit import HeardEvents
from tests.waiting import PATIENCE_S, until_async
from veil.core.clock import Clock
from veil.stores.postgres import PostgresStore


class WaitableEvents(HeardEvents):
    """Remembers what a store told its owner, and can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def messages_available(self, queue_id: int, count: int) -> None:
        super().messages_available(queue_id, count)
        self._news.set()

    async def wake(self, queue_id: int) -> None:
        """Return when messages of the queue were announced, and forget that they were."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.available[queue_id]:
                self._news.clear()
                await self._news.wait()
        self.available.clear()


@asynccontextmanager
async def nodes(
    dsn: str, count: int = 2, *, clock: Clock | None = None, **given: Any
) -> AsyncIterator[list[PostgresStore]]:
    """So many stores on the database, each hearing the others."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            store = PostgresStore(dsn, clock, **given)
            store.events = WaitableEvents()
            await store.open()
            stack.push_async_callback(store.close)
            opened.append(store)
            # Before the next one joins: who does not listen yet would not hear of it.
            if "veil_pooler" not in dsn:  # behind which nobody listens
                await until_async(lambda: store._engine.is_listening)  # noqa: B023
        await until_async(lambda: count == 1 or all(store._engine.has_other_nodes for store in opened))
        yield opened


def heard_by(store: PostgresStore) -> WaitableEvents:
    assert isinstance(store.events, WaitableEvents)
    return store.events


def ask(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """What a connection of our own answers."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def cut(dsn: str, which: str = "true") -> int:
    """End the connections of the database's nodes, as a failing network or an operator would, and return when they are gone; how
    many they were."""
    return len(
        ask(
            dsn,
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND pid <> pg_backend_pid() AND {which}",
        )
    )
