"""Dead letters go back: by move tasks, a step at a time, or chosen one by one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from veil.core.errors import (
    ArnRefused,
    MessageMissing,
    MessageNotVisible,
    MoveTaskMissing,
    MoveTaskNotRunning,
    MoveTaskRunning,
    NotForQueueType,
    QueueMissing,
    SourceUnknown,
    VeilError,
)
from veil.core.lease import State
from veil.core.limits import SECOND_MS
from veil.core.message import Caller, Sent, StoredMessage
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.stores.memory import recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
from veil.stores.recorder import REDRIVEN, SENT
from veil.stores.store import Chosen, NewContent

DESTINATION_MISSING = "AWS.SimpleQueueService.NonExistentQueue"
SOURCE_UNKNOWN = "CouldNotDetermineMessageSource"


# ---- move tasks


def start(op: Operation, task: MoveTask, caller: Caller) -> MoveTask:
    """Record a running task, with `to_move` counted now."""
    if any(other.source == task.source and other.is_active for other in op.shelves.moves.values()):
        raise MoveTaskRunning(task.source.name)
    op.shelves.move_callers[task.id] = caller
    return _put(op, replace(task, status="RUNNING", to_move=len(_movable(op, task))))


def step(op: Operation, task_id: str, count: int) -> MoveTask:
    """Move up to `count` visible messages, oldest first, each to its destination as a new message."""
    task = _find(op, task_id)
    if task.status == "CANCELLING":
        return _put(op, replace(task, status="CANCELLED"))
    if task.status != "RUNNING":
        return task
    rows = _movable(op, task)[:count]
    for row in rows:
        key = task.destination or _source_of(row.message)
        if key is None:
            return _put(op, replace(task, status="FAILED", failure=SOURCE_UNKNOWN))
        target = op.shelves.of_key(key)
        if target is None:
            return _put(op, replace(task, status="FAILED", failure=DESTINATION_MISSING))
        source = op.shelves.of_key(task.source)
        assert source is not None  # the row was found in it
        _move(op, row, source, target, op.shelves.move_callers[task.id])
        task = replace(task, moved=task.moved + 1)
    return _put(op, replace(task, status="COMPLETED") if len(rows) < count else task)


def cancel(op: Operation, task_id: str) -> MoveTask:
    """Ask a running task to stop."""
    task = _find(op, task_id)
    if task.status != "RUNNING":
        raise MoveTaskNotRunning(task.status)
    return _put(op, replace(task, status="CANCELLING"))


def _find(op: Operation, task_id: str) -> MoveTask:
    if task_id not in op.shelves.moves:
        raise MoveTaskMissing
    return op.shelves.moves[task_id]


def _put(op: Operation, task: MoveTask) -> MoveTask:
    op.shelves.moves[task.id] = task
    return task


def _movable(op: Operation, task: MoveTask) -> list[Row]:
    source = op.shelves.of_key(task.source)
    return source.of_state(State.VISIBLE) if source else []


# ---- chosen redrives


def redrive(op: Operation, queue: Queue, chosen: Sequence[Chosen], caller: Caller) -> list[Sent | VeilError]:
    """Move the chosen messages, each on its own."""
    source = op.shelves.of(queue)
    moved: list[Sent | VeilError] = []
    for one in chosen:
        try:
            moved.append(_redrive_one(op, source, one, caller))
        except VeilError as refusal:
            moved.append(refusal)
    return moved


def _redrive_one(op: Operation, source: Shelf, chosen: Chosen, caller: Caller) -> Sent:
    row = source.rows.get(chosen.seq)
    if row is None or row.message.message_id != chosen.message_id:
        raise MessageMissing(chosen.message_id, chosen.seq)
    state = State(row.message.state)
    if state is not State.VISIBLE:
        raise MessageNotVisible(chosen.message_id, state.name.lower().replace("_", " "))
    key = chosen.destination or _source_of(row.message)
    if key is None:
        raise SourceUnknown(chosen.message_id)
    target = op.shelves.of_key(key)
    if target is None:
        raise QueueMissing(key.name)
    if target.fifo != source.fifo:
        raise NotForQueueType("DestinationQueueUrl", key.name, fifo=source.fifo)
    content = None if chosen.change is None else chosen.change(replace(row.message), target.queue)
    return _move(op, row, source, target, caller, content)


# ---- either


def _source_of(message: StoredMessage) -> QueueKey | None:
    if message.dead_letter_source is None:
        return None
    try:
        return parse_arn(message.dead_letter_source)
    except ArnRefused:
        return None


def _move(
    op: Operation, row: Row, source: Shelf, target: Shelf, caller: Caller, content: NewContent | None = None
) -> Sent:
    """Out of its queue, and into the target as a new message."""
    source.remove(row)
    message_id = str(uuid.uuid4())
    message = replace(
        row.message,
        seq=op.next_seq(),
        message_id=message_id,
        deduplication_id=message_id if target.fifo else None,
        sent_wall_ms=op.wall_ms,
        dead_letter_source=None,
        receive_count=0,
        first_received_wall_ms=None,
        delivery=0,
        received_at_ms=None,
    )
    if content is not None:
        message = replace(message, **content._asdict())
    moved = Row(message)
    moved.delay_until(op.now_ms + target.queue.settings.delay_s * SECOND_MS, op.now_ms)
    target.put(moved, op.shelves.next_turn)
    there, old = target.queue.key, row.message
    recording.event(op, REDRIVEN, source, old, caller, other_queue=there, other_seq=message.seq)
    recording.event(op, SENT, target, message, caller, deadline_ms=message.due_at_ms, other_seq=old.seq)
    return Sent(message_id, message.seq)
