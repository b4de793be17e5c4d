"""A move task: the redrive of a dead-letter queue, running in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veil.core.queue import QueueKey

MoveStatus = Literal["RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"]


@dataclass(frozen=True, slots=True)
class MoveTask:
    """What a move task is to do and how far it has come."""

    id: str
    source: QueueKey
    destination: QueueKey | None  # None: every message goes back to the queue it was dead-lettered from
    rate_per_s: int | None
    status: MoveStatus
    moved: int
    to_move: int  # counted at the start
    started_wall_ms: int
    failure: str | None = None

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")
