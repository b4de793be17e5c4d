"""Create, edit, list and delete queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from veil.core.errors import PurgeInProgress, QueueDeletedRecently
from veil.core.message import Caller
from veil.core.queue import Queue, QueueKey
from veil.stores.codec import decode_caller, encode_caller, encode_settings, encode_tags
from veil.stores.sqlite import settling
from veil.stores.sqlite.tables import Q, QueueState, Tables
from veil.stores.store import QueueContent


def create(tables: Tables, key: QueueKey, content: QueueContent, rest_ms: int) -> Queue:
    """A new queue, or the one that has the key already."""
    if existing := tables.by_key.get(key):
        return existing.queue
    rested = tables.execute(Q.rested_since, key).fetchone()
    if rested is not None and tables.clock.now_ms() - rested[0] < rest_ms:
        raise QueueDeletedRecently(key.name)
    tables.execute(Q.wake_name, key)
    wall_ms = tables.clock.wall_ms()
    scope = content.settings.deduplication_scope
    tables.execute(
        Q.insert_queue,
        (*key, encode_settings(content.settings), encode_tags(content.tags), scope, wall_ms, wall_ms),
    )
    queue_id = tables.connection.last_insert_rowid()
    tables.execute(Q.insert_count, (queue_id,))
    queue = Queue(queue_id, key, content.settings, dict(content.tags), wall_ms, wall_ms)
    tables.keep(QueueState(queue, scope))
    return queue


def edit(tables: Tables, queue: Queue, change: Callable[[QueueContent], QueueContent]) -> Queue:
    """Apply a pure function to settings and tags."""
    state = tables.state_of(queue)
    before = state.queue
    content = change(QueueContent(before.settings, dict(before.tags)))
    wall_ms = tables.clock.wall_ms()
    tables.execute(
        Q.update_queue, (encode_settings(content.settings), encode_tags(content.tags), wall_ms, queue.id)
    )
    state.queue = replace(before, settings=content.settings, tags=content.tags, modified_wall_ms=wall_ms)
    new_delay = content.settings.fifo and content.settings.delay_s != before.settings.delay_s
    if new_delay or content.settings.retention_s != before.settings.retention_s:
        settling.reschedule_hidden(tables, state, new_delay=new_delay)
    return state.queue


def delete(tables: Tables, queue: Queue, caller: Caller) -> None:
    """Remove the queue from sight; its messages are swept afterwards, a chunk at a time."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    tables.execute(Q.mark_queue_deleted, (now_ms, encode_caller(caller), queue.id))
    tables.execute(Q.rest_name, (*state.queue.key, now_ms))
    tables.execute(Q.drop_deduplication, (queue.id,))
    tables.execute(Q.drop_attempts, (queue.id,))
    tables.execute(Q.drop_lanes, (queue.id,))
    tables.execute(Q.drop_holds, (queue.id,))
    tables.execute(Q.drop_streams, (queue.id,))
    tables.drop(state)


def begin_purge(tables: Tables, queue: Queue, rest_ms: int) -> int:
    """Note the purge and return the key up to which everything is to go."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    if state.purged_at_ms is not None and now_ms - state.purged_at_ms < rest_ms:
        raise PurgeInProgress(queue.key.name)
    state.purged_at_ms = now_ms
    tables.execute(Q.mark_purged, (now_ms, queue.id))
    tables.execute(Q.drop_deduplication, (queue.id,))
    tables.execute(Q.drop_attempts, (queue.id,))
    return tables.sequence.last


def purge_step(tables: Tables, queue: Queue, up_to_seq: int, caller: Caller) -> bool:
    """Remove one chunk; True while more are left."""
    state = tables.state_of(queue)
    purge = settling.Purge(queue.id, queue.key, up_to_seq, tables.clock.now_ms(), caller)
    more = settling.sweep(tables, purge, state)
    if not more:
        state.has_lanes = bool(tables.execute(Q.has_lanes, (queue.id,)).get)
    return more


def sweep_deleted(tables: Tables) -> bool:
    """Remove one chunk of a deleted queue; True while there is more to do."""
    found = tables.execute(Q.deleted_queue).fetchone()
    if found is None:
        return False
    queue_id, *key, deleted_at_ms, deleted_by = found
    # The messages were gone when the queue was, however late they are swept.
    purge = settling.Purge(
        queue_id, QueueKey(*key), tables.sequence.last, deleted_at_ms, decode_caller(deleted_by)
    )
    if not settling.sweep(tables, purge, None):
        tables.execute(Q.forget_queue, (queue_id,))
        tables.execute(Q.forget_count, (queue_id,))
    return True
