"""The outbox of the memory store: rows in a list, a plan over the first of them."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from veil.stores.export_day import export_day
from veil.stores.outbox_bound import OutboxBound
from veil.stores.recorder import Recorder
from veil.stores.store import ExportPlan, OutboxRow, OutboxSize


class _Waiting(NamedTuple):
    row: OutboxRow
    at_ms: int


class MemoryOutbox:
    """What happened and is not exported yet."""

    def __init__(self, bytes_max: int) -> None:
        self.recorder = Recorder()
        self._bound = OutboxBound(bytes_max)
        self._journal_id = secrets.token_hex(8)
        self._waiting: list[_Waiting] = []
        self._last = 0
        self._plan: ExportPlan | None = None

    def write(self, now_ms: int) -> None:
        """The operation is over: what it recorded becomes a row."""
        events = self.recorder.events
        if not events:
            return
        if self._bound.has_room(self._bytes()):
            self._last += 1
            self._waiting.append(_Waiting(OutboxRow(self._last, self.recorder.packed()), now_ms))
        else:
            self._bound.give_up(len(events), now_ms)
        self.recorder.clear()

    def plan(self, rows_max: int, bytes_max: int) -> ExportPlan | None:
        """The plan under way, else a new one: rows of one day within the bounds, and at least one."""
        if self._plan is None and self._waiting:
            day, taken, size = export_day(self._waiting[0].at_ms), 0, 0
            for row, at_ms in self._waiting[:rows_max]:
                size += len(row.packed)
                if taken and (export_day(at_ms) != day or size > bytes_max):
                    break
                taken += 1
            first, last = self._waiting[0].row.number, self._waiting[taken - 1].row.number
            self._plan = ExportPlan(self._journal_id, first, last, day)
        return self._plan

    def rows(self, plan: ExportPlan, after: int, limit: int) -> list[OutboxRow]:
        """Rows of the plan, those after a number."""
        found = [row for row, _ in self._waiting if plan.first <= row.number <= plan.last]
        return [row for row in found if row.number > after][:limit]

    def finish(self, plan: ExportPlan) -> None:
        """Drop the plan and its rows, if it is the one under way."""
        if plan == self._plan:
            self._waiting = [each for each in self._waiting if each.row.number > plan.last]
            self._plan = None

    def size(self) -> OutboxSize:
        """How much waits."""
        oldest_ms = self._waiting[0].at_ms if self._waiting else None
        return OutboxSize(len(self._waiting), self._bytes(), oldest_ms, self._bound.lost_events)

    def _bytes(self) -> int:
        return sum(len(row.packed) for row, _ in self._waiting)
