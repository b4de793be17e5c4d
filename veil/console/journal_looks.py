"""Looks into the journal for single messages: one at a time, so that visitors do not read a year of it side by side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from veil.journal.life_reading import Look, read_life
from veil.journal.message_finding import Sightings, find_message
from veil.journal.place import Place
from veil.journal.segment_index import SegmentIndex

if TYPE_CHECKING:
    from veil.console.app import Console
    from veil.service.service import Service

FURTHER_MAX: Final = 64


class JournalLooks:
    """What the journal of one server tells about single messages."""

    def __init__(self, service: Service, location: str | None) -> None:
        self._service = service
        self._index = None if location is None else SegmentIndex(Place.at(location))
        self._looking = asyncio.Lock()

    @property
    def is_kept(self) -> bool:
        """Whether there is a journal at all."""
        return self._index is not None

    async def life(self, seq: int, further: int = 1) -> Look:
        """The events of the message with that key, wherever its life led it."""
        async with self._looking:
            return await read_life(self._service.store, self._index, seq, further=min(further, FURTHER_MAX))

    async def find(self, message_id: str, before: str | None = None) -> Sightings:
        """Where a message of that id was seen."""
        async with self._looking:
            return await find_message(self._service.store, self._index, message_id, before=before)


_looks: WeakKeyDictionary[Console, JournalLooks] = WeakKeyDictionary()


def journal_looks(console: Console) -> JournalLooks:
    """The looks of that console."""
    looks = _looks.get(console)
    if looks is None:
        looks = _looks[console] = JournalLooks(console.service, console.journal)
    return looks
