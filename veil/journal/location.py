"""Where one store's journal lies: marked with whose it is, and cleared of the days whose time is over."""

from __future__ import annotations

import json
from typing import Final

from veil.core.errors import VeilError
from veil.journal.place import Place
from veil.journal.schema import VERSION

MARK: Final = "_journal.json"


class LocationRefused(VeilError):
    """The location holds something that is not this store's journal."""


class Location:
    """A place that holds, or will hold, the journal of one store."""

    def __init__(self, where: str, store_id: str) -> None:
        self.place = Place.at(where)
        self._store_id = store_id
        self._claimed = False

    def check(self) -> bool:
        """Is it marked as ours? False: not marked at all. Raises LocationRefused if it is another store's, or newer."""
        mark = read_mark(self.place)
        if mark is None:
            return False
        store_id, version = mark
        if store_id != self._store_id:
            # Messages are known by their order keys, which two stores would give out twice.
            raise LocationRefused(
                f"{self.place.uri} holds the journal of another store: name another location"
            )
        if version > VERSION:
            raise LocationRefused(
                f"{self.place.uri} holds a journal of version {version}, newer than {VERSION}: upgrade Veil"
            )
        return True

    def claim(self) -> None:
        """Mark it as ours; raises LocationRefused if it cannot be. Drafts of writers that were killed are removed."""
        if self._claimed:
            return
        if not self.check():
            content = json.dumps({"store_id": self._store_id, "version": VERSION})
            self.place.write(MARK, content.encode())
        self.place.remove_drafts()
        self._claimed = True

    def sweep(self, before_day: str) -> list[str]:
        """Remove the days before this one and say which; nothing where the location is not marked as ours."""
        if not self.check():
            return []
        over = [
            entry.name
            for entry in self.place.entries()
            if entry.is_folder and "day=" <= entry.name < f"day={before_day}"
        ]
        for folder in over:
            self.place.remove_folder(folder)
        return [folder.removeprefix("day=") for folder in over]


def read_mark(place: Place) -> tuple[str, int] | None:
    """Whose journal a place holds and of which version; None where it holds none."""
    if not place.exists(MARK):
        return None
    try:
        mark = json.loads(place.read(MARK))
        return str(mark["store_id"]), int(mark["version"])
    except (ValueError, TypeError, KeyError):
        raise LocationRefused(f"{place.uri}/{MARK} cannot be read: expected store_id and version") from None
