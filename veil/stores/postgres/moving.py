"""Dead letters go back: by move tasks, a step at a time, each step one transaction with its own progress in it; or chosen
one by one, all that a call names in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import uuid4

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
from veil.core.message import Caller, Sent
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.core.sequence import expired_below
from veil.stores.codec import decode_caller, encode_caller
from veil.stores.postgres.engine import Engine
from veil.stores.postgres.moved_rows import MovedRows
from veil.stores.postgres.queue_state import KnownQueues, QueueState
from veil.stores.postgres.receiving import to_message
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction
from veil.stores.store import Chosen

DESTINATION_MISSING: Final = "AWS.SimpleQueueService.NonExistentQueue"
SOURCE_UNKNOWN: Final = "CouldNotDetermineMessageSource"


class AlsoNeeded(NamedTuple):
    """Queues that the work turned out to be about: it has changed nothing, and wants to be done again with them."""

    keys: set[QueueKey]


class Moves:
    """The move tasks and chosen redrives of the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def redrive(self, queue: Queue, chosen: Sequence[Chosen], caller: Caller) -> list[Sent | VeilError]:
        """Move the chosen messages, each on its own."""
        known = self._engine.queues
        needed = {one.destination for one in chosen if one.destination is not None}
        while True:
            result = await self._engine.run(
                lambda tx: _redrive(tx, known, queue, chosen, caller),
                queues=[queue, *needed],
                exclusive=True,
                numbers=len(chosen),
            )
            if not isinstance(result, AlsoNeeded):
                return result
            needed |= result.keys

    async def start(self, task: MoveTask, caller: Caller) -> MoveTask:
        """Record a running task."""

        async def record(tx: Transaction) -> MoveTask:
            # Two nodes at once: the second one's row collides with the first's, and when redone it finds that.
            if await tx.row(Q.active_move_of, {"source": task.source.arn}):
                raise MoveTaskRunning(task.source.name)
            state = tx.by_key.get(task.source)
            begun = replace(task, to_move=state.visible if state else 0)
            destination = begun.destination.arn if begun.destination else None
            facts = {"id": begun.id, "source": begun.source.arn, "destination": destination}
            progress = {"status": begun.status, "moved": begun.moved, "to_move": begun.to_move}
            origin = {"started_wall_ms": begun.started_wall_ms, "caller": encode_caller(caller)}
            tx.later(Q.insert_move, {**facts, **progress, **origin, "rate_per_s": begun.rate_per_s})
            tx.later(Q.forget_moves, {"source": begun.source.arn})
            return begun

        return await self._engine.run(record, queues=[task.source])

    async def step(self, task_id: str, count: int) -> MoveTask:
        """Move up to `count` messages and note how far the task has come."""
        known = self._engine.queues
        needed: set[QueueKey] = set()
        task = await self._engine.run(lambda tx: _find(tx, task_id))
        needed |= {task.source} if task.destination is None else {task.source, task.destination}
        while True:
            result = await self._engine.run(
                lambda tx: _step(tx, known, task_id, count), queues=list(needed), exclusive=True
            )
            if not isinstance(result, AlsoNeeded):
                return result
            needed |= result.keys

    async def cancel(self, task_id: str) -> MoveTask:
        """Ask a running task to stop."""

        async def ask(tx: Transaction) -> MoveTask:
            task = await _find(tx, task_id)
            if task.status != "RUNNING":
                raise MoveTaskNotRunning(task.status)
            return _advanced(tx, replace(task, status="CANCELLING"))

        return await self._engine.run(ask)

    async def listed(self, source: QueueKey, limit: int) -> list[MoveTask]:
        """The tasks of a source, newest first."""
        rows = await self._engine.ask(Q.list_moves, {"source": source.arn, "limit": limit})
        return [_to_task(row) for row in rows]

    async def active(self) -> list[MoveTask]:
        """Every task that is not at its end."""
        return [_to_task(row) for row in await self._engine.ask(Q.active_moves, {})]


async def _find(tx: Transaction, task_id: str) -> MoveTask:
    row = await tx.row(Q.find_move, {"id": task_id})
    if row is None:
        raise MoveTaskMissing
    return _to_task(row)


def _to_task(row: Row) -> MoveTask:
    destination = parse_arn(row[2]) if row[2] else None
    return MoveTask(row[0], parse_arn(row[1]), destination, *row[3:9])


def _advanced(tx: Transaction, task: MoveTask) -> MoveTask:
    progress = {"status": task.status, "moved": task.moved, "failure": task.failure}
    tx.later(Q.advance_move, {"id": task.id, **progress})
    return task


# ---- a step of a task


async def _step(tx: Transaction, known: KnownQueues, task_id: str, count: int) -> MoveTask | AlsoNeeded:
    task = await _find(tx, task_id)
    if task.status == "CANCELLING":
        return _advanced(tx, replace(task, status="CANCELLED"))
    if task.status != "RUNNING":
        return task
    source = tx.by_key.get(task.source)
    if source is None:
        return _advanced(tx, replace(task, status="COMPLETED"))  # nothing is left to move
    rows = await tx.rows(Q.visible_oldest, {"queue": source.id, "limit": count})
    if task.destination is None and (more := _missing(tx, known, map(_origin, rows))):
        return AlsoNeeded(more)
    [(caller,)] = await tx.rows(Q.move_caller, {"id": task.id})
    moved = MovedRows(tx, source, decode_caller(caller), await tx.numbers(len(rows)))
    failure = None
    for row in rows:
        key = task.destination or _origin(row)
        target = None if key is None else tx.by_key.get(key)
        if target is None:
            failure = SOURCE_UNKNOWN if key is None else DESTINATION_MISSING
            break
        await moved.add(row, target, str(uuid4()))
    moved.write()
    task = replace(task, moved=task.moved + moved.count)
    if failure is not None:
        return _advanced(tx, replace(task, status="FAILED", failure=failure))
    return _advanced(tx, replace(task, status="COMPLETED") if len(rows) < count else task)


def _origin(row: Row) -> QueueKey | None:
    """Where the message of the row was dead-lettered from."""
    try:
        return None if row[10] is None else parse_arn(row[10])
    except ArnRefused:
        return None


def _missing(tx: Transaction, known: KnownQueues, keys: map[QueueKey | None]) -> set[QueueKey]:
    """The queues among these that exist and are not locked here."""
    return {key for key in keys if key is not None and key not in tx.by_key and key in known.by_key}


# ---- chosen messages


async def _redrive(
    tx: Transaction, known: KnownQueues, queue: Queue, chosen: Sequence[Chosen], caller: Caller
) -> list[Sent | VeilError] | AlsoNeeded:
    source = tx.state_of(queue)
    alive_from = expired_below(tx.now_ms, source.queue.settings.retention_s)
    seqs = sorted({one.seq for one in chosen if one.seq >= alive_from})
    rows = {row[0]: row for row in await tx.rows(Q.messages_by_seq, {"queue": source.id, "seqs": seqs})}
    wanted = (one for one in chosen if one.destination is None and one.seq in rows)
    if more := _missing(tx, known, map(_origin, [rows[one.seq] for one in wanted])):
        return AlsoNeeded(more)
    moved = MovedRows(tx, source, caller, await tx.numbers(len(chosen)))
    answers: list[Sent | VeilError] = []
    for one in chosen:
        try:
            answers.append(await _redrive_one(tx, source, rows, one, moved))
        except VeilError as refusal:
            answers.append(refusal)
    moved.write()
    return answers


async def _redrive_one(
    tx: Transaction, source: QueueState, rows: dict[int, Row], chosen: Chosen, moved: MovedRows
) -> Sent:
    """Raises before it changes anything."""
    row = rows.get(chosen.seq)
    if row is None or row[1] != chosen.message_id:
        raise MessageMissing(chosen.message_id, chosen.seq)
    if row[14] != State.VISIBLE:
        raise MessageNotVisible(chosen.message_id, "in flight" if row[14] == State.IN_FLIGHT else "delayed")
    key = chosen.destination or _origin(row)
    if key is None:
        raise SourceUnknown(chosen.message_id)
    target = tx.by_key.get(key)
    if target is None:
        raise QueueMissing(key.name)
    if target.fifo != source.fifo:
        raise NotForQueueType("DestinationQueueUrl", key.name, fifo=source.fifo)
    content = None if chosen.change is None else chosen.change(to_message(row), target.queue)
    sent = await moved.add(row, target, str(uuid4()), content)
    del rows[chosen.seq]  # chosen twice, it is gone the second time
    return sent
