"""The address of the database, and what Veil itself reads from it."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg

from veil.core.errors import StoreError

CONNECTIONS_DEFAULT = 8
CONNECTIONS_MAX = 60
# A peer that vanished without a word is noticed within seconds, unless the DSN says otherwise.
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
    """What libpq is given, and how Veil uses it."""

    text: str
    pooler: bool = (
        False  # a transaction-pooling proxy stands between: nothing may be prepared on a connection
    )
    connections: int = CONNECTIONS_DEFAULT

    def options(self) -> dict[str, Any]:
        """What a connection is made with, besides the text."""
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
        # Not in the driver's words: they quote the part that it could not read, which may be the password.
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
        raise ValueError(
            "a port is a number"
        )  # else it is half a password, where somebody forgot to escape the slash in it
    return Dsn(text, pooler == "1", int(connections))
