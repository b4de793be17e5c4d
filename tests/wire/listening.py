"""A front end behind the real HTTP server, in a thread with its own loop, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from veil.server.http import HttpServer
from veil.server.system_clock import SystemClock
from veil.service.service import Service, ServiceRules
from veil.stores.memory import MemoryStore
from veil.wire.front_end import SqsFrontEnd
from veil.wire.sigv4 import Verifier


@contextmanager
def listening(verifier: Verifier | None = None) -> Iterator[int]:
    """The port of a server that runs until the block ends; names and purges need no rest in it."""
    ready = threading.Event()
    ports: list[int] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        clock = SystemClock()
        service = Service(MemoryStore(clock), clock, ServiceRules(0, 0))
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
    assert ready.wait(10)
    try:
        yield ports[0]
    finally:
        loop, ended = stop[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
