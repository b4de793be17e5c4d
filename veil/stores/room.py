"""How much a receive may still take."""

from __future__ import annotations

from typing import Any

from veil.core.limits import RECEIVE_BYTES_MAX, RECEIVE_MAX

PAGE_MAX = 100  # rows with their bodies
_PAGE_MAX_OF_BYTES = 16
_BODY_BYTES = 18  # the column of every message query


class Room:
    """So many messages, and where that is bounded so many bytes of bodies."""

    __slots__ = ("bytes", "count")

    def __init__(self, count: int, bytes_max: int | None = None) -> None:
        self.count, self.bytes = count, bytes_max

    @classmethod
    def of(cls, count: int) -> Room:
        """Of an ordinary receive: ten messages cannot be too large, a thousand can."""
        return cls(count, RECEIVE_BYTES_MAX if count > RECEIVE_MAX else None)

    @property
    def page_max(self) -> int:
        """How many rows to read at once: where bytes count, fewer are read in vain."""
        return PAGE_MAX if self.bytes is None else _PAGE_MAX_OF_BYTES

    def took(self, row: Any) -> bool:
        """One more; True when that was the last."""
        self.count -= 1
        if self.bytes is not None:
            self.bytes -= row[_BODY_BYTES]
        return not self.is_left()

    def is_left(self) -> bool:
        """Whether another one fits."""
        return self.count > 0 and (self.bytes is None or self.bytes > 0)
