"""The connection between a node and its database: DSN, errors, the database's clock, and notifications."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from veil.core.clock import ClockMark, Timer
from veil.core.errors import StoreError, StoreFull, StoreUnavailable

# ---- DSN

CONNECTIONS_DEFAULT = 8
CONNECTIONS_MAX = 60
# TCP keepalive notices a vanished peer within seconds, unless the DSN says otherwise.
_LIVELINESS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "veil",
}
_POOLER, _CONNECTIONS = "veil_pooler", "veil_connections"


class Dsn(NamedTuple):
    """The connection string for libpq, and Veil's own options."""

    text: str
    # A transaction pooler is in between: no prepared statements.
    pooler: bool = False
    connections: int = CONNECTIONS_DEFAULT

    def options(self) -> dict[str, Any]:
        """The options of a connection besides the DSN."""
        given = psycopg.conninfo.conninfo_to_dict(self.text)
        quiet = {name: value for name, value in _LIVELINESS.items() if name not in given}
        return {**quiet, "autocommit": True, "prepare_threshold": None if self.pooler else 5}


def parse_dsn(given: str) -> Dsn:
    """Take Veil's own options out of a DSN; raises StoreError for a value that cannot be.

    `veil_pooler=1` says that a pooler hands each transaction another connection; `veil_connections=N` how many connections
    a node holds.
    """
    try:
        if "://" not in given:
            psycopg.conninfo.conninfo_to_dict(given)
            return Dsn(given)
        return _of_uri(given)
    except (psycopg.ProgrammingError, ValueError):
        # Without the driver's message, which quotes the part it could not parse: it may be the password.
        raise StoreError(
            "the address of the database cannot be read: expected postgresql://USER:PASSWORD@HOST[:PORT]/DATABASE"
            "[?OPTION=VALUE], with %XX for characters that have a meaning in a URL"
        ) from None


def _of_uri(given: str) -> Dsn:
    parts = urlsplit(given)
    options = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in options if name in (_POOLER, _CONNECTIONS)}
    query = urlencode([(name, value) for name, value in options if name not in own])
    pooler = own.get(_POOLER, "0")
    if pooler not in ("0", "1"):
        raise StoreError(f"{_POOLER}={pooler}: expected 0 or 1")
    connections = own.get(_CONNECTIONS, str(CONNECTIONS_DEFAULT))
    if not connections.isdigit() or not 1 <= int(connections) <= CONNECTIONS_MAX:
        raise StoreError(f"{_CONNECTIONS}={connections}: expected 1 to {CONNECTIONS_MAX}")
    text = urlunsplit(parts._replace(query=query))
    ports = str(psycopg.conninfo.conninfo_to_dict(text).get("port") or "")
    if not all(port.isdigit() or not port for port in ports.split(",")):
        # Otherwise it is half a password with an unescaped slash.
        raise ValueError("a port is a number")
    return Dsn(text, pooler == "1", int(connections))


# ---- errors of PostgreSQL as errors of the store

# The whole transaction was rolled back, and a retry may succeed.
RETRYABLE = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
# Another server has taken over, or will: the node tries another connection. A pooler whose server is down disconnects its clients
# with the code of a protocol violation.
_MOVED = (
    errors.ReadOnlySqlTransaction,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ProtocolViolation,
)


def is_lost(error: BaseException) -> bool:
    """Whether the connection is lost, or its server is read-only."""
    if isinstance(error, _MOVED):
        return True
    # An error without an SQLSTATE came from the connection itself.
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


def as_store_error(error: Exception) -> StoreError:
    """The error as a StoreError."""
    if isinstance(error, PoolTimeout | PoolClosed):
        return StoreUnavailable("no connection to PostgreSQL could be had in time")
    if isinstance(error, errors.DiskFull):
        return StoreFull(f"PostgreSQL has no room left: {first_line(error)}")
    if is_lost(error) or isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"PostgreSQL is not available: {first_line(error)}")
    return StoreError(f"PostgreSQL could not do it: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of the driver's message, without its details."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- the clock


class DatabaseClock:
    """Estimates the database's time from its answers. The estimate only decides when to ask."""

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        # Until the first answer, the machine's own clock is good enough.
        self._offset_ms = time.time_ns() // 1_000_000 - _elapsed_ms()

    def set_time(self, now_ms: int) -> None:
        """Set the estimate from the time in an answer."""
        # The estimate is behind by less than a round trip, so a timer is rather late than early.
        self._offset_ms = now_ms - _elapsed_ms()

    def now_ms(self) -> int:
        return _elapsed_ms() + self._offset_ms

    def wall_ms(self) -> int:
        return self.now_ms()

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        # The estimate is read again when the timer fires, so a clock that was set meanwhile costs at most one more look.
        delay_s = max(0, due_ms - self.now_ms()) / 1000
        return asyncio.get_running_loop().call_later(delay_s, call)

    def mark(self) -> ClockMark:
        return ClockMark(self.now_ms(), self.now_ms(), _elapsed_ms(), "database")

    def resume(self, saved: ClockMark) -> None:
        """Does nothing: the database's clock never stops."""


def _elapsed_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# ---- notifications between nodes, sent with COMMIT

CHANNEL: Final = "veil"
_WAKES_MAX: Final = 300  # of one notification, which holds less than 8,000 bytes


class Notice(NamedTuple):
    """One notification."""

    node: int
    epoch: int | None  # of the queues, if they have changed
    wakes: dict[int, int]  # by queue, how many messages may have become receivable


def write_notices(node: int, epoch: int | None, wakes: dict[int, int]) -> list[str]:
    """The payloads of the notifications that tell it."""
    pairs = [f"{queue_id}:{count}" for queue_id, count in wakes.items()]
    return [
        f"{node} {'' if epoch is None else epoch} {','.join(pairs[at : at + _WAKES_MAX])}"
        for at in range(0, max(1, len(pairs)), _WAKES_MAX)
    ]


def read_notice(payload: str) -> Notice | None:
    """Parse a payload; None if it is not one of Veil's, because anybody may use a channel."""
    try:
        node, epoch, some = payload.split(" ")
        pairs = [each.split(":") for each in some.split(",") if each]
        return Notice(
            int(node), int(epoch) if epoch else None, {int(queue_id): int(n) for queue_id, n in pairs}
        )
    except ValueError:
        return None
