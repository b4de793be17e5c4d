"""The store that the settings name; only the one in use is imported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from veil.core.clock import Clock
from veil.core.errors import StoreError, VeilError
from veil.server.settings import Settings
from veil.stores.store import Store

if TYPE_CHECKING:
    from veil.journal.exporter import Exporter
    from veil.stores.postgres.store import PostgresStore
    from veil.stores.sharded import ShardedStore

_log = logging.getLogger(__name__)


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
    given: dict[str, Any] = {
        "journal": journal_location(settings) is not None,
        "outbox_bytes_max": settings.journal_outbox_max,
        "lease_grace": settings.lease_grace,
    }
    if is_on_postgres(settings):
        shared = _on_postgres(settings.store, **given)
        return shared, shared.clock
    if directory is None:
        from veil.stores.memory import MemoryStore

        return MemoryStore(clock, **given), clock
    from veil.stores.sqlite.store import SqliteStore

    store = SqliteStore(directory, clock, **given)
    store.on_failure = on_failure
    return store, clock


def _on_postgres(store: str, **given: Any) -> PostgresStore | ShardedStore:
    try:
        from veil.stores.postgres.store import PostgresStore
        from veil.stores.sharded import ShardedStore
    except ImportError as missing:
        raise StoreError(
            f"the driver is not installed ({missing.name}): pip install 'veilmq[postgres]'"
        ) from None
    dsns = store.split()
    return PostgresStore(dsns[0], **given) if len(dsns) == 1 else ShardedStore(dsns, **given)


# ---- the probe of a store that lives elsewhere

# Kubernetes gives a probe one second by default: the answer comes before that.
PATIENCE_S: Final = 0.8
# Probes closer together share one look.
_FRESH_S: Final = 0.25


class StoreProbe:
    """One look at a time, however many ask."""

    def __init__(self, store: PostgresStore | ShardedStore) -> None:
        self._store = store
        self._looking: asyncio.Task[str | None] | None = None
        self._looked_at_s: float = 0
        self._was_away = False

    async def problem(self) -> str | None:
        """Why the store cannot be used now; None where it can."""
        now_s = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now_s - self._looked_at_s >= _FRESH_S):
            self._looked_at_s = now_s
            self._looking = asyncio.create_task(self._look())
        # Shielded: whoever asked may go away, the others wait for the same look.
        return await asyncio.shield(self._looking)

    async def _look(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._store.probe()
        except (TimeoutError, VeilError) as problem:
            if not self._was_away:
                _log.warning(
                    "not ready: the database takes no messages (%s)", str(problem) or "it took too long"
                )
            self._was_away = True
            return "the database takes no messages"
        if self._was_away:
            _log.info("ready again: the database takes messages")
        self._was_away = False
        return None


# ---- the journal

# Imported when they are used: whoever waits for a server to be ready does not wait for the journal.

# Each start of a store in memory is a store of its own, and may go on where the last one stopped.
_IN_MEMORY: Final = "memory"


def journal_store_id(settings: Settings, store: Store) -> str:
    """The name under which the store marks its journal's location."""
    return _IN_MEMORY if settings.store == "memory" else store.store_id


def check_location(settings: Settings, store: Store) -> None:
    """Raise LocationRefused where a location on this machine holds another store's journal, OSError if it cannot be read.

    A remote location is looked at when something is exported, and the log tells.
    """
    where = journal_location(settings)
    if where is None or (settings.journal == "on" and not Path(where).exists()):
        return
    from veil.journal.storage import Location

    location = Location(where, journal_store_id(settings, store))
    if location.place.is_local:
        location.check()


def make_exporter(settings: Settings, store: Store, clock: Clock) -> Exporter | None:
    """The exporter of an open store, not started yet; None where there is no journal."""
    where = journal_location(settings)
    if where is None:
        return None
    from veil.journal.exporter import Exporter
    from veil.journal.helper_process import HelperProcess

    return Exporter(
        store,
        HelperProcess(where, journal_store_id(settings, store)),
        clock,
        interval_s=settings.journal_interval_s,
        retention_days=settings.journal_retention_days,
    )
