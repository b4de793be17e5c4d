"""The store that the settings name; only the one in use is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from veil.core.clock import Clock
from veil.server.settings import Settings
from veil.stores.store import Store

JOURNAL_FOLDER = "journal"


def store_directory(settings: Settings) -> Path | None:
    """Where the store keeps its files; None when it has none."""
    if settings.store == "memory":
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


def make_store(settings: Settings, clock: Clock, on_failure: Callable[[BaseException], None]) -> Store:
    """The store, not open yet; it calls `on_failure` once it can no longer be trusted."""
    directory = store_directory(settings)
    has_journal, outbox_bytes_max = journal_location(settings) is not None, settings.journal_outbox_max
    if directory is None:
        from veil.stores.memory import MemoryStore

        return MemoryStore(clock, journal=has_journal, outbox_bytes_max=outbox_bytes_max)
    from veil.stores.sqlite.store import SqliteStore

    store = SqliteStore(directory, clock, journal=has_journal, outbox_bytes_max=outbox_bytes_max)
    store.on_failure = on_failure
    return store
