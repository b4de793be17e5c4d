"""Redrives: by move tasks, step by step, where each step is one transaction that also records the progress; or of chosen
messages, all of a call in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import uuid4

from veil.core import decide
from veil.core.effect import Redriven
from veil.core.errors import MoveTaskMissing, MoveTaskRunning, VeilError
from veil.core.event import NOBODY
from veil.core.message import Caller, NewContent, Sent, StoredMessage
from veil.core.queue import Chosen, MoveTask, Queue, QueueKey, ScanStep
from veil.core.sequence import expired_below
from veil.stores.postgres import queues
from veil.stores.postgres.apply import apply
from veil.stores.postgres.messages import messages_by_seq
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import KnownQueues, LockedQueue, Transaction
from veil.stores.sql import decode_caller, encode_caller, encode_scan, to_message, to_task


class AlsoNeeded(Exception):
    """The work needs more queues: nothing was changed, and it must be repeated with these locked too."""

    def __init__(self, keys: set[QueueKey]) -> None:
        self.keys = keys


# ---- move tasks


async def start(tx: Transaction, task: MoveTask, caller: Caller) -> MoveTask:
    """Record a running task."""
    # If two nodes start at once, the second row collides with the first, and the retry finds it here.
    if await tx.row(Q.active_move_of, {"source": task.source.arn}):
        raise MoveTaskRunning(task.source.name)
    state = tx.by_key.get(task.source)
    begun = replace(task, to_move=state.visible if state else 0)
    plain = ("id", "rate_per_s", "status", "moved", "to_move", "started_wall_ms")
    row = {name: getattr(begun, name) for name in plain} | {"source": begun.source.arn}
    row |= {"destination": begun.destination.arn if begun.destination else None}
    tx.defer(Q.insert_move, {**row, "scan": encode_scan(begun.scan), "caller": encode_caller(caller)})
    tx.defer(Q.forget_moves, {"source": begun.source.arn})
    return begun


async def step(
    tx: Transaction, known: KnownQueues, task_id: str, count: int, found: ScanStep | None
) -> MoveTask:
    """Move up to `count` messages, or those found, and record the progress."""
    task = await find(tx, task_id)
    if task.status == "CANCELLING":
        return _advanced(tx, replace(task, status="CANCELLED"))
    if task.status != "RUNNING":
        return task
    source = tx.by_key.get(task.source)
    [(packed,)] = await tx.rows(Q.move_caller, {"id": task.id})
    caller = decode_caller(packed)
    if found is not None:
        answers = await redrive(tx, known, source.queue, found.chosen, caller) if source else []
        return _advanced(tx, decide.step_scan(task, found, answers))
    messages: list[StoredMessage] = []
    if source is not None:
        rows = await tx.rows(Q.visible_oldest, {"queue": source.id, "limit": count})
        messages = [to_message(row) for row in rows]
    if task.destination is None:
        _need(tx, known, (decide.home_of(each, task.source) for each in messages))
    moves, task = decide.step_move(task, messages, count, tx.find, await _redriver(tx, len(messages)))
    if source is not None:
        await _apply(tx, source, moves, caller)
    return _advanced(tx, task)


async def cancel(tx: Transaction, task_id: str) -> MoveTask:
    """Ask a running task to stop."""
    return _advanced(tx, decide.cancel_move(await find(tx, task_id)))


async def find(tx: Transaction, task_id: str) -> MoveTask:
    """The task of that id; raises MoveTaskMissing."""
    row = await tx.row(Q.find_move, {"id": task_id})
    if row is None:
        raise MoveTaskMissing
    return to_task(row)


def _advanced(tx: Transaction, task: MoveTask) -> MoveTask:
    progress = {"status": task.status, "moved": task.moved, "failure": task.failure}
    tx.defer(Q.advance_move, {"id": task.id, **progress, "scan": encode_scan(task.scan)})
    return task


# ---- chosen messages


async def redrive(
    tx: Transaction, known: KnownQueues, queue: Queue, chosen: Sequence[Chosen], caller: Caller
) -> list[Sent | VeilError]:
    """Move the chosen messages, each on its own."""
    source = tx.state_of(queue)
    messages = await _chosen(tx, source, (one.seq for one in chosen))
    homeward = (messages[one.seq] for one in chosen if one.destination is None and one.seq in messages)
    _need(tx, known, (decide.home_of(each, queue.key) for each in homeward))
    make = await _redriver(tx, len(chosen))
    moved, answers = decide.decide_redrives(source.queue, chosen, messages, tx.find, make)
    await _apply(tx, source, moved, caller)
    return answers


async def discard(
    tx: Transaction, queue: Queue, chosen: Sequence[tuple[int, str]], *, caller: Caller = NOBODY
) -> list[VeilError | None]:
    """Remove the chosen messages, each on its own."""
    source = tx.state_of(queue)
    messages = await _chosen(tx, source, (seq for seq, _ in chosen))
    removed, answers = decide.decide_discards(chosen, messages)
    apply(tx, source, removed, caller)
    return answers


async def _chosen(tx: Transaction, source: LockedQueue, seqs: Iterable[int]) -> dict[int, StoredMessage]:
    alive_from = expired_below(tx.now_ms, source.queue.settings.retention_s)
    return await messages_by_seq(tx, source, sorted({seq for seq in seqs if seq >= alive_from}))


# ---- both


def _need(tx: Transaction, known: KnownQueues, keys: Iterable[QueueKey | None]) -> None:
    """Raise AlsoNeeded if some of these queues exist and are not locked here."""
    missing = {key for key in keys if key is not None and key not in tx.by_key and key in known.by_key}
    if missing:
        raise AlsoNeeded(missing)


async def _redriver(tx: Transaction, count: int) -> decide.Redrive:
    numbers = iter(await tx.numbers(count))

    def make(message: StoredMessage, target: Queue, content: NewContent | None) -> Redriven:
        seq = tx.seq(tx.states[target.id], next(numbers))
        return decide.redrive(message, target, seq, str(uuid4()), tx.now_ms, tx.wall_ms, content)

    return make


async def _apply(tx: Transaction, source: LockedQueue, moved: Sequence[Redriven], caller: Caller) -> None:
    for effect in moved:
        target = tx.states[effect.target.id]
        if effect.moved.group is not None and not target.has_groups:
            await queues.give_groups(tx, target)
    apply(tx, source, moved, caller)
