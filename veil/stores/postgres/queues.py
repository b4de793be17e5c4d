"""Create, edit, list and delete queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from veil.core.errors import PurgeInProgress, QueueDeletedRecently
from veil.core.message import Caller
from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.core.sequence import SEQ_MAX, instant_of
from veil.stores.postgres.leases import sweep
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import AVAILABLE, KnownQueues, LockedQueue, QueueLook, Transaction
from veil.stores.sql import decode_caller, encode_caller, encode_settings, encode_tags
from veil.stores.store import QueueContent

# How long the row of a deleted queue is kept: nodes learn of the deletion from it. A node away for longer reloads everything.
TOMBSTONE_MS: Final = 24 * 3_600_000


async def create(
    tx: Transaction, known: KnownQueues, key: QueueKey, content: QueueContent, rest_ms: int
) -> Queue:
    """A new queue, or the one that already has the key. Two at once collide in the index, and the later one is retried."""
    if existing := known.by_key.get(key):
        return existing.queue
    for (deleted_at_ms,) in await tx.rows(Q.rested_since, key._asdict()):
        if tx.now_ms - deleted_at_ms < rest_ms:
            raise QueueDeletedRecently(key.name)
    tx.defer(Q.wake_name, key._asdict())
    tx.defer(Q.drop_moves, {"source": key.arn})
    settings = content.settings
    row = {
        **key._asdict(),
        "version": await tx.raise_epoch(),
        "settings": encode_settings(settings),
        "tags": encode_tags(content.tags),
        "scope": settings.deduplication_scope,
        "has_lanes": settings.fifo,
        "wall_ms": tx.wall_ms,
    }
    [(queue_id,)] = await tx.rows(Q.insert_queue, row)
    return Queue(queue_id, key, settings, dict(content.tags), tx.wall_ms, tx.wall_ms)


async def edit(tx: Transaction, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
    """Apply a pure function to settings and tags."""
    state = tx.state_of(queue)
    before = state.queue
    content = edit(QueueContent(before.settings, dict(before.tags)))
    settings = content.settings
    state.queue = replace(before, settings=settings, tags=content.tags, modified_wall_ms=tx.wall_ms)
    new_delay = settings.fifo and settings.delay_s != before.settings.delay_s
    if new_delay or settings.retention_s != before.settings.retention_s:
        tx.defer(
            Q.reschedule_hidden,
            {
                "queue": queue.id,
                "retention_ms": state.retention_ms,
                "delay_ms": settings.delay_s * 1000 if new_delay else None,
            },
        )
        await look_ahead(tx, [state])
    if before.settings.paused and not settings.paused:
        tx.announcements[AVAILABLE, state.id] += state.visible
    tx.defer(
        Q.update_queue,
        {
            "id": queue.id,
            "version": await tx.raise_epoch(),
            "settings": encode_settings(settings),
            "tags": encode_tags(content.tags),
            "wall_ms": tx.wall_ms,
        },
    )
    return state.queue


async def counts(tx: Transaction, queue: Queue) -> QueueCounts:
    """The number of messages in each state."""
    return tx.state_of(queue).queue_counts


async def oldest_sent_ms(tx: Transaction, queue: Queue) -> int | None:
    """When the oldest visible message was sent."""
    [(seq,)] = await tx.rows(Q.oldest_visible, {"queue": tx.state_of(queue).id})
    return None if seq is None else instant_of(seq)


async def look_ahead(tx: Transaction, states: list[LockedQueue]) -> None:
    """Read the state of the queues again, because another transaction may have settled what was due."""
    ids = [state.id for state in states]
    always = [True] * len(ids)
    everything = {"ids": ids, "wakes_from": [0] * len(ids), "wants_next": always, "wants_oldest": always}
    for look in map(QueueLook._make, await tx.rows(Q.look_at_queues, everything)):
        tx.states[look.queue_id].looked_at(look, ahead=True)


async def give_groups(tx: Transaction, state: LockedQueue) -> None:
    """Mark the queue as having groups, before its first message with one: from now on its operations run one after another."""
    tx.defer(Q.mark_grouped, {"id": state.id, "version": await tx.raise_epoch()})
    state.has_groups = True


async def delete(tx: Transaction, queue: Queue, caller: Caller) -> None:
    """Hide the queue; its messages are swept afterwards, chunk by chunk."""
    state = tx.state_of(queue)
    tx.defer(Q.drop_memory, {"queue": queue.id})
    tx.defer(Q.drop_the_rest, {"queue": queue.id})
    tx.defer(Q.rest_name, {**state.queue.key._asdict(), "now_ms": tx.now_ms})
    marked = {"id": queue.id, "now_ms": tx.now_ms, "caller": encode_caller(caller)}
    tx.defer(Q.mark_queue_deleted, {**marked, "version": await tx.raise_epoch()})
    state.group_changes.clear()


async def begin_purge(tx: Transaction, queue: Queue, rest_ms: int) -> int:
    """Record the purge and return the last order key that it covers."""
    state = tx.state_of(queue)
    if state.purged_at_ms is not None and tx.now_ms - state.purged_at_ms < rest_ms:
        raise PurgeInProgress(queue.key.name)
    [(up_to_seq,)] = await tx.rows(Q.latest, {"queue": queue.id})
    tx.defer(Q.drop_memory, {"queue": queue.id})
    tx.defer(Q.mark_purged, {"id": queue.id, "now_ms": tx.now_ms, "version": await tx.raise_epoch()})
    return up_to_seq or 0


async def purge_step(tx: Transaction, queue: Queue, up_to_seq: int, caller: Caller) -> bool:
    """Remove one chunk; True while more are left."""
    return await sweep(tx, tx.state_of(queue), up_to_seq, tx.now_ms, caller)


async def sweep_deleted(tx: Transaction) -> bool:
    """Remove one chunk of a deleted queue; True while there is more to do."""
    found = await tx.row(Q.deleted_queue)
    if found is None:
        return False
    queue_id, *key, deleted_at_ms, deleted_by = found
    # The messages were gone with the queue, however late they are swept.
    caller = decode_caller(deleted_by)
    if not await sweep(tx, (queue_id, QueueKey(*key)), SEQ_MAX, deleted_at_ms, caller):
        tx.defer(Q.mark_swept, {"id": queue_id})
        tx.defer(Q.forget_counts, {"id": queue_id})
    return True
