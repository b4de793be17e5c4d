"""Dead letters go back: by move tasks, a step at a time, each step one transaction with its own progress in it; or chosen
one by one, all that a call names in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from veil.core import decide
from veil.core.effect import Redriven
from veil.core.errors import MoveTaskMissing, MoveTaskRunning, VeilError
from veil.core.event import NOBODY
from veil.core.message import Caller, NewContent, Sent, StoredMessage
from veil.core.queue import Chosen, MoveTask, Queue, ScanStep
from veil.core.sequence import expired_below
from veil.stores.sql import decode_caller, encode_caller, encode_scan, to_message, to_task
from veil.stores.sqlite.apply import apply
from veil.stores.sqlite.database import CachedQueue, Database, Q
from veil.stores.sqlite.leases import CHUNK_BYTES


def start(db: Database, task: MoveTask, caller: Caller) -> MoveTask:
    """Record a running task."""
    if db.execute(Q.active_move_of, (task.source.arn,)).fetchone():
        raise MoveTaskRunning(task.source.name)
    state = db.by_key.get(task.source)
    task = replace(task, to_move=state.visible if state else 0)
    destination = task.destination.arn if task.destination else None
    progress = (task.status, task.moved, task.to_move, task.started_wall_ms)
    named = (task.id, task.source.arn, destination, task.rate_per_s)
    db.execute(Q.insert_move, (*named, *progress, encode_scan(task.scan), encode_caller(caller)))
    db.execute(Q.forget_moves, (task.source.arn,))
    return task


def step(db: Database, task_id: str, count: int, found: ScanStep | None) -> MoveTask:
    """Move up to `count` messages, or those found, and note how far the task has come."""
    task = find(db, task_id)
    if task.status == "RUNNING":
        source = db.by_key.get(task.source)
        caller = decode_caller(db.execute(Q.move_caller, (task.id,)).get)
        if found is not None:
            answers = redrive(db, source.queue, found.chosen, caller=caller) if source else []
            return _advance(db, decide.step_scan(task, found, answers))
        messages = _oldest_visible(db, source, count) if source else []
        if sum(message.body_bytes for message in messages) >= CHUNK_BYTES:
            count = len(messages)  # there may be more
        moves, task = decide.step_move(task, messages, count, db.find, _redriver(db))
        if source is not None:
            apply(db, source, moves, db.clock.now_ms(), caller)
    elif task.status == "CANCELLING":
        task = replace(task, status="CANCELLED")
    return _advance(db, task)


def cancel(db: Database, task_id: str) -> MoveTask:
    """Ask a running task to stop."""
    return _advance(db, decide.cancel_move(find(db, task_id)))


def _advance(db: Database, task: MoveTask) -> MoveTask:
    db.execute(Q.advance_move, (task.status, task.moved, task.failure, encode_scan(task.scan), task.id))
    return task


def find(db: Database, task_id: str) -> MoveTask:
    """The task of that id; raises MoveTaskMissing."""
    row = db.execute(Q.find_move, (task_id,)).fetchone()
    if row is None:
        raise MoveTaskMissing
    return to_task(row)


def _oldest_visible(db: Database, source: CachedQueue, count: int) -> list[StoredMessage]:
    """As many as one step may move, whose bodies are read and written again: by number and by bytes."""
    query = Q.visible_oldest if source.ranked or source.has_groups else Q.visible_alone
    messages: list[StoredMessage] = []
    bytes_left = CHUNK_BYTES
    for row in db.execute(query, (source.queue.id, source.leases.taken_seq, count)):
        messages.append(to_message(row))
        bytes_left -= messages[-1].body_bytes
        if bytes_left <= 0:
            break
    return messages


def redrive(
    db: Database, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
) -> list[Sent | VeilError]:
    """Move the chosen messages, each on its own."""
    source = db.state_of(queue)
    messages = _chosen(db, source, [one.seq for one in chosen])
    effects, answers = decide.decide_redrives(source.queue, chosen, messages, db.find, _redriver(db))
    apply(db, source, effects, db.clock.now_ms(), caller)
    return answers


def discard(
    db: Database, queue: Queue, chosen: Sequence[tuple[int, str]], *, caller: Caller = NOBODY
) -> list[VeilError | None]:
    """Remove the chosen messages, each on its own."""
    source = db.state_of(queue)
    effects, answers = decide.decide_discards(chosen, _chosen(db, source, [seq for seq, _ in chosen]))
    apply(db, source, effects, db.clock.now_ms(), caller)
    return answers


def _chosen(db: Database, source: CachedQueue, seqs: Sequence[int]) -> dict[int, StoredMessage]:
    """Those of the messages that the queue has."""
    alive_from = expired_below(db.clock.now_ms(), source.queue.settings.retention_s)
    rows = [db.execute(Q.message_in_queue, (seq, source.queue.id)).get for seq in seqs if seq >= alive_from]
    messages = [source.leases.put_into(to_message(row)) for row in rows if row is not None]
    return {message.seq: message for message in messages}


def _redriver(db: Database) -> decide.Redrive:
    now_ms, wall_ms = db.clock.now_ms(), db.clock.wall_ms()

    def make(message: StoredMessage, target: Queue, content: NewContent | None) -> Redriven:
        return decide.redrive(
            message, target, db.sequence.next(now_ms), str(uuid4()), now_ms, wall_ms, content
        )

    return make
