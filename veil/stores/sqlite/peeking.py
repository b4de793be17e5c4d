"""Look at messages without receiving them: a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veil.core.message import StoredMessage
from veil.stores.sqlite.tables import Q, Tables, to_message

# They bound how long one look holds up everything else: rows, bytes of their bodies, rows whose time alone is read.
ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 4 << 20
TIMES_AT_ONCE = 2_000
_LAST = (1 << 63) - 1

Sent = Callable[[int], bool]


def sent_between(after_ms: int | None, before_ms: int | None) -> Sent | None:
    """Whether an instant lies between the two, both included; None where any does."""
    if after_ms is None and before_ms is None:
        return None
    first, last = after_ms or 0, _LAST if before_ms is None else before_ms
    return lambda at_ms: first <= at_ms <= last


class Found:
    """What a peek has come to, and where it goes on."""

    def __init__(
        self, queue_id: int, after_seq: int, up_to_seq: int | None, limit: int, bytes_max: int | None
    ) -> None:
        self.messages: list[StoredMessage] = []
        self.queue_id, self.after_seq, self.limit = queue_id, after_seq, limit
        self.up_to_seq = _LAST if up_to_seq is None else up_to_seq
        self._bytes_max = bytes_max
        self.taken_bytes = 0

    def take(self, row: Any) -> bool:
        """One more message; False when that was the last."""
        message = to_message(row)
        self.messages.append(message)
        self.after_seq = message.seq
        self.taken_bytes += message.held_bytes
        if self._bytes_max is not None and self.taken_bytes >= self._bytes_max:
            return False
        return len(self.messages) < self.limit


def look(tables: Tables, found: Found) -> bool:
    """Take the next rows; True while more may follow."""
    enough_bytes, rows = (
        found.taken_bytes + BYTES_AT_ONCE,
        min(ROWS_AT_ONCE, found.limit - len(found.messages)),
    )
    for row in tables.execute(Q.peek, (found.queue_id, found.after_seq, rows, found.up_to_seq)):
        if not found.take(row):
            return False
        rows -= 1
        if found.taken_bytes >= enough_bytes:
            return True
    return not rows


def look_by_time(tables: Tables, found: Found, *, sent: Sent) -> bool:
    """Go through the next rows and take those that were sent then; True while more may follow."""
    arguments = (found.queue_id, found.after_seq, TIMES_AT_ONCE, found.up_to_seq)
    times = tables.execute(Q.peek_times, arguments).fetchall()
    enough_bytes = found.taken_bytes + BYTES_AT_ONCE
    for seq, sent_wall_ms in times:
        if found.taken_bytes >= enough_bytes:
            return True
        found.after_seq = seq
        if not sent(sent_wall_ms):
            continue
        if not found.take(tables.execute(Q.peek_one, (seq,)).get):
            return False
    return len(times) == TIMES_AT_ONCE
