"""A proxy in front of PostgreSQL that hands out connections by transaction, as PgBouncer does in that mode.

Only what the tests need: no passwords, no TLS, no cancelling. It is unkinder than a real one: every transaction gets the
connection that has rested longest, so whatever a client left behind on one it does not find again.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from pathlib import Path
from types import TracebackType

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
_ANSWERED = b"QSF"  # messages that PostgreSQL answers with ReadyForQuery

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPooler:
    """Listens on a socket in its folder; `connections` are shared by all clients."""

    def __init__(self, upstream: Path, folder: Path, port: int, *, connections: int = 4) -> None:
        self._upstream, self._count = upstream, connections
        self.folder, self.port = folder, port
        self._free: deque[Streams] = deque()
        self._freed = asyncio.Condition()
        self._all: list[Streams] = []
        self._greeting = b""
        self._opening = asyncio.Lock()
        self._clients: set[asyncio.Task[None]] = set()
        self.transactions = self.refused = 0
        self.is_away = (
            False  # whether the database is: clients are greeted all the same, and lose their connection then
        )

    async def __aenter__(self) -> TransactionPooler:
        path = self.folder / f".s.PGSQL.{self.port}"
        self._server = await asyncio.start_unix_server(self._serve, path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for _, writer in self._all:
            writer.close()

    # ---- the server's side

    async def _open(self, startup: bytes) -> None:
        """Make the connections with the first client's startup message; its answer greets every client."""
        while len(self._all) < self._count:
            reader, writer = await asyncio.open_unix_connection(self._upstream)
            self._all.append((reader, writer))
            writer.write(startup)
            greeting = b""
            while True:
                kind, message = await _read(reader)
                greeting += message
                if kind == b"Z":
                    break
            self._greeting = self._greeting or greeting
            self._free.append((reader, writer))

    async def _take(self) -> Streams:
        async with self._freed:
            await self._freed.wait_for(lambda: bool(self._free))
            self.transactions += 1
            return self._free.popleft()

    async def _give_back(self, streams: Streams) -> None:
        async with self._freed:
            self._free.append(streams)
            self._freed.notify()

    # ---- a client

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(self._pass_on(reader, writer))
        self._clients.add(client)
        try:
            await client
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or we do
        finally:
            self._clients.discard(client)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await self._startup(reader, writer)
        async with self._opening:
            await self._open(startup)
        writer.write(self._greeting)
        if self.is_away:
            await _read(reader)
            self.refused += 1
            return
        streams: Streams | None = None
        awaited = 0
        from_client = asyncio.ensure_future(_read(reader))
        from_server: asyncio.Future[tuple[bytes, bytes]] | None = None
        try:
            while True:
                await asyncio.wait(
                    [each for each in (from_client, from_server) if each is not None],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if from_server is not None and from_server.done():
                    assert streams is not None
                    kind, message = from_server.result()
                    writer.write(message)
                    awaited -= kind == b"Z"
                    if kind == b"Z" and awaited == 0 and message[-1:] == b"I":
                        # No transaction is open: what comes next is for another connection.
                        await self._give_back(streams)
                        streams = from_server = None
                    else:
                        from_server = asyncio.ensure_future(_read(streams[0]))
                if from_client.done():
                    kind, message = from_client.result()
                    if kind == b"X":
                        return
                    if streams is None:
                        streams = await self._take()
                        from_server = asyncio.ensure_future(_read(streams[0]))
                    awaited += kind in _ANSWERED
                    streams[1].write(message)
                    from_client = asyncio.ensure_future(_read(reader))
        finally:
            from_client.cancel()
            if from_server is not None:
                from_server.cancel()
            if streams is not None:
                streams[1].close()  # in the middle of a transaction: it is rolled back with its connection

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            if code not in (_SSL_REQUEST, _GSS_REQUEST):
                return head + await reader.readexactly(length - 8)
            writer.write(b"N")


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One message: its kind, and all of it."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)
