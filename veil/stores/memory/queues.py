"""Create, edit, delete and purge queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from veil.core.errors import PurgeInProgress, QueueDeletedRecently
from veil.core.lease import State
from veil.core.limits import SECOND_MS
from veil.core.message import Caller
from veil.core.queue import Queue, QueueKey
from veil.core.sequence import instant_of
from veil.stores.memory import recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Shelf
from veil.stores.store import QueueContent


def create(op: Operation, key: QueueKey, content: QueueContent, rest_ms: int) -> Queue:
    """A new queue, or the one that already has the key."""
    shelves = op.shelves
    existing = shelves.of_key(key)
    if existing is not None:
        return existing.queue
    deleted_at_ms = shelves.deleted_at_ms.get(key)
    if deleted_at_ms is not None and op.now_ms - deleted_at_ms < rest_ms:
        raise QueueDeletedRecently(key.name)
    shelves.queue_id_last += 1
    settings, tags = content.settings, dict(content.tags)
    queue = Queue(shelves.queue_id_last, key, settings, tags, op.wall_ms, op.wall_ms)
    shelves.by_id[queue.id] = Shelf(queue, settings.deduplication_scope)
    return queue


def edit(op: Operation, queue: Queue, change: Callable[[QueueContent], QueueContent]) -> Queue:
    """Apply a pure function to settings and tags."""
    shelf = op.shelves.of(queue)
    before = shelf.queue
    settings, tags = change(QueueContent(before.settings, dict(before.tags)))
    shelf.queue = replace(before, settings=settings, tags=dict(tags), modified_wall_ms=op.wall_ms)
    if shelf.fifo and settings.delay_s != before.settings.delay_s:
        for row in shelf.of_state(State.DELAYED):
            row.delay_until(instant_of(row.message.seq) + settings.delay_s * SECOND_MS, op.now_ms)
    return shelf.queue


def delete(op: Operation, queue: Queue, caller: Caller) -> None:
    """Remove the queue and everything in it."""
    shelf = op.shelves.of(queue)
    recording.purge(op, shelf, caller)
    del op.shelves.by_id[queue.id]
    op.shelves.deleted_at_ms[shelf.queue.key] = op.now_ms


def purge(op: Operation, queue: Queue, rest_ms: int, caller: Caller) -> None:
    """Remove every message and the deduplication history."""
    shelf = op.shelves.of(queue)
    if shelf.purged_at_ms is not None and op.now_ms - shelf.purged_at_ms < rest_ms:
        raise PurgeInProgress(queue.name)
    shelf.purged_at_ms = op.now_ms
    recording.purge(op, shelf, caller)
    shelf.rows.clear()
    shelf.turns.clear()
    shelf.first_sends.clear()
