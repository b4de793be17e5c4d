"""What one client may cost the server before it is turned away."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_KIB = 1024
_MIB = 1024 * _KIB
REFUSED_LINGERING_MAX = 256  # connections beside those that are served
# For what the process opens later: databases, segments that the console reads, the pipes of helpers.
_FILES_RESERVED = 64


def _limit(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    """The bounds of the HTTP layer; what each may be, the settings check."""

    # fmt: off
    header_bytes_max: int = _limit(32 * _KIB, "Bytes of a request line and its headers.")
    header_count_max: int = _limit(100, "Headers of a request.")
    # A 1 MiB message triples in form encoding and grows sixfold in JSON escapes.
    body_bytes_max: int = _limit(8 * _MIB, "Bytes of a request's body.")
    body_bytes_total_max: int = _limit(
        512 * _MIB, "Bytes of large requests and of unread answers that all connections may hold together.")
    header_deadline_s: float = _limit(10.0, "Seconds from a request's first byte to the end of its headers.")
    body_deadline_s: float = _limit(30.0, "Seconds from there to the end of its body.")
    # Longer than the 60 s that load balancers keep theirs.
    idle_s: float = _limit(75.0, "Seconds a connection may rest between requests.")
    write_deadline_s: float = _limit(30.0, "Seconds a client may take no byte of its answer.")
    linger_s: float = _limit(2.0, "Seconds that a refused client may keep sending before it is disconnected.")
    write_buffer_bytes_max: int = _limit(
        64 * _KIB, "Bytes of answers waiting for one client before it is no longer read from.")
    connections_max: int = _limit(20_000, "Connections at a time; fewer if the process may not open that many files.")
    # Under a burst each newcomer would otherwise evict the one before it, which was just about to send.
    idle_spared_s: float = _limit(1.0, "Seconds of rest before a connection may be given up for a new one.")
    # fmt: on


class Capacity:
    """What all listeners of a server have together: seats for connections, and memory for what these hold."""

    def __init__(self, limits: HttpLimits) -> None:
        self.connections_max = limits.connections_max
        # A refused newcomer lingers for a moment to be told so; beyond this many it is cut without a word.
        self.refused_max = REFUSED_LINGERING_MAX
        self.held_bytes_max = limits.body_bytes_total_max
        self.connection_count = 0  # the refused included
        self.seats_taken = 0  # by connections that may send requests; the refused linger without one
        self.idle: dict[Any, float] = {}  # connections, since when, in the order in which they fell idle
        self.held_bytes = 0  # of large bodies that came in, and of answers that clients have not taken yet

    def lose(self) -> None:
        self.connection_count -= 1

    def is_full(self) -> bool:
        return self.seats_taken >= self.connections_max

    def has_room_for(self, size_bytes: int) -> bool:
        return self.held_bytes + size_bytes <= self.held_bytes_max

    def overrun(self) -> bool:
        """Whether so many refused connections linger that the next is not worth an answer."""
        return self.connection_count - self.seats_taken > self.refused_max


class ConnectionRoom(NamedTuple):
    """How many connections the process has files for."""

    connections: int
    refused: int  # beside them, for a moment, to be told so
    files: int  # that the process may have open


def room_for_connections(wanted: int, reserved: int = 0) -> ConnectionRoom:
    """Fit the wanted number of connections into the open files that the process may have; raises its limit where it may.

    `reserved` files are kept free beside those that are open now and those that any server needs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = sum(1 for _ in Path("/dev/fd").iterdir())
    kept = opened + reserved + _FILES_RESERVED
    aim = kept + wanted + REFUSED_LINGERING_MAX
    hard_files = aim if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < min(aim, hard_files):
        with suppress(OSError, ValueError):  # a container may forbid even this
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(aim, hard_files), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = aim if soft == resource.RLIM_INFINITY else soft
    # Where there are few, a reserve of a quarter is better than a server without seats.
    left = files - min(kept, opened + reserved + files // 4)
    refused = max(1, min(REFUSED_LINGERING_MAX, left // 8))
    return ConnectionRoom(min(wanted, left - refused), refused, files)
