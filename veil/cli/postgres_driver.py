"""Whether the commands for PostgreSQL can work here, and whether they can make sense of a DSN."""

from __future__ import annotations

from veil.cli.failures import CommandFailed
from veil.core.errors import StoreError
from veil.server.shown_url import without_password


def need_driver(dsn: str) -> None:
    """Raise CommandFailed, in words, where the driver is missing or the DSN cannot be read."""
    try:
        from veil.stores.postgres.dsn import parse_dsn
    except ImportError:
        raise CommandFailed(
            "the driver for PostgreSQL is not installed: pip install 'veilmq[postgres]'"
        ) from None
    try:
        parse_dsn(dsn)
    except StoreError as problem:
        raise CommandFailed(f"{without_password(dsn)}: {problem}") from None
