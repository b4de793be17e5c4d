"""Request ids: unlike each other and unlike those of any other process, at the price of a counter."""

from __future__ import annotations

from itertools import count
from uuid import uuid4


class RequestIds:
    """Gives out ids in the form of UUIDs: a random half for the process, a counted one for the request."""

    __slots__ = ("_counter", "_prefix")

    def __init__(self) -> None:
        self._prefix = str(uuid4())[:24]
        self._counter = count(1)

    def next(self) -> str:
        """An id that was not given out before."""
        return f"{self._prefix}{next(self._counter):012x}"
