"""Create, edit, delete and purge queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from veil.core.errors import PurgeInProgress, QueueDeletedRecently
from veil.core.limits import REST_AFTER_DELETE_MS
from veil.core.message import Caller
from veil.core.queue import Queue, QueueKey
from veil.stores.sql import decode_caller, encode_caller, encode_settings, encode_tags
from veil.stores.sqlite.database import CachedQueue, Database, Q
from veil.stores.sqlite.leases import CHUNK, Purge, reschedule_hidden, sweep, write_some_back
from veil.stores.store import QueueContent


def create(db: Database, key: QueueKey, content: QueueContent, rest_ms: int) -> Queue:
    """A new queue, or the one that has the key already."""
    if existing := db.by_key.get(key):
        return existing.queue
    rested_since_ms = db.execute(Q.rested_since, key).get
    if rested_since_ms is not None and db.clock.now_ms() - rested_since_ms < rest_ms:
        raise QueueDeletedRecently(key.name)
    db.execute(Q.wake_name, key)
    db.execute(Q.drop_moves, (key.arn,))
    wall_ms = db.clock.wall_ms()
    settings, scope = content.settings, content.settings.deduplication_scope
    db.execute(
        Q.insert_queue, (*key, encode_settings(settings), encode_tags(content.tags), scope, wall_ms, wall_ms)
    )
    queue_id = db.connection.last_insert_rowid()
    db.execute(Q.insert_count, (queue_id,))
    queue = Queue(queue_id, key, settings, dict(content.tags), wall_ms, wall_ms)
    db.keep(CachedQueue(queue, scope))
    return queue


def edit(db: Database, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
    """Apply a pure function to settings and tags."""
    state = db.state_of(queue)
    before = state.queue
    content = edit(QueueContent(before.settings, dict(before.tags)))
    wall_ms = db.clock.wall_ms()
    db.execute(
        Q.update_queue, (encode_settings(content.settings), encode_tags(content.tags), wall_ms, queue.id)
    )
    state.queue = replace(before, settings=content.settings, tags=content.tags, modified_wall_ms=wall_ms)
    new_delay = content.settings.fifo and content.settings.delay_s != before.settings.delay_s
    if new_delay or content.settings.retention_s != before.settings.retention_s:
        reschedule_hidden(db, state, new_delay=new_delay)
    if before.settings.paused and not content.settings.paused:
        db.announce_visible(state)
    return state.queue


def begin_delete(db: Database, queue: Queue) -> bool:
    """Write some of the leases that are not in their rows yet; True while more may be left."""
    return write_some_back(db, db.state_of(queue))


def delete(db: Database, queue: Queue, caller: Caller) -> None:
    """Remove the queue from sight; what it has is swept afterwards, a chunk at a time."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    db.write_back(state)
    db.execute(Q.mark_queue_deleted, (now_ms, encode_caller(caller), queue.id))
    db.execute(Q.forget_rests, (now_ms - REST_AFTER_DELETE_MS,))
    db.execute(Q.rest_name, (*state.queue.key, now_ms))
    db.drop(state)


def begin_purge(db: Database, queue: Queue, rest_ms: int) -> int:
    """Note the purge and return the key up to which everything is to go."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    if state.purged_at_ms is not None and now_ms - state.purged_at_ms < rest_ms:
        raise PurgeInProgress(queue.key.name)
    state.purged_at_ms = now_ms
    db.execute(Q.mark_purged, (now_ms, queue.id))
    return db.sequence.last


def forget_purged(db: Database, queue_id: int, up_to_seq: int) -> bool:
    """Drop one chunk of the deduplication ids of messages that are to go; True while more are left."""
    db.execute(Q.drop_deduplication, (queue_id, up_to_seq + 1, CHUNK))
    return db.connection.changes() == CHUNK


def purge_step(db: Database, queue: Queue, up_to_seq: int, caller: Caller) -> bool:
    """Remove one chunk; True while more are left."""
    state = db.state_of(queue)
    more = sweep(db, Purge(queue.id, queue.key, up_to_seq, db.clock.now_ms(), caller), state)
    if not more:
        state.has_groups = bool(db.execute(Q.has_groups, (queue.id,)).get)
    return more


def sweep_deleted(db: Database) -> bool:
    """Remove one chunk of a deleted queue; True while there is more to do."""
    found = db.execute(Q.deleted_queue).fetchone()
    if found is None:
        return False
    queue_id, *key, deleted_at_ms, deleted_by = found
    # The messages were gone when the queue was, however late they are swept.
    purge = Purge(queue_id, QueueKey(*key), db.sequence.last, deleted_at_ms, decode_caller(deleted_by))
    if sweep(db, purge, None) or forget_purged(db, queue_id, purge.up_to_seq):
        return True
    for query in (Q.drop_groups, Q.drop_attempts, Q.drop_holds, Q.drop_streams):
        db.execute(query, (queue_id, CHUNK))
        if db.connection.changes() == CHUNK:
            return True
    db.execute(Q.forget_queue, (queue_id,))
    db.execute(Q.forget_count, (queue_id,))
    return True
