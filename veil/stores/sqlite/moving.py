"""Dead letters go back: by move tasks, a step at a time, each step one transaction with its own progress in it; or chosen
one by one, all that a call names in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from veil.core.errors import (
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
from veil.core.message import Caller, Sent
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, parse_arn
from veil.core.sequence import expired_below, expires_at_ms
from veil.stores.codec import decode_caller, encode_attributes, encode_caller
from veil.stores.recorder import REDRIVEN, SENT
from veil.stores.sqlite import lanes
from veil.stores.sqlite.tables import Q, QueueState, Tables, to_message
from veil.stores.store import Chosen, NewContent

DESTINATION_MISSING = "AWS.SimpleQueueService.NonExistentQueue"
SOURCE_UNKNOWN = "CouldNotDetermineMessageSource"


def start(tables: Tables, task: MoveTask, caller: Caller) -> MoveTask:
    """Record a running task."""
    if tables.execute(Q.active_move_of, (task.source.arn,)).fetchone():
        raise MoveTaskRunning(task.source.name)
    state = tables.by_key.get(task.source)
    task = replace(task, to_move=state.visible if state else 0)
    destination = task.destination.arn if task.destination else None
    tables.execute(
        Q.insert_move,
        (
            task.id,
            task.source.arn,
            destination,
            task.rate_per_s,
            task.status,
            task.moved,
            task.to_move,
            task.started_wall_ms,
            encode_caller(caller),
        ),
    )
    tables.execute(Q.forget_moves, (task.source.arn,))
    return task


def step(tables: Tables, task_id: str, count: int) -> MoveTask:
    """Move up to `count` messages and note how far the task has come."""
    task = find(tables, task_id)
    if task.status == "RUNNING":
        task = _moved_on(tables, task, count)
    elif task.status == "CANCELLING":
        task = replace(task, status="CANCELLED")
    tables.execute(Q.advance_move, (task.status, task.moved, task.failure, task.id))
    return task


def cancel(tables: Tables, task_id: str) -> MoveTask:
    """Ask a running task to stop."""
    task = find(tables, task_id)
    if task.status != "RUNNING":
        raise MoveTaskNotRunning(task.status)
    task = replace(task, status="CANCELLING")
    tables.execute(Q.advance_move, (task.status, task.moved, None, task.id))
    return task


def find(tables: Tables, task_id: str) -> MoveTask:
    """The task of that id; raises MoveTaskMissing."""
    row = tables.execute(Q.find_move, (task_id,)).fetchone()
    if row is None:
        raise MoveTaskMissing
    return to_task(row)


def to_task(row: Any) -> MoveTask:
    destination = parse_arn(row[2]) if row[2] else None
    return MoveTask(row[0], parse_arn(row[1]), destination, row[3], row[4], row[5], row[6], row[7], row[8])


def _moved_on(tables: Tables, task: MoveTask, count: int) -> MoveTask:
    source = tables.by_key.get(task.source)
    rows = _oldest_visible(tables, source, count) if source else []
    caller = decode_caller(tables.execute(Q.move_caller, (task.id,)).get)
    moved = 0
    for row in rows:
        key = task.destination or (parse_arn(row[10]) if row[10] else None)
        if key is None:
            return replace(task, status="FAILED", moved=task.moved + moved, failure=SOURCE_UNKNOWN)
        target = tables.by_key.get(key)
        if target is None or source is None:
            return replace(task, status="FAILED", moved=task.moved + moved, failure=DESTINATION_MISSING)
        _move(tables, source, target, row, caller)
        moved += 1
    if len(rows) < count:
        return replace(task, status="COMPLETED", moved=task.moved + moved)
    return replace(task, moved=task.moved + moved)


def _oldest_visible(tables: Tables, source: QueueState, count: int) -> list[Any]:
    if source.ranked:
        return list(tables.execute(Q.visible_oldest, (source.queue.id, count)))
    rows: list[Any] = tables.execute(Q.visible_alone, (source.queue.id, 0, count)).fetchall()
    if source.has_lanes:
        rows += tables.execute(Q.visible_grouped, (source.queue.id, 0, count)).fetchall()
        rows.sort(key=lambda row: int(row[0]))
    return rows[:count]


def redrive(tables: Tables, queue: Queue, chosen: Sequence[Chosen], caller: Caller) -> list[Sent | VeilError]:
    """Move the chosen messages, each on its own."""
    source = tables.state_of(queue)
    moved: list[Sent | VeilError] = []
    for one in chosen:
        try:
            moved.append(_redrive_one(tables, source, one, caller))
        except VeilError as refusal:
            moved.append(refusal)
    return moved


def _redrive_one(tables: Tables, source: QueueState, chosen: Chosen, caller: Caller) -> Sent:
    """Raises before it changes anything."""
    row = tables.execute(Q.message_in_queue, (chosen.seq, source.queue.id)).get
    gone_below = expired_below(tables.clock.now_ms(), source.queue.settings.retention_s)
    if row is None or row[1] != chosen.message_id or chosen.seq < gone_below:
        raise MessageMissing(chosen.message_id, chosen.seq)
    if row[14] != State.VISIBLE:
        raise MessageNotVisible(chosen.message_id, "in flight" if row[14] == State.IN_FLIGHT else "delayed")
    key = chosen.destination or (parse_arn(row[10]) if row[10] else None)
    if key is None:
        raise SourceUnknown(chosen.message_id)
    target = tables.by_key.get(key)
    if target is None:
        raise QueueMissing(key.name)
    if target.queue.settings.fifo != source.queue.settings.fifo:
        raise NotForQueueType("DestinationQueueUrl", key.name, fifo=source.queue.settings.fifo)
    content = None if chosen.change is None else chosen.change(to_message(row), target.queue)
    return _move(tables, source, target, row, caller, content)


def _move(
    tables: Tables,
    source: QueueState,
    target: QueueState,
    row: Any,
    caller: Caller,
    content: NewContent | None = None,
) -> Sent:
    """One message leaves the dead letters and arrives as a new one; the row is changed in place, so it is always in
    exactly one queue."""
    now_ms, settings, group = tables.clock.now_ms(), target.queue.settings, row[8]
    seq, message_id = tables.sequence.next(now_ms), str(uuid4())
    message_state, due_at_ms, wake_at_ms = State.VISIBLE, None, None
    if settings.delay_s:
        message_state, due_at_ms = State.DELAYED, now_ms + settings.delay_s * 1000
        wake_at_ms = min(due_at_ms, expires_at_ms(seq, settings.retention_s))
    deduplication_id = message_id if settings.fifo else None
    tables.execute(
        Q.redrive_message,
        (
            target.queue.id,
            seq,
            message_id,
            tables.clock.wall_ms(),
            deduplication_id,
            int(message_state),
            wake_at_ms,
            due_at_ms,
            row[0],
        ),
    )
    body_bytes, message_type = row[18], row[17]
    if content is not None:
        body_bytes, message_type = content.body_bytes, content.message_type
        attributes = encode_attributes(content.attributes)
        told = (attributes, content.body_md5, content.body, body_bytes, message_type)
        tables.execute(Q.change_content, (*told, seq))
    source.visible -= 1
    if wake_at_ms is not None:
        target.delayed += 1
        tables.hidden_until(target, wake_at_ms)
    else:
        target.visible += 1
        tables.visible_from(target, seq)
        tables.available(target)
    tables.touch(source)
    tables.touch(target)
    tables.rank(target, row[19])
    if group is not None:
        lanes.leave(tables, source, group, in_flight=0)
        lanes.join(tables, target, group, seq, message_state)
    if tables.journal is not None:
        before: Any = {"body_bytes": row[18], "message_type": row[17], "caller": caller}
        after: Any = {"body_bytes": body_bytes, "message_type": message_type, "caller": caller}
        gone = (REDRIVEN, now_ms, source.queue.key, row[0], row[1])
        come = (SENT, now_ms, target.queue.key, seq, message_id)
        tables.journal.note(
            *gone, receive_count=row[11], other_queue=target.queue.key, other_seq=seq, **before
        )
        tables.journal.note(*come, deadline_ms=due_at_ms, receive_count=0, other_seq=row[0], **after)
    return Sent(message_id, seq)
