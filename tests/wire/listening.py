"""A front end behind the real HTTP server, in a thread with its own loop, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop

from tests.postgres_kit import drop_database, new_database, why_no_postgres
from veil.core.clock import Clock
from veil.server.http import HttpServer
from veil.server.process import SystemClock
from veil.service.service import Service, ServiceRules
from veil.stores.memory import MemoryStore
from veil.stores.store import Store
from veil.wire.front_end import SqsFrontEnd
from veil.wire.sigv4 import Verifier


@contextmanager
def listening(verifier: Verifier | None = None, *, store_name: str = "memory") -> Iterator[int]:
    """The port of a server that runs until the block ends; names and purges need no rest in it."""
    reason = why_no_postgres() if store_name == "postgres" else None
    if reason is not None:
        pytest.skip(reason)
    dsn = new_database() if store_name == "postgres" else None
    ready = threading.Event()
    ports: list[int] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        store, clock = _on_postgres(dsn) if dsn is not None else _in_memory()
        service = Service(store, clock, ServiceRules(0, 0))
        await service.start()
        server = HttpServer(SqsFrontEnd(service, verifier=verifier).handle)
        await server.start("127.0.0.1", 0)
        ended = asyncio.Event()
        ports.append(server.port)
        stop.append((asyncio.get_running_loop(), ended))
        ready.set()
        await ended.wait()
        await server.close(grace_s=1)
        await service.stop()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(120)
    try:
        yield ports[0]
    finally:
        loop, ended = stop[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(120)
        if dsn is not None:
            drop_database(dsn)


def _in_memory() -> tuple[Store, Clock]:
    clock = SystemClock()
    return MemoryStore(clock), clock


def _on_postgres(dsn: str) -> tuple[Store, Clock]:
    from veil.stores.postgres import PostgresStore

    store = PostgresStore(dsn)
    return store, store.clock
