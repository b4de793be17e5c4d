"""The connections of one server, and who must go when there are too many."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from veil.server.http_limits import HttpLimits
from veil.wire.exchange import Handler

if TYPE_CHECKING:
    from veil.server.http_connection import HttpConnection

log = logging.getLogger("veil.http")

# What any client can bring about is logged at most this often, each kind by itself.
_NOTE_EVERY_S = 60.0
# A refused newcomer lingers for a moment to be told so; beyond this many it is cut without a word.
_REFUSED_LINGERING_MAX = 256


class Roster:
    """What the connections of one server share; made by the server, used by its connections."""

    def __init__(self, handler: Handler, limits: HttpLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.idle: dict[HttpConnection, float] = {}  # since when, in the order in which they fell idle
        self.seats_taken = 0  # by connections that may send requests; the refused linger without one
        self.large_body_bytes = 0  # held by all connections together
        self.closing = False
        self.emptied = asyncio.Event()
        self._noted_s: dict[str, float] = {}  # when a kind of mistake was logged last; kinds are few

    def enter(self, connection: HttpConnection) -> bool:
        """Take the newcomer in, in place of the longest idle one if need be; False if it must be refused."""
        self.connections.add(connection)
        limits = self.limits
        if self.seats_taken >= limits.connections_max:
            oldest = next(iter(self.idle), None)
            if oldest is None or self.idle[oldest] + limits.idle_spared_s > self.loop.time():
                return False
            self.vacate(oldest)
            oldest.abort()
        self.seats_taken += 1
        connection.seated = True
        return True

    def overrun(self) -> bool:
        """Whether so many refused connections linger that the next is not worth an answer."""
        return len(self.connections) - self.seats_taken > _REFUSED_LINGERING_MAX

    def vacate(self, connection: HttpConnection) -> None:
        """Free the connection's seat, once."""
        if connection.seated:
            connection.seated = False
            self.seats_taken -= 1

    def leave(self, connection: HttpConnection) -> None:
        """Forget the connection: it is closed and its request has ended."""
        self.vacate(connection)
        self.connections.discard(connection)
        self.idle.pop(connection, None)
        if not self.connections:
            self.emptied.set()

    def note(self, kind: str, text: str) -> None:
        """Log a mistake of a client's, unless one of its kind was logged within the last minute."""
        now_s = self.loop.time()
        last_s = self._noted_s.get(kind)
        if last_s is None or now_s >= last_s + _NOTE_EVERY_S:
            self._noted_s[kind] = now_s
            log.warning("%s", text)
