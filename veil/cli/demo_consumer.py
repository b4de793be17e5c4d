"""The demo's consumer of videos, run by `veil run veil.cli.demo_consumer:videos`: Veil's own, which keeps its leases."""

from __future__ import annotations

import asyncio

from veil import Adaptive, Consumer, Message
from veil.cli.demo_queues import queue_named

_queue = queue_named("videos")

# Windows as short as the queue's timeout: whoever is killed is missed within three seconds, however long a video takes.
videos = Consumer(
    _queue.name,
    concurrency=60,
    prefetch=0,
    renewal=Adaptive(window_min=_queue.timeout_s, window_max=_queue.timeout_s),
)


@videos.handler
async def encode(video: dict[str, int], message: Message) -> None:
    """Take as long as encoding this video would."""
    await asyncio.sleep(_queue.work_s(video["number"], message.receive_count))
