"""Move tasks and filtered redrives side by side, as one list of what moves dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from veil.console.redrives import Redrive, redrives_of
from veil.console.visit import Visit
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueKey

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
    redrives = [_redrive_row(each) for each in redrives_of(visit.console).of(queue.key)[:_TASKS_SHOWN]]
    rows = sorted([*tasks, *redrives], key=lambda row: (not row.is_active, -row.started_wall_ms))
    return rows[: 2 * _TASKS_SHOWN]


async def active_moves(visit: Visit) -> dict[QueueKey, list[MoveRow]]:
    """What moves at the moment, by the queue that it empties; of the visitor's account."""
    account = visit.identity.account
    found: dict[QueueKey, list[MoveRow]] = {}
    rows: Sequence[MoveRow] = [
        *(_task_row(each) for each in await visit.service.store.active_moves()),
        *(_redrive_row(each) for each in redrives_of(visit.console).active()),
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
