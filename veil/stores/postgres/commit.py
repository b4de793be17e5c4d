"""Group commit: what arrives while the connections are busy shares the next transaction.

Operations on plain standard queues go together whatever their queues are, in a few groups at a time. A FIFO queue, or one with
groups, has a line of its own: there operations follow one another anyway, and one transaction holds as many as wait. An
operation that is refused does not disturb the others; when a group fails for an odd reason, each of its members gets a
transaction of its own, so that only those fail that cannot work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from veil.core.clock import TroubleKind
from veil.core.errors import StoreUnavailable, VeilError
from veil.stores.commit_stats import CommitStats
from veil.stores.postgres import bulk
from veil.stores.postgres.engine import AnswerTimer, Engine, Need, drained
from veil.stores.postgres.transaction import SharedOperation, Transaction

_log = logging.getLogger(__name__)

GROUP_MAX: Final = 200  # operations
# More at a time than one, so that one can be synced while the next is sent; few, so that groups are large.
PLAIN_GROUPS: Final = 2
# Operations that are worth a group beside the one under way; fewer wait for its end and become more: a transaction costs
# node and database far more than an operation in it.
BESIDE_FROM: Final = 16
# Which they do no longer than this: the group may itself have to wait, for somebody's long transaction.
SMALL_GROUP_WAIT_S: Final = 0.02


@dataclass(slots=True, eq=False)
class WaitingLine:
    """Operations that wait for the next group, how these are run, and how many of them are under way."""

    groups_max: int
    run: Callable[[list[SharedOperation]], Awaitable[None]]
    waiting: deque[SharedOperation] = field(default_factory=deque)
    running: int = 0
    scheduled: bool = False
    held_back: bool = False  # a timer runs, after which also a small group sets out

    def has_room(self) -> bool:
        """Whether somebody waits, and another group may be under way."""
        return bool(self.waiting) and self.running < self.groups_max

    def is_worth_a_group(self) -> bool:
        """Whether the next group may set out now; a small one waits while another is under way, and grows."""
        return self.running == 0 or len(self.waiting) >= BESIDE_FROM


class PostgresGroupCommit:
    """Runs operations in shared transactions; the answer of each comes once it is durable."""

    def __init__(self, engine: Engine, stats: CommitStats) -> None:
        self._engine, self._stats = engine, stats
        self._plain = WaitingLine(PLAIN_GROUPS, self._run_plain)
        self._sequential: dict[int, WaitingLine] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, operation: SharedOperation) -> Any:
        """The operation's answer, or what it raises."""
        if bulk.fits(self._engine, operation):
            line = self._plain
        else:
            line = self._sequential.setdefault(operation.queue.id, WaitingLine(1, self._run_in_order))
        line.waiting.append(operation)
        self._look(line)
        return await operation.answer

    async def drain(self) -> None:
        """Return when nothing is under way."""
        await drained(self._tasks)

    # ---- waiting

    def _look(self, line: WaitingLine) -> None:
        """Let a group set out at the end of the loop's turn, so that what arrives together goes together; or after a while,
        where it is too small to be worth one beside the group under way."""
        if line.scheduled or not line.has_room():
            return
        loop = asyncio.get_running_loop()
        if line.is_worth_a_group():
            line.scheduled = True
            loop.call_soon(self._start, line)
        elif not line.held_back:
            line.held_back = True
            loop.call_later(SMALL_GROUP_WAIT_S, self._start_small, line)

    def _start_small(self, line: WaitingLine) -> None:
        line.held_back = False
        if line.has_room():
            self._start_group(line)

    def _start(self, line: WaitingLine) -> None:
        line.scheduled = False
        if line.has_room() and line.is_worth_a_group():
            self._start_group(line)
        else:
            self._look(line)

    def _start_group(self, line: WaitingLine) -> None:
        size = min(GROUP_MAX, len(line.waiting))
        if size > BESIDE_FROM:
            # Side by side: while the database works on one, the rules are applied to another.
            size = -(-size // (line.groups_max - line.running))
        group = [line.waiting.popleft() for _ in range(size)]
        line.running += 1
        self._engine.lease_time.waits(group[0], TroubleKind.DATABASE, self._engine.heard_ms)
        task = asyncio.create_task(self._answer_all(line, group))
        self._tasks.add(task)

        def hangs(error: StoreUnavailable) -> None:
            """Whoever waits for it is told so, and whoever waits behind it, again and again."""
            self._fail(group, error)
            if line.running == line.groups_max:
                self._fail([*line.waiting], error)
                line.waiting.clear()

        timer = AnswerTimer(hangs)

        def ended(task: asyncio.Task[None]) -> None:
            timer.cancel()
            self._tasks.discard(task)
            self._engine.lease_time.answered(group[0])
            line.running -= 1
            self._look(line)
            if line is not self._plain and not line.waiting and not line.running:
                self._sequential.pop(group[0].queue.id, None)

        task.add_done_callback(ended)
        self._look(line)

    async def _answer_all(self, line: WaitingLine, group: list[SharedOperation]) -> None:
        """Run the group; whatever happens, none of it is left without an answer."""
        try:
            await self._timed(line, group)
        except Exception as error:
            _log.exception("a group of operations failed in a way that is not known")
            self._fail(group, error)
        finally:
            self._fail(group, StoreUnavailable("the node stopped before the operation was done"))

    async def _timed(self, line: WaitingLine, group: list[SharedOperation]) -> None:
        began = time.perf_counter()
        try:
            await line.run(group)
        except VeilError as error:
            if isinstance(error, StoreUnavailable) or len(group) == 1:
                # Nobody knows what has become of the group, or there is nobody to be spared.
                self._fail(group, error)
            else:
                await self._one_by_one(group, error)
        else:
            self._stats.record(len(group), time.perf_counter() - began)

    def _fail(self, group: list[SharedOperation], error: Exception) -> None:
        unanswered = [operation for operation in group if not operation.answer.done()]
        if unanswered and isinstance(error, StoreUnavailable):
            self._engine.lease_time.failed(group[0])
        for operation in unanswered:
            operation.answer.set_exception(error)

    # ---- running

    async def _run_plain(self, group: list[SharedOperation]) -> None:
        aside = await bulk.run(self._engine, group)
        for operation in aside:
            # Its queue is no longer plain, or something about it is out of the ordinary.
            await self._alone(operation)

    async def _run_in_order(self, group: list[SharedOperation]) -> None:
        answers: list[Any] = []
        refused: dict[int, VeilError] = {}

        async def work(tx: Transaction) -> None:
            answers.clear()
            refused.clear()
            for place, operation in enumerate(group):
                try:
                    answers.append(await operation.work(tx))
                except VeilError as refusal:
                    answers.append(None)
                    refused[place] = refusal
                for state in tx.states.values():
                    tx.write_groups(state)

        await self._engine.run(work, Need.of(group))
        self._engine.lease_time.answered(group[0])
        for place, operation in enumerate(group):
            if operation.answer.done():
                continue  # the caller has gone away
            if place in refused:
                operation.answer.set_exception(refused[place])
            else:
                operation.answer.set_result(answers[place])

    async def _one_by_one(self, group: list[SharedOperation], cause: VeilError) -> None:
        _log.warning("a group of %d operations is redone one by one: %s", len(group), cause)
        for operation in group:
            if not operation.answer.done():
                await self._alone(operation)

    async def _alone(self, operation: SharedOperation) -> None:
        try:
            await self._run_in_order([operation])
        except VeilError as error:
            self._fail([operation], error)
