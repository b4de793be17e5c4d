"""What happens without being asked for: deadlines that pass, and move tasks that go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from veil.core.clock import Clock, Timer
from veil.core.errors import MoveTaskMissing, VeilError
from veil.core.limits import MOVE_RATE_MAX
from veil.core.queue import Chosen, MoveTask, Scan, ScanStep
from veil.journal.attempts import JournalLookup
from veil.service.dead_letters import look_through, read_filter, to_chosen
from veil.service.time_slices import BYTES_AT_ONCE, TimeSlice, TimeSlices
from veil.stores.store import Store

_log = logging.getLogger(__name__)


# ---- deadlines
#
# The store settles a queue whenever somebody looks at it, so this is for those who do not look: waiting
# receivers, and messages that nobody asks for.

# Deadlines that lie close together share one transaction.
TICK_MIN_MS: Final = 20
AFTER_FAILURE_MS: Final = 1_000


def _unforeseen(error: Exception) -> bool:
    """Whether the log needs to show where it came from."""
    return not isinstance(error, VeilError | OSError)


class Ticker:
    """Settles the store at each due instant, at most every 20 milliseconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._timer: Timer | None = None
        self._armed_ms: int | None = None
        self._not_before_ms = 0
        self._settling: asyncio.Task[None] | None = None
        self._stopped = True

    def start(self) -> None:
        self._stopped = False
        self.look()

    def look(self) -> None:
        """Take note of a due instant that may have come nearer: the store says so (`StoreEvents.due_sooner`)."""
        due_ms = self._store.next_due_ms()
        if due_ms is None or self._stopped or self._settling is not None:
            return
        due_ms = max(due_ms, self._not_before_ms)
        if self._armed_ms is not None:
            if due_ms >= self._armed_ms:
                return
            assert self._timer is not None
            self._timer.cancel()
        self._armed_ms = due_ms
        self._timer = self._clock.call_at(due_ms, self._tick)

    async def stop(self) -> None:
        """Tick no more; returns when a settling under way has ended."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_ms = None
        if self._settling is not None:
            await asyncio.wait([self._settling])

    def _tick(self) -> None:
        self._timer = self._armed_ms = None
        self._not_before_ms = self._clock.now_ms() + TICK_MIN_MS
        self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        try:
            await self._store.settle()
        except Exception as error:
            # Nothing is lost by trying later: every receive settles its own queue before it looks.
            _log.error(
                "settling failed, trying again in %d ms: %s",
                AFTER_FAILURE_MS,
                error,
                exc_info=_unforeseen(error),
            )
            self._not_before_ms = self._clock.now_ms() + AFTER_FAILURE_MS
        finally:
            self._settling = None
            self.look()


# ---- move tasks
#
# Of several nodes on one store each task has one that carries it out. The others look every other second whether a task has
# been left behind.

_STEPS_PER_S: Final = 10
LOOK_MS: Final = 2_000
# And a little over a megabyte at most, so that neither a look nor a step holds others up for long.
_LOOKED_AT_ONCE: Final = 500


class MoveRunners:
    """One runner for each active task that is ours. The store knows how far each has come, so stopping loses nothing."""

    def __init__(
        self, store: Store, clock: Clock, time_slices: TimeSlices, type_attributes: Sequence[str]
    ) -> None:
        self._store, self._clock = store, clock
        self._time_slices, self._type_attributes = time_slices, type_attributes
        self._running: dict[str, asyncio.Task[None]] = {}
        # By task id, while its runner waits for the next step.
        self.pauses: dict[str, asyncio.Future[None]] = {}
        self._next_look: Timer | None = None
        self.lives: JournalLookup | None = None  # where there is a journal: what attempts ended in

    async def resume(self) -> None:
        """Go on with every task that is not at its end and that nobody carries out, now and whenever one is left behind."""
        for task in await self._store.active_moves():
            self.run(task)
        if self._store.is_shared:
            self._next_look = self._clock.call_at(self._clock.now_ms() + LOOK_MS, self._look)

    def _look(self) -> None:
        looking = asyncio.get_running_loop().create_task(self._look_again())
        self._running[""] = looking
        looking.add_done_callback(lambda _: self._running.pop("", None))

    async def _look_again(self) -> None:
        try:
            await self.resume()
        except Exception as error:
            _log.debug("move tasks cannot be listed: %s", error, exc_info=_unforeseen(error))
            self._next_look = self._clock.call_at(self._clock.now_ms() + LOOK_MS, self._look)

    def run(self, task: MoveTask) -> None:
        if task.id in self._running:
            return
        runner = asyncio.get_running_loop().create_task(self._run(task))
        self._running[task.id] = runner
        runner.add_done_callback(lambda _: self._running.pop(task.id, None))

    def is_running(self, task_id: str) -> bool:
        return task_id in self._running

    def hurry(self, task_id: str) -> None:
        """End the runner's pause: its task was cancelled, and the next step says so."""
        pause = self.pauses.get(task_id)
        if pause is not None and not pause.done():
            pause.set_result(None)

    async def stop(self) -> None:
        """Stop every runner; the tasks stay active for the next start, or for another node."""
        if self._next_look is not None:
            self._next_look.cancel()
        runners = list(self._running.values())
        for runner in runners:
            runner.cancel()
        if runners:
            await asyncio.wait(runners)

    async def _run(self, task: MoveTask) -> None:
        rate_per_s = min(task.rate_per_s or MOVE_RATE_MAX, MOVE_RATE_MAX)
        step = max(1, rate_per_s // _STEPS_PER_S)
        next_ms, has_failed = self._clock.now_ms(), False
        while task.is_active:
            try:
                if not await self._store.has_duty(f"move:{task.id}"):
                    return  # another node carries it out
                if task.scan is not None and has_failed:
                    # Perhaps to look, while the journal is out of reach: only a step tells whether the task was cancelled.
                    has_failed, nothing = False, ScanStep((), task.scan.after_seq, 0, is_last=False)
                    task = await self._store.step_move(task.id, step, nothing)
                    continue
                found = None if task.scan is None else await self._look_on(task, task.scan, step)
                task = await self._store.step_move(task.id, step, found)
                moved = step if found is None else len(found.chosen)
                # Counted from the last step's due time, not from its end, so that slow steps do not lower
                # the rate; but what a stall has cost is not caught up in one rush.
                now_ms = self._clock.now_ms()
                next_ms = max(next_ms + moved * 1000 // rate_per_s, now_ms)
            except MoveTaskMissing:
                return
            except Exception as error:
                has_failed = True
                # A queue that was deleted in the middle is not found by the next step.
                _log.error(
                    "move task %s: a step failed, trying again: %s",
                    task.id,
                    error,
                    exc_info=_unforeseen(error),
                )
                next_ms = self._clock.now_ms() + AFTER_FAILURE_MS
            if task.is_active:
                await self._pause(task.id, next_ms)

    async def _look_on(self, task: MoveTask, scan: Scan, count: int) -> ScanStep:
        """Look at the next messages until `count` of them match, or a page of them is over."""
        queue = await self._store.find_queue(task.source)
        if queue is None:
            return ScanStep((), scan.after_seq, 0, is_last=True)  # as with any task: nothing is left to move
        found: list[Chosen] = []
        after_seq, looked, looked_bytes = scan.after_seq, 0, 0
        async for letter, matches in look_through(
            self._store,
            queue,
            read_filter(scan.filter),
            self.lives,
            TimeSlice(self._time_slices),
            after_seq=after_seq,
            up_to_seq=scan.up_to_seq,
        ):
            after_seq, looked = letter.message.seq, looked + 1
            looked_bytes += letter.message.held_bytes
            if matches:
                found.append(to_chosen(letter, task.destination, self._type_attributes))
            if len(found) == count or looked == _LOOKED_AT_ONCE or looked_bytes >= BYTES_AT_ONCE:
                return ScanStep(found, after_seq, looked, is_last=False)
        return ScanStep(found, after_seq, looked, is_last=True)

    async def _pause(self, task_id: str, until_ms: int) -> None:
        pause = self.pauses[task_id] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(until_ms, lambda: None if pause.done() else pause.set_result(None))
        try:
            await pause
        finally:
            timer.cancel()
            del self.pauses[task_id]
