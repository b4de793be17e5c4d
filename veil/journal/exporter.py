"""Takes events from the outbox and puts them into segments, each exactly once.

Plan, write, finish. The plan is durable before the first byte is written, and says which rows the segment holds, so
that an export that was cut short anywhere is done again and comes to the same file; finishing drops the rows and the
plan together. So a segment is there once and whole, or its rows still wait. Of several nodes on one store one exports at
a time; where two overlap, they write the same file with the same content, or the one that was overtaken writes none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from veil.core.clock import Clock
from veil.core.errors import VeilError
from veil.core.event import ExportPlan, OutboxRow
from veil.journal import frames
from veil.journal.helper_process import HelperProcess
from veil.journal.schema import Outbox

_log = logging.getLogger(__name__)

SEGMENT_ROWS_MAX: Final = 1_000_000
SEGMENT_BYTES_MAX: Final = 64 * 2**20  # packed: about 800,000 events
_ROWS_AT_ONCE: Final = 64  # the store is asked between requests, which shall not notice
_LOOK_MS: Final = 1_000
_BACK_OFF_MS: Final = (1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000)
_COMPLAINT_MS: Final = 60_000
_IDLE_MS: Final = 60_000
DUTY: Final = "export"


@dataclass(slots=True)
class ExportStats:
    """What was exported since the start."""

    events: int = 0
    segments: int = 0
    segment_bytes: int = 0
    failures: int = 0
    unreadable_rows: int = 0


class _Overtaken(Exception):
    """Another node has finished the plan: its rows go, and its segment is there."""


class Exporter:
    """Exports what has waited long enough, in the background of a server, or all of it at once."""

    def __init__(
        self,
        outbox: Outbox,
        sink: HelperProcess,
        clock: Clock,
        *,
        interval_s: float = 60.0,
        retention_days: int = 0,
    ) -> None:
        self._outbox, self._sink, self._clock = outbox, sink, clock
        self._interval_ms = round(interval_s * 1000)
        self._retention_days = retention_days
        self._look_ms = min(_LOOK_MS, max(50, self._interval_ms // 4))
        self._swept_day: str | None = None
        self._complained_ms: int | None = None
        self._failed_in_a_row = 0
        self._stopping = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.stats = ExportStats()

    # ---- in the background

    def start(self) -> None:
        """Export from now on, until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="veil-journal-exporter")

    async def stop(self, within_s: float) -> None:
        """Export what is left, as far as the time allows; what remains waits in the outbox for the next start."""
        self._stopping = True
        self._woken.set()
        self._sink.hurry()
        try:
            async with asyncio.timeout(within_s):
                if self._task is not None:
                    await self._task
                if await self._outbox.has_duty(DUTY):
                    await self.export_all()
                await self._sink.close()
        except TimeoutError:
            _log.warning("the journal's last export took too long: what is left waits in the outbox")
        except VeilError as problem:
            _log.warning("the journal's last export failed, what is left waits in the outbox: %s", problem)
        await self._sink.kill()

    async def abandon(self) -> None:
        """Stop at once: the store has failed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._sink.kill()

    async def _run(self) -> None:
        busy_ms = self._clock.now_ms()
        # Not in the first moments, which belong to those who wait for the server.
        sweep_from_ms = busy_ms + self._interval_ms
        while not await self._pause(self._look_ms):
            try:
                exported = await self._export_due()
                if self._clock.now_ms() >= sweep_from_ms:
                    await self._sweep_if_day_is_over()
            except Exception as problem:  # nobody else would see it, and the next try may succeed
                self._complain(problem)
                await self._pause(_BACK_OFF_MS[min(self._failed_in_a_row, len(_BACK_OFF_MS)) - 1])
                continue
            if exported:
                self._recovered()
                busy_ms = self._clock.now_ms()
            elif self._clock.now_ms() - busy_ms > max(_IDLE_MS, 2 * self._interval_ms):
                await self._sink.close()  # nothing happens: the helper need not hold its memory

    async def _pause(self, pause_ms: int) -> bool:
        """Wait that long, or until we are to stop; tells which."""
        await self._wait(pause_ms, self._woken)
        if not self._stopping:
            self._woken.clear()
        return self._stopping

    async def _wait(self, pause_ms: int, event: asyncio.Event) -> None:
        timer = self._clock.call_at(self._clock.now_ms() + pause_ms, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()

    async def _export_due(self) -> bool:
        exported = False
        while not self._stopping and await self._is_due() and await self._outbox.has_duty(DUTY):
            if not await self.export_one():
                break
            exported = True
        return exported

    async def _is_due(self) -> bool:
        waiting = await self._outbox.outbox_size()
        if not waiting.rows or waiting.oldest_ms is None:
            return False
        age_ms = self._clock.now_ms() - waiting.oldest_ms
        return age_ms >= self._interval_ms or waiting.packed_bytes >= SEGMENT_BYTES_MAX

    def _complain(self, problem: Exception) -> None:
        self.stats.failures += 1
        self._failed_in_a_row += 1
        now_ms = self._clock.now_ms()
        if self._complained_ms is None or now_ms - self._complained_ms >= _COMPLAINT_MS:
            self._complained_ms = now_ms
            told = problem if isinstance(problem, VeilError) else repr(problem)
            _log.error("the journal cannot be exported, its events wait in the outbox: %s", told)

    def _recovered(self) -> None:
        if self._failed_in_a_row:
            _log.info("the journal is exported again")
        self._failed_in_a_row, self._complained_ms = 0, None

    # ---- one after the other

    async def export_all(self) -> int:
        """Export everything that waits now and say how many events it was; raises ExportFailed, StoreError."""
        before = self.stats.events
        while await self.export_one():
            pass
        return self.stats.events - before

    async def export_one(self) -> bool:
        """Export one segment; False where nothing waits. Raises ExportFailed, StoreError."""
        plan = await self._plan()
        if plan is None:
            return False
        keeping = asyncio.get_running_loop().create_task(self._keep_duty())
        try:
            done = await self._sink.write(plan, self._rows(plan))
        except _Overtaken:
            return True
        finally:
            keeping.cancel()
        await self._outbox.finish_export(plan)
        self._count(done)
        return True

    async def _keep_duty(self) -> None:
        """Ask again every second: whoever falls silent is taken for dead, and another node begins to write the same segment."""
        while True:
            await self._wait(_LOOK_MS, asyncio.Event())
            with suppress(VeilError):
                await self._outbox.has_duty(DUTY)

    async def _plan(self) -> ExportPlan | None:
        return await self._outbox.plan_export(rows_max=SEGMENT_ROWS_MAX, bytes_max=SEGMENT_BYTES_MAX)

    async def _rows(self, plan: ExportPlan) -> AsyncIterator[Sequence[OutboxRow]]:
        after, missing = plan.first - 1, plan.last - plan.first + 1
        while after < plan.last:
            rows = await self._outbox.outbox_rows(plan, after=after, limit=_ROWS_AT_ONCE)
            if not rows:
                break
            yield rows
            after, missing = rows[-1].number, missing - len(rows)
        # A segment without them must not take the place of the whole one.
        if missing and await self._plan() != plan:
            raise _Overtaken

    def _count(self, done: frames.Written) -> None:
        self.stats.events += done.events
        self.stats.segments += 1
        self.stats.segment_bytes += done.size
        self.stats.unreadable_rows += len(done.unreadable)
        for reason in done.unreadable:
            _log.error("the journal lacks events: %s", reason)

    async def _sweep_if_day_is_over(self) -> None:
        today = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).date()
        if not self._retention_days or self._swept_day == today.isoformat():
            return
        if not await self._outbox.has_duty(DUTY):
            return
        before = (today - timedelta(days=self._retention_days)).isoformat()
        for day in await self._sink.sweep(before):
            _log.info("the journal of %s was removed: its %d days are over", day, self._retention_days)
        self._swept_day = today.isoformat()
