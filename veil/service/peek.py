"""Look at messages without receiving them."""

from __future__ import annotations

from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.service.service import Service


async def peek(
    service: Service, queue: Queue, *, after_seq: int = 0, limit: int = 100
) -> list[StoredMessage]:
    """Messages in whatever state by rising `seq`: nothing is counted, leased or moved."""
    return await service.store.peek(queue, after_seq=after_seq, limit=limit)
