"""The store that the settings name; only the one in use is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from veil.core.clock import Clock
from veil.core.errors import StoreError
from veil.server.settings import Settings
from veil.stores.store import Store

if TYPE_CHECKING:
    from veil.stores.postgres.store import PostgresStore

JOURNAL_FOLDER = "journal"
_POSTGRES = "postgresql://"


def is_on_postgres(settings: Settings) -> bool:
    """Whether the messages live in a PostgreSQL, which other nodes may share."""
    return settings.store.startswith(_POSTGRES)


def store_directory(settings: Settings) -> Path | None:
    """Where the store keeps its files; None when it has none."""
    if settings.store == "memory" or is_on_postgres(settings):
        return None
    if settings.store == "sqlite":
        return settings.data
    # sqlite:///var/lib/veil: what follows the empty host is the path, so it is absolute.
    return Path("/" + unquote(settings.store.removeprefix("sqlite:///")).lstrip("/"))


def journal_location(settings: Settings) -> str | None:
    """Where the journal is written, as a path or URI; None where there is none."""
    if settings.journal == "off":
        return None
    if settings.journal != "on":
        return settings.journal
    directory = store_directory(settings)
    return None if directory is None else str(directory / JOURNAL_FOLDER)


def make_store(
    settings: Settings, clock: Clock, on_failure: Callable[[BaseException], None]
) -> tuple[Store, Clock]:
    """The store, not open yet, and the clock that it lives by; it calls `on_failure` once it can no longer be trusted.

    Nodes that share a PostgreSQL share its clock: theirs could disagree. Raises StoreError where its driver is missing.
    """
    directory = store_directory(settings)
    has_journal, outbox_bytes_max = journal_location(settings) is not None, settings.journal_outbox_max
    if is_on_postgres(settings):
        shared = _on_postgres(settings.store, journal=has_journal, outbox_bytes_max=outbox_bytes_max)
        return shared, shared.clock
    if directory is None:
        from veil.stores.memory import MemoryStore

        return MemoryStore(clock, journal=has_journal, outbox_bytes_max=outbox_bytes_max), clock
    from veil.stores.sqlite.store import SqliteStore

    store = SqliteStore(directory, clock, journal=has_journal, outbox_bytes_max=outbox_bytes_max)
    store.on_failure = on_failure
    return store, clock


def _on_postgres(dsn: str, **given: Any) -> PostgresStore:
    try:
        from veil.stores.postgres.store import PostgresStore
    except ImportError as missing:
        raise StoreError(
            f"the driver is not installed ({missing.name}): pip install 'veilmq[postgres]'"
        ) from None
    return PostgresStore(dsn, **given)
