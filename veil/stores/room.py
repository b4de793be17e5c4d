"""How much a receive may still take."""

from __future__ import annotations

from typing import Any

_BODY_BYTES = 18  # the column of every message query


class Room:
    """So many messages, and where that is bounded so many bytes of bodies."""

    __slots__ = ("bytes", "count")

    def __init__(self, count: int, bytes_max: int | None = None) -> None:
        self.count, self.bytes = count, bytes_max

    def took(self, row: Any) -> bool:
        """One more; True when that was the last."""
        self.count -= 1
        if self.bytes is not None:
            self.bytes -= row[_BODY_BYTES]
        return not self.is_left()

    def is_left(self) -> bool:
        """Whether another one fits."""
        return self.count > 0 and (self.bytes is None or self.bytes > 0)
