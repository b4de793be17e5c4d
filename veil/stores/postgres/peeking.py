"""Look at messages without receiving them: a page at a time."""

from __future__ import annotations

from typing import Final

from veil.core.message import StoredMessage
from veil.stores.postgres.receiving import to_message
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction

PAGE_MAX: Final = 100  # rows with their bodies
_COUNTED_PAGE_MAX: Final = 16
_LAST: Final = (1 << 63) - 1


class Found:
    """What a peek has come to, and where it goes on."""

    def __init__(
        self,
        queue_id: int,
        after_seq: int,
        up_to_seq: int | None,
        sent_after_ms: int | None,
        sent_before_ms: int | None,
        limit: int,
        bytes_max: int | None,
    ) -> None:
        self.messages: list[StoredMessage] = []
        self._after_seq, self._limit, self._bytes_left = after_seq, limit, bytes_max
        self._named = {
            "queue": queue_id,
            "up_to": _LAST if up_to_seq is None else up_to_seq,
            "sent_after_ms": sent_after_ms or 0,
            "sent_before_ms": _LAST if sent_before_ms is None else sent_before_ms,
        }

    async def look(self, tx: Transaction) -> None:
        """Take all there are, up to the bounds."""
        # A page is read whole before its bytes are counted.
        page_max = PAGE_MAX if self._bytes_left is None else _COUNTED_PAGE_MAX
        while (page := min(page_max, self._limit - len(self.messages))) > 0:
            rows = await tx.rows(Q.peek, {**self._named, "after": self._after_seq, "limit": page})
            for row in rows:
                message = to_message(row)
                self.messages.append(message)
                self._after_seq = message.seq
                if self._bytes_left is not None:
                    self._bytes_left -= message.held_bytes
                    if self._bytes_left <= 0:
                        return
            if len(rows) < page:
                return
