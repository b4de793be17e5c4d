"""What every outbox of the journal has in common: its bound, and how a plan over its rows comes about."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

OUTBOX_BYTES_MAX = 1 << 30
_SAY_EVERY_MS = 60_000

_log = logging.getLogger(__name__)


class OutboxBound:
    """Decides whether there is room for more, and keeps count of what there was none for.

    When nobody takes the outbox away, events are given up rather than the disk filled: a queue that cannot be written to is
    worse than a gap in its journal. What was not recorded is counted, and the log says so, at most once a minute.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.lost_events = 0
        self._said_at_ms: int | None = None

    def give_up(self, events: int, now_ms: int) -> None:
        """Count events that are not recorded."""
        self.lost_events += events
        if self._said_at_ms is None or now_ms - self._said_at_ms >= _SAY_EVERY_MS:
            self._said_at_ms = now_ms
            _log.warning(
                "the journal is not exported and its outbox has reached %d bytes: %d events were not recorded since the"
                " start; the queues go on",
                self.bytes_max,
                self.lost_events,
            )


class PlanBuilder:
    """The rows of the next export while they are being decided: all of one day, and within the bounds."""

    __slots__ = ("_bytes", "day", "last", "rows")

    def __init__(self) -> None:
        self.last = self.rows = self._bytes = 0
        self.day = ""

    def take(self, number: int, at_ms: int, size: int, bytes_max: int) -> bool:
        """Take one more row, if it belongs to the plan; the first always does."""
        day = datetime.fromtimestamp(at_ms // 1000, UTC).date().isoformat()
        if self.rows and (day != self.day or self._bytes + size > bytes_max):
            return False
        self.last, self.day = number, day
        self.rows += 1
        self._bytes += size
        return True
