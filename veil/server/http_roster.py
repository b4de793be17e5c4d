"""The connections of one server, and who must go when there are too many."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from veil.server.http_limits import REFUSED_LINGERING_MAX, HttpLimits
from veil.wire.exchange import Handler

if TYPE_CHECKING:
    from veil.server.http_connection import HttpConnection

log = logging.getLogger("veil.http")

# What any client can bring about is logged at most this often, each kind by itself.
_NOTE_EVERY_S = 60.0


class Capacity:
    """What all listeners of a process have together: seats for connections, and memory for what these hold."""

    def __init__(self, limits: HttpLimits) -> None:
        self.connections_max = limits.connections_max
        # A refused newcomer lingers for a moment to be told so; beyond this many it is cut without a word.
        self.refused_max = REFUSED_LINGERING_MAX
        self.held_bytes_max = limits.body_bytes_total_max
        self.connection_count = 0  # the refused included
        self.seats_taken = 0  # by connections that may send requests; the refused linger without one
        self.idle: dict[HttpConnection, float] = {}  # since when, in the order in which they fell idle
        self.held_bytes = 0  # of large bodies that came in, and of answers that clients have not taken yet

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.held_bytes + size_bytes <= self.held_bytes_max

    def overrun(self) -> bool:
        """Whether so many refused connections linger that the next is not worth an answer."""
        return self.connection_count - self.seats_taken > self.refused_max


class Roster:
    """What the connections of one listener share; made by the server, used by its connections."""

    def __init__(
        self, handler: Handler, limits: HttpLimits, capacity: Capacity, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.capacity = capacity
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.closing = False
        self.emptied = asyncio.Event()
        self._noted_s: dict[str, float] = {}  # when a kind of mistake was logged last; kinds are few

    def enter(self, connection: HttpConnection) -> bool:
        """Take the newcomer in, in place of the longest idle one if need be; False if it must be refused."""
        self.connections.add(connection)
        capacity, limits = self.capacity, self.limits
        capacity.connection_count += 1
        if capacity.seats_taken >= capacity.connections_max:
            oldest = next(iter(capacity.idle), None)
            if oldest is None or capacity.idle[oldest] + limits.idle_spared_s > self.loop.time():
                return False
            self.vacate(oldest)
            oldest.abort()
        capacity.seats_taken += 1
        connection.seated = True
        return True

    def vacate(self, connection: HttpConnection) -> None:
        """Free the connection's seat, once."""
        if connection.seated:
            connection.seated = False
            self.capacity.seats_taken -= 1

    def leave(self, connection: HttpConnection) -> None:
        """Forget the connection: it is closed and its request has ended."""
        self.vacate(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            self.capacity.connection_count -= 1
        self.capacity.idle.pop(connection, None)
        if not self.connections:
            self.emptied.set()

    def note(self, kind: str, text: str) -> None:
        """Log a mistake of a client's, unless one of its kind was logged within the last minute."""
        now_s = self.loop.time()
        last_s = self._noted_s.get(kind)
        if last_s is None or now_s >= last_s + _NOTE_EVERY_S:
            self._noted_s[kind] = now_s
            log.warning("%s", text)
