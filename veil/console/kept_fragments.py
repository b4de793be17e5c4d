"""Pieces of a stream that are drawn again only when what they show has changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

from veil.console.visit import Visit


class KeptFragments:
    """Keeps what one stream drew last, by what it was drawn from."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, str] = {}
        self._used: dict[Hashable, str] = {}

    def get(self, key: Hashable, draw: Callable[[], str]) -> str:
        """The fragment of that key; the key must tell all that the drawing depends on."""
        html = self._kept.get(key)
        if html is None:
            html = draw()
        self._used[key] = html
        return html

    def end_round(self) -> None:
        """Forget what was not asked for since the last round ended."""
        self._kept, self._used = self._used, {}


_of_visit: WeakKeyDictionary[Visit, KeptFragments] = WeakKeyDictionary()


def kept_fragments(visit: Visit) -> KeptFragments:
    """Those of the stream that this visit is."""
    return _of_visit.setdefault(visit, KeptFragments())
