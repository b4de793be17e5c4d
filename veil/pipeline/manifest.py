"""The one file that says what the tables are: it names every file of theirs, and is replaced as a whole.

A run writes new files beside the old and then this; so whoever reads it sees all of a run or nothing of it, and a run that
dies leaves files that nothing names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from veil.core.errors import VeilError
from veil.journal.place import Place

NAME: Final = "manifest.json"
VERSION: Final = 2


class TablesRefused(VeilError):
    """The tables cannot be read or written as they are."""


class Broken(msgspec.Struct, frozen=True):
    """A segment that was set aside, and why."""

    name: str
    reason: str


class Hour(msgspec.Struct, frozen=True):
    """The rows of the messages that were sent in one hour: files by table, and what later runs must know of them."""

    leases: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    queue_hours: tuple[str, ...] = ()
    rows: int = 0  # of leases and messages
    open: int = 0  # leases: how they end depends on what time it is


class Manifest(msgspec.Struct, frozen=True):
    """What the tables are. Hours, days and months are whole ones since 1970."""

    version: int = VERSION
    generation: int = 0  # how many times the tables have changed
    store_id: str | None = None  # whose journal it is
    newest_ms: int | None = None  # the last known instant: the newest event
    progress: dict[str, list[tuple[int, int]]] = {}  # journal id → outbox rows that are in the tables
    broken: list[Broken] = []
    hours: dict[int, Hour] = {}
    days: dict[int, list[str]] = {}
    months: dict[int, list[str]] = {}
    # Named by the generation before: kept for its readers until the next one.
    retired: list[str] = []

    def files(self) -> Iterator[str]:
        """Every file that the tables consist of."""
        for hour in self.hours.values():
            yield from (*hour.leases, *hour.messages, *hour.queue_hours)
        for files in (*self.days.values(), *self.months.values()):
            yield from files

    def files_of(self, table: str) -> list[str]:
        """The files of one table, oldest hour first."""
        if table in ("queue_days", "queue_months"):
            parts = self.days if table == "queue_days" else self.months
            return [file for part in sorted(parts) for file in parts[part]]
        return [file for hour in sorted(self.hours) for file in getattr(self.hours[hour], table)]


def load_manifest(tables: Place) -> Manifest:
    """The manifest as it is now; an empty one where there are no tables yet."""
    try:
        content = tables.read(NAME)
    except FileNotFoundError:
        return Manifest()
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise TablesRefused(
                f"{tables.uri}/{NAME} has version {version}, this Veil knows {VERSION}: "
                + ("upgrade Veil" if version > VERSION else "make the tables anew in another place")
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as problem:
        raise TablesRefused(f"{tables.uri}/{NAME} cannot be read: {problem}") from None


def save_manifest(tables: Place, manifest: Manifest) -> None:
    """Make the tables what the manifest says, from one instant to the next."""
    tables.write(NAME, msgspec.json.encode(manifest))


class _Versioned(msgspec.Struct):
    version: int
