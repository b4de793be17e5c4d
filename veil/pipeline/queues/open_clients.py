"""The clients of this process, one a queue: a Spark worker runs many tasks, and each would open connections of its own."""

from __future__ import annotations

import os
import threading

from veil.pipeline.queues.client import QueueClient
from veil.pipeline.queues.queue_place import QueuePlace

_lock = threading.Lock()
_open: dict[tuple[int, QueuePlace], QueueClient] = {}


def client_for(place: QueuePlace) -> QueueClient:
    """An open client, shared with whoever asks for the same queue in this process; never to be closed."""
    # By process: workers are forked, and a thread with its connections does not live on in the child.
    key = (os.getpid(), place)
    with _lock:
        client = _open.get(key)
        if client is None:
            client = _open[key] = QueueClient(place, user_agent="pipeline executor")
        return client
