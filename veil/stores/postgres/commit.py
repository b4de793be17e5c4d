"""Group commit: operations that arrive while the connections are busy share the next transaction.

Operations on plain standard queues share groups across queues, and a few groups run at a time. A FIFO queue, or a queue with
groups, has its own waiting line: its operations run one after another anyway, and one transaction takes all that wait. An
operation that is refused does not affect the others. When a group fails for an unexpected reason, each operation is repeated in
its own transaction, so that only those fail that cannot work.
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
# More than one, so that one group is synced while the next is sent; few, so that groups are large.
PLAIN_GROUPS: Final = 2
# This many operations start a second group while one is running; fewer wait for its end and become more, because a
# transaction costs node and database far more than an operation in it.
BESIDE_FROM: Final = 16
# But no longer than this: the running group may itself be waiting for a long transaction.
SMALL_GROUP_WAIT_S: Final = 0.02


@dataclass(slots=True, eq=False)
class WaitingLine:
    """Operations that wait for the next group, how groups are run, and how many are running."""

    groups_max: int
    run: Callable[[list[SharedOperation]], Awaitable[None]]
    waiting: deque[SharedOperation] = field(default_factory=deque)
    running: int = 0
    scheduled: bool = False
    held_back: bool = False  # a timer is running, after which even a small group starts

    def has_room(self) -> bool:
        """Whether operations wait and another group may start."""
        return bool(self.waiting) and self.running < self.groups_max

    def is_worth_a_group(self) -> bool:
        """Whether the next group is large enough to start now; a small one waits while another is running, and grows."""
        return self.running == 0 or len(self.waiting) >= BESIDE_FROM


class PostgresGroupCommit:
    """Runs operations in shared transactions, and answers each once it is durable."""

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
        """Start a group at the end of the event loop's turn, so that operations that arrive together run together; or after a
        short wait, if it is too small to run beside the current one."""
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
            # Concurrent groups: while the database works on one, the rules are applied to another.
            size = -(-size // (line.groups_max - line.running))
        group = [line.waiting.popleft() for _ in range(size)]
        line.running += 1
        self._engine.lease_time.waits(group[0], TroubleKind.DATABASE, self._engine.database_ms)
        task = asyncio.create_task(self._answer_all(line, group))
        self._tasks.add(task)

        def hangs(error: StoreUnavailable) -> None:
            """Fail the operations of the group and, if no other group can start, those waiting behind it."""
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
        """Run the group; whatever happens, every operation gets an answer."""
        try:
            await self._timed(line, group)
        except Exception as error:
            _log.exception("a group of operations failed unexpectedly")
            self._fail(group, error)
        finally:
            self._fail(group, StoreUnavailable("the node stopped before the operation was done"))

    async def _timed(self, line: WaitingLine, group: list[SharedOperation]) -> None:
        began = time.perf_counter()
        try:
            await line.run(group)
        except VeilError as error:
            if isinstance(error, StoreUnavailable) or len(group) == 1:
                # The outcome is unknown, or there are no other operations to save.
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
            # Its queue is no longer plain, or the operation needs special treatment.
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
        _log.warning("a group of %d operations is repeated one by one: %s", len(group), cause)
        for operation in group:
            if not operation.answer.done():
                await self._alone(operation)

    async def _alone(self, operation: SharedOperation) -> None:
        try:
            await self._run_in_order([operation])
        except VeilError as error:
            self._fail([operation], error)
