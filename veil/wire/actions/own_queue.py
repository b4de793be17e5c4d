"""For Veil's own actions: no policy can speak of them, so nobody but the owner may ask."""

from __future__ import annotations

from veil.core.errors import AccessDenied
from veil.core.queue import Queue
from veil.wire.call import Call


async def own_queue(call: Call, url: str) -> Queue:
    """The caller's queue behind the URL; raises AccessDenied for another's."""
    queue = await call.queue(url)
    if call.account != queue.key.account:
        raise AccessDenied(call.action, call.url(queue))
    return queue
