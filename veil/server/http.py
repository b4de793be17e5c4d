"""The listening HTTP server: it accepts, watches deadlines and stops; connections look after themselves."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from veil.server.http_connection import HttpConnection, ServerState
from veil.server.http_limits import Capacity, HttpLimits
from veil.server.tls import TlsConnection
from veil.wire.exchange import Handler

_SWEEP_EVERY_S = 1.0
_BACKLOG = 4096
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of the host (IPv4 and IPv6) that this machine has; port 0 takes a free one.

    Raises OSError where it has none of them, or one is in use.
    """
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = await asyncio.to_thread(socket.getaddrinfo, host or None, port, type=kind, flags=flags)
    sockets: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(found):
            try:
                listener = socket.create_server(address, family=family, backlog=_BACKLOG)
            except OSError as problem:
                if problem.errno not in _NOT_HERE:
                    raise
                missing = problem  # `localhost` has ::1 in many containers that have no IPv6
                continue
            sockets.append(listener)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
            listener.setblocking(False)
        if not sockets:
            raise missing
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


class HttpServer:
    """Serves one handler over HTTP/1.0 and 1.1 until closed."""

    def __init__(
        self, handler: Handler, limits: HttpLimits | None = None, capacity: Capacity | None = None
    ) -> None:
        """Servers of one process share their `capacity`; one that is given none has its own."""
        self._handler = handler
        self._limits = limits or HttpLimits()
        self._capacity = capacity or Capacity(self._limits)
        self._state: ServerState | None = None
        self._servers: list[asyncio.Server] = []  # one for each address
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, *, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Listen on every address of the host: see `listening`.

        With `tls` every connection speaks it, each by the context that there is when it comes.
        """
        self.open(tls=tls)
        loop = asyncio.get_running_loop()
        for each in await listening(host, port):
            self._servers.append(await loop.create_server(self._connect, sock=each, backlog=_BACKLOG))

    def open(self, *, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Be ready for connections that somebody else accepts: see `adopt`."""
        if self._state is not None:
            raise RuntimeError("the HTTP server was started before")
        loop = asyncio.get_running_loop()
        self._state = ServerState(self._handler, self._limits, self._capacity, loop)
        self._tls = tls
        self._sweep_again(loop, self._state)

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere."""
        await asyncio.get_running_loop().connect_accepted_socket(self._connect, connection)

    def _connect(self) -> asyncio.Protocol:
        assert self._state is not None
        return HttpConnection(self._state) if self._tls is None else TlsConnection(self._state, self._tls())

    @property
    def address(self) -> tuple[str, int]:
        host, port, *_ = self._servers[0].sockets[0].getsockname()
        return host, port

    @property
    def port(self) -> int:
        return self.address[1]

    @property
    def connection_count(self) -> int:
        """How many connections are open, including those that are being closed."""
        return len(self._state.connections) if self._state is not None else 0

    def sweep(self, now_s: float) -> None:
        """Act on every connection whose deadline has passed by `now_s`, on the event loop's clock."""
        if self._state is None:
            return
        # One pass a second instead of a timer for each request: a request sets and clears its deadlines by
        # assigning a number, and five thousand idle connections cost a fraction of a millisecond.
        for connection in [each for each in self._state.connections if each.deadline_s <= now_s]:
            connection.expire(now_s)

    async def close(self, grace_s: float) -> None:
        """Stop accepting, let requests that have begun be answered for up to `grace_s`, then cut the rest.

        On return no handler of this server is running, unless it swallows its cancellation.
        """
        state = self._state
        if state is None or state.closing:
            return
        state.closing = True
        for server in self._servers:
            server.close()
        for connection in tuple(state.connections):
            connection.retire()
        if not await self._all_gone(state, grace_s):
            for connection in tuple(state.connections):
                connection.abort()
            await self._all_gone(state, grace_s=1.0)
        state.dismiss_workers()
        if self._sweeper is not None:
            self._sweeper.cancel()

    @staticmethod
    async def _all_gone(state: ServerState, grace_s: float) -> bool:
        state.emptied.clear()
        if state.connections:
            try:
                await asyncio.wait_for(state.emptied.wait(), grace_s)
            except TimeoutError:
                return False
        return True

    def _sweep_again(self, loop: asyncio.AbstractEventLoop, state: ServerState) -> None:
        self._sweeper = loop.call_later(_SWEEP_EVERY_S, self._sweep_again, loop, state)
        self.sweep(loop.time())
