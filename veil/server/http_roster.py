"""The connections of one server, and who must go when there are too many."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from veil.server.http_limits import HttpLimits
from veil.wire.exchange import Handler

if TYPE_CHECKING:
    from veil.server.http_connection import HttpConnection

# A refused newcomer lingers for a moment to be told so; beyond this many it is cut without a word.
_REFUSED_LINGERING_MAX = 256


class Roster:
    """What the connections of one server share; made by the server, used by its connections."""

    def __init__(self, handler: Handler, limits: HttpLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.idle: dict[HttpConnection, None] = {}  # in the order in which they fell idle
        self.seats_taken = 0  # by connections that may send requests; the refused linger without one
        self.large_body_bytes = 0  # held by all connections together
        self.closing = False
        self.emptied = asyncio.Event()

    def enter(self, connection: HttpConnection) -> bool:
        """Take the newcomer in, in place of the longest idle one if need be; False if it must be refused."""
        self.connections.add(connection)
        limits = self.limits
        if self.seats_taken >= limits.connections_max:
            oldest = next(iter(self.idle), None)
            if oldest is None or oldest.deadline_s - limits.idle_s + limits.idle_spared_s > self.loop.time():
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
