"""Look at messages without receiving them."""

from __future__ import annotations

from typing import Final

from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.service.service import Service

PEEK_BYTES_MAX: Final = 16 << 20  # of bodies, for one look


async def peek(
    service: Service,
    queue: Queue,
    *,
    after_seq: int = 0,
    up_to_seq: int | None = None,
    sent_after_ms: int | None = None,
    sent_before_ms: int | None = None,
    limit: int = 100,
) -> list[StoredMessage]:
    """Messages in whatever state by rising `seq`: nothing is counted, leased or moved.

    Those sent within the two wall times, both included; fewer than `limit` where their bodies come to PEEK_BYTES_MAX.
    """
    return await service.store.peek(
        queue,
        after_seq=after_seq,
        up_to_seq=up_to_seq,
        sent_after_ms=sent_after_ms,
        sent_before_ms=sent_before_ms,
        limit=limit,
        bytes_max=PEEK_BYTES_MAX,
    )


async def peek_next(service: Service, queue: Queue, *, limit: int) -> list[StoredMessage]:
    """The visible messages that a receive would come to first, in its order: nothing is counted, leased or moved."""
    return await service.store.peek_next(queue, limit=limit)
