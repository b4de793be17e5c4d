"""What happens when nobody takes the outbox away: events are given up rather than the disk filled.

A queue that cannot be written to is worse than a gap in its journal. So above the bound nothing is recorded, what was not
is counted, and the log says so, at most once a minute.
"""

from __future__ import annotations

import logging

OUTBOX_BYTES_MAX = 1 << 30
_SAY_EVERY_MS = 60_000

log = logging.getLogger("veil.store")


class OutboxBound:
    """Decides whether there is room for more, and keeps count of what there was none for."""

    __slots__ = ("_bytes_max", "_said_at_ms", "lost_events")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._said_at_ms: int | None = None
        self.lost_events = 0

    def has_room(self, present_bytes: int) -> bool:
        """Whether what happens now may be recorded."""
        return present_bytes < self._bytes_max

    def give_up(self, events: int, now_ms: int) -> None:
        """Count events that are not recorded."""
        self.lost_events += events
        if self._said_at_ms is None or now_ms - self._said_at_ms >= _SAY_EVERY_MS:
            self._said_at_ms = now_ms
            log.warning(
                "the journal is not exported and its outbox has reached %d bytes: %d events were not recorded since the"
                " start; the queues go on",
                self._bytes_max,
                self.lost_events,
            )
