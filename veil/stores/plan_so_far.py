"""What the next export will hold, while it is being decided."""

from __future__ import annotations

from veil.stores.export_day import export_day


class PlanSoFar:
    """The rows that a plan will hold, as far as they were looked at: all of one day, and within the bounds."""

    __slots__ = ("_bytes", "day", "last", "rows")

    def __init__(self) -> None:
        self.last = self.rows = self._bytes = 0
        self.day = ""

    def take(self, number: int, at_ms: int, size: int, bytes_max: int) -> bool:
        """Take one more row, if it belongs to the plan; the first always does."""
        day = export_day(at_ms)
        if self.rows and (day != self.day or self._bytes + size > bytes_max):
            return False
        self.last, self.day = number, day
        self.rows += 1
        self._bytes += size
        return True
