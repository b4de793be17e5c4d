"""The journal of a server: whose it is, and the exporter that writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from veil.core.clock import Clock
from veil.server.make_store import journal_location
from veil.server.settings import Settings
from veil.stores.store import Store

if TYPE_CHECKING:
    from veil.journal.exporter import Exporter

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
