"""Redrives of the dead letters that match a filter: done by the server in the background, at a rate, and to be cancelled.

A move task of SQS moves a whole queue. What moves only some of it runs here: it looks through the queue once, from the
oldest to the newest at the start, and redrives what matches, some messages in one transaction each time. It is not kept
over a restart: what was moved stays moved, and to begin it again goes on with the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from veil.console.letters import Letter, LetterWish, has_room_for_mark, read_letter, with_room_for_mark
from veil.console.messages import BYTES_AT_ONCE
from veil.console.turns import Turn, Turns
from veil.console.visit import Visit
from veil.console.web import Refused
from veil.core.errors import VeilError
from veil.core.lease import State
from veil.core.limits import MOVE_RATE_MAX
from veil.core.message import Caller
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueKey
from veil.core.sequence import first_seq_of
from veil.service.messages import new_id
from veil.service.moves import Wanted, redrive

if TYPE_CHECKING:
    from veil.service.service import Service

_log = logging.getLogger(__name__)


_STEPS_PER_S: Final = 10
_ROWS_AT_ONCE: Final = 500
_KEPT_MAX: Final = 50
_REFUSALS_KEPT: Final = 5


class RedriveRunning(Refused):
    """One at a time for each queue."""

    status = 409


@dataclass(slots=True)
class Redrive:
    """A redrive of what matches, and how far it has come."""

    id: str
    queue: QueueKey
    words: str  # which letters
    destination: QueueKey | None
    rate_per_s: int
    to_look: int  # messages in the queue at the start
    started_wall_ms: int
    status: str = "RUNNING"  # then COMPLETED, CANCELLED or FAILED, as a move task's
    looked: int = 0
    moved: int = 0
    refused: int = 0
    failure: str | None = None
    refusals: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")


class Redrives:
    """The redrives of one server since it started."""

    def __init__(self, service: Service, turns: Turns) -> None:
        self._service, self._turns = service, turns
        self._kept: deque[Redrive] = deque(maxlen=_KEPT_MAX)
        self._running: dict[str, asyncio.Task[None]] = {}

    def of(self, queue: QueueKey) -> list[Redrive]:
        """Those of a queue, the newest first."""
        return [each for each in reversed(self._kept) if each.queue == queue]

    def active(self) -> list[Redrive]:
        """Those that are not at their end."""
        return [each for each in self._kept if each.is_active]

    async def start(
        self,
        queue: Queue,
        wish: LetterWish,
        words: str,
        *,
        destination: QueueKey | None,
        rate_per_s: int | None,
        caller: Caller,
    ) -> Redrive:
        """Begin in the background; raises RedriveRunning while the queue has one."""
        if any(each.is_active for each in self.of(queue.key)):
            raise RedriveRunning(f"A redrive of {queue.name} is running; wait for its end or cancel it.")
        task = Redrive(
            new_id(),
            queue.key,
            words,
            destination,
            min(rate_per_s or MOVE_RATE_MAX, MOVE_RATE_MAX),
            sum(await self._service.store.counts(queue)),
            self._service.clock.wall_ms(),
        )
        self._kept.append(task)
        runner = asyncio.get_running_loop().create_task(self._run(task, queue, wish, caller))
        self._running[task.id] = runner
        runner.add_done_callback(lambda _: self._running.pop(task.id, None))
        return task

    def cancel(self, task_id: str) -> Redrive | None:
        """Ask it to stop after the step that is under way; None where none of that id runs."""
        for task in self._kept:
            if task.id == task_id and task.status == "RUNNING":
                task.status = "CANCELLING"
                return task
        return None

    async def _run(self, task: Redrive, queue: Queue, wish: LetterWish, caller: Caller) -> None:
        try:
            await self._carry_out(task, queue, wish, caller)
        except VeilError as problem:
            task.status, task.failure = "FAILED", str(problem)
        except asyncio.CancelledError:
            task.status = "CANCELLED"
            raise
        except Exception as problem:
            _log.exception("a redrive of %s failed", queue.name)
            task.status, task.failure = "FAILED", type(problem).__name__
        else:
            task.status = "CANCELLED" if task.status == "CANCELLING" else "COMPLETED"

    async def _carry_out(self, task: Redrive, queue: Queue, wish: LetterWish, caller: Caller) -> None:
        service = self._service
        step = max(1, task.rate_per_s // _STEPS_PER_S)
        # What comes back meanwhile has a later key: so a message that fails again at once is not redriven for ever.
        up_to = first_seq_of(service.clock.now_ms()) - 1
        after, next_ms = 0, service.clock.now_ms()
        turn = Turn(self._turns)
        while task.status == "RUNNING":
            # At most a little over a megabyte, so that neither a look nor a move holds others up for long.
            messages = await service.store.peek(
                queue, after_seq=after, up_to_seq=up_to, limit=_ROWS_AT_ONCE, bytes_max=BYTES_AT_ONCE
            )
            if not messages:
                return
            after = messages[-1].seq
            before = task.looked
            letters: list[Letter] = []
            places: list[int] = []
            for place, message in enumerate(messages):
                await turn.pause()
                letters.append(read_letter(queue, message))
                if wish.matches(letters[-1]):
                    places.append(place)
            for first in range(0, len(places), step):
                if task.status != "RUNNING":
                    return
                some = places[first : first + step]
                await self._move(task, queue, [letters[place] for place in some], caller)
                task.looked = before + some[-1] + 1
                next_ms = max(next_ms + len(some) * 1000 // task.rate_per_s, service.clock.now_ms())
                await self._pause(next_ms)
            task.looked = before + len(messages)

    async def _move(self, task: Redrive, queue: Queue, letters: list[Letter], caller: Caller) -> None:
        moved, refusals = await redrive_letters(self._service, queue, letters, task.destination, caller)
        task.moved += moved
        task.refused += len(refusals)
        task.refusals = (*task.refusals, *refusals)[:_REFUSALS_KEPT]

    async def _pause(self, until_ms: int) -> None:
        clock = self._service.clock
        if until_ms <= clock.now_ms():
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = clock.call_at(until_ms, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()


async def redrive_letters(
    service: Service, queue: Queue, letters: list[Letter], destination: QueueKey | None, caller: Caller
) -> tuple[int, list[str]]:
    """Redrive these letters, marked with where they come from; how many were moved, and why the others were not."""
    moved, refusals = 0, list[str]()
    for mark in (True, False):
        # A message that is full of its sender's attributes goes without the mark: better than not at all.
        some = [each for each in letters if has_room_for_mark(each.message) == mark]
        wanted = [
            _wanted(each, destination, mark=mark) for each in some if each.message.state == State.VISIBLE
        ]
        refusals += [
            f"message {each.message.message_id} is not visible" for each in some if each.message.state
        ]
        if not wanted:
            continue
        for answer in await redrive(service, queue, wanted, mark=mark, caller=caller):
            if isinstance(answer, VeilError):
                refusals.append(str(answer))
            else:
                moved += 1
    return moved, refusals


def _wanted(letter: Letter, destination: QueueKey | None, *, mark: bool) -> Wanted:
    target = destination
    if target is None and not letter.is_known_to_server:
        target = letter.source  # the consumer wrote it down; None: the store refuses, and says why
    attributes = with_room_for_mark(letter.message) if mark else None
    return Wanted(letter.message.seq, letter.message.message_id, target, None, attributes)


# ---- Move tasks and filtered redrives side by side, as one list of what moves dead letters.

_TASKS_SHOWN: Final = 5
STATUS_CHIPS: Final = {
    "RUNNING": "in-flight",
    "CANCELLING": "in-flight",
    "COMPLETED": "done",
    "CANCELLED": "",
    "FAILED": "failed",
}


class MoveRow(NamedTuple):
    """One move of dead letters, of either kind."""

    id: str
    is_move_task: bool
    queue: QueueKey
    words: str  # which letters
    destination: str | None
    status: str
    moved: int
    done: int  # of `of`, for the bar
    of: int
    rate_per_s: int | None
    started_wall_ms: int
    refused: int = 0
    refusals: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")

    @property
    def chip(self) -> str:
        return STATUS_CHIPS.get(self.status, "")


async def moves_of(visit: Visit, queue: Queue) -> list[MoveRow]:
    """The moves out of a queue, those that run first, then the newest."""
    tasks = [_task_row(each) for each in await visit.service.store.list_moves(queue.key, _TASKS_SHOWN)]
    redrives = [_redrive_row(each) for each in visit.console.redrives.of(queue.key)[:_TASKS_SHOWN]]
    rows = sorted([*tasks, *redrives], key=lambda row: (not row.is_active, -row.started_wall_ms))
    return rows[: 2 * _TASKS_SHOWN]


async def active_moves(visit: Visit) -> dict[QueueKey, list[MoveRow]]:
    """What moves at the moment, by the queue that it empties; of the visitor's account."""
    account = visit.identity.account
    found: dict[QueueKey, list[MoveRow]] = {}
    rows: Sequence[MoveRow] = [
        *(_task_row(each) for each in await visit.service.store.active_moves()),
        *(_redrive_row(each) for each in visit.console.redrives.active()),
    ]
    for row in rows:
        if row.queue.account == account:
            found.setdefault(row.queue, []).append(row)
    return found


def _task_row(task: MoveTask) -> MoveRow:
    return MoveRow(
        task.id,
        True,
        task.source,
        "all",
        None if task.destination is None else task.destination.name,
        task.status,
        task.moved,
        task.moved,
        max(task.to_move, task.moved),
        task.rate_per_s,
        task.started_wall_ms,
        failure=task.failure,
    )


def _redrive_row(redrive: Redrive) -> MoveRow:
    return MoveRow(
        redrive.id,
        False,
        redrive.queue,
        redrive.words,
        None if redrive.destination is None else redrive.destination.name,
        redrive.status,
        redrive.moved,
        redrive.looked if redrive.is_active or redrive.status != "COMPLETED" else redrive.to_look,
        max(redrive.to_look, redrive.looked),
        redrive.rate_per_s,
        redrive.started_wall_ms,
        redrive.refused,
        redrive.refusals,
        redrive.failure,
    )
