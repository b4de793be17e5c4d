"""Empty a queue."""

from __future__ import annotations

from veil.core.event import NOBODY
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.service.service import Service


async def purge(service: Service, queue: Queue, *, caller: Caller = NOBODY) -> None:
    """Remove every message sent so far, held or not; raises PurgeInProgress soon after the last purge."""
    await service.store.purge(queue, rest_ms=service.rules.rest_after_purge_ms, caller=caller)
    service.tallies.add("purged", queue.id)
    if service.activity is not None:
        service.activity.emptied(queue.id)
