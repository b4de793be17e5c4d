"""One database transaction under way: what the operations of the store are written on.

It begins and ends in one round trip each, whatever it does: the locks, the instant and the state of its queues come with
BEGIN; what was put off with `later`, the counts, the outbox and the notification go with COMMIT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import psycopg

from veil.core.errors import QueueMissing
from veil.core.queue import Queue, QueueKey
from veil.core.sequence import first_seq_of
from veil.stores.postgres.pipeline import Arguments, Row, Statement, pipeline_of
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.recorder import Recorder

__all__ = ["Arguments", "Row", "Statement", "Transaction"]

# How long a transaction waits for another one, and how long one that stands still is waited for.
LOCK_WAIT_MS = 10_000
_COUNTER_MASK = (1 << 20) - 1


class Transaction:
    """See the module; made by `Engine.run`, which also ends it."""

    def __init__(self, connection: psycopg.AsyncConnection[Row], slot: int, journal: Recorder | None) -> None:
        self.connection = connection
        self._pipeline = pipeline_of(connection)
        self.slot = slot
        self.now_ms = self.wall_ms = 0
        self.epoch = 0
        self.redone = 0  # how often it was begun before
        self.journal = journal  # None: nothing is recorded
        self.states: dict[int, QueueState] = {}
        self.by_key: dict[QueueKey, QueueState] = {}
        self.happened: Counter[tuple[str, int]] = Counter()  # to be announced once it is durable
        self.new_epoch: int | None = None
        self.is_ending = (
            False  # COMMIT is on its way: from here on the outcome is unknown if the connection breaks
        )
        self._numbers: list[int] = []
        self._counts: dict[int, list[int]] = {}
        self._generations: dict[int, int] = {}
        self._put_off: list[tuple[str, Arguments, Callable[[list[Row]], None] | None]] = []

    # ---- statements

    async def rows(self, query: str, arguments: Arguments = {}) -> list[Row]:  # noqa: B006
        """The rows of a query, after everything that was put off."""
        return (await self.many((query, arguments)))[0]

    async def row(self, query: str, arguments: Arguments = {}) -> Row | None:  # noqa: B006
        """The first row, or None."""
        found = await self.rows(query, arguments)
        return found[0] if found else None

    async def many(self, *statements: Statement) -> list[list[Row]]:
        """The rows of several queries, which are sent together."""
        put_off, self._put_off = self._put_off, []
        answers = await self._send([*((q, a) for q, a, _ in put_off), *statements])
        for (_, _, then), answer in zip(put_off, answers, strict=False):
            if then is not None:
                then(answer)
        return answers[len(put_off) :]

    def later(
        self, query: str, arguments: Arguments, then: Callable[[list[Row]], None] | None = None
    ) -> None:
        """Have a statement executed before the next query, or with COMMIT; `then` gets its rows."""
        self._put_off.append((query, arguments, then))

    async def hear(self) -> None:
        """Have the answers to what was put off, if anybody waits for them."""
        if any(then is not None for _, _, then in self._put_off):
            await self.many()

    async def _send(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return await self._pipeline.send(statements)

    # ---- queues

    def state_of(self, queue: Queue) -> QueueState:
        """The queue as it stands; raises QueueMissing for one that was deleted since."""
        state = self.states.get(queue.id)
        if state is None:
            raise QueueMissing(queue.key.name)
        return state

    def count(
        self,
        state: QueueState,
        *,
        visible: int = 0,
        in_flight: int = 0,
        delayed: int = 0,
        at_the_end: bool = False,
    ) -> None:
        """So many more (or fewer) messages are where; written with COMMIT. `at_the_end`: the visible ones are the latest."""
        state.came_back |= visible > 0 and not at_the_end
        state.visible += visible
        state.in_flight += in_flight
        state.delayed += delayed
        changes = self._changes_of(state)
        changes[0] += visible
        changes[1] += in_flight
        changes[2] += delayed

    def _changes_of(self, state: QueueState) -> list[int]:
        self._generations[state.id] = state.generation
        return self._counts.setdefault(state.id, [0, 0, 0])

    def look_again(self, state: QueueState, look: Row) -> None:
        """Take in how the queue stands for everybody; what this transaction does to the counts is not in there yet."""
        state.looked_at(look, ahead=True)
        visible, in_flight, delayed = self._counts.get(state.id, (0, 0, 0))
        state.visible += visible
        state.in_flight += in_flight
        state.delayed += delayed

    async def raise_epoch(self) -> int:
        """The epoch of this transaction's changes of queues; once at most, and late: everybody else's edits wait."""
        if self.new_epoch is None:
            [(self.new_epoch,)] = await self.rows(Q.raise_epoch)
        return self.new_epoch

    # ---- order keys

    async def numbers(self, count: int) -> list[int]:
        """So many numbers of the counter, rising."""
        if len(self._numbers) < count:
            more = await self.rows(Q.numbers, {"count": count - len(self._numbers)})
            self._numbers += [number for (number,) in more]
        taken, self._numbers = self._numbers[:count], self._numbers[count:]
        return taken

    def seq(self, state: QueueState, number: int) -> int:
        """The order key that a number of the counter makes; on FIFO queues above every earlier one."""
        seq = first_seq_of(self.now_ms) | (number & _COUNTER_MASK)
        if state.fifo:
            # The lock of the queue makes this safe; the counter may have come round, or the clock been set back.
            state.last_seq = seq = max(seq, state.last_seq + 1)
            self._changes_of(state)
        return seq

    # ---- what the owner is told

    def available(self, state: QueueState, count: int = 1) -> None:
        """Messages became receivable: announced, on every node, once that is durable."""
        self.happened["available", state.id] += count

    def counted(self, event: str, state: QueueState, count: int = 1) -> None:
        """Something happened that only the store sees: announced once the transaction is over."""
        self.happened[event, state.id] += count

    # ---- the ends

    async def fold_counts(self, queue_id: int, changes_min: int, wait_ms: int) -> None:
        """A whole transaction: the counts of a queue in one row of a new generation, if they were changed so often."""
        await self._send(
            [
                ("BEGIN", {}),
                (Q.lock_exclusive, {"ids": [queue_id], "wait_ms": wait_ms}),
                (Q.fold_counts, {"queue": queue_id, "changes_min": changes_min}),
                ("COMMIT", {}),
            ]
        )

    async def begin(
        self,
        ids: Sequence[int],
        *,
        exclusive: bool,
        numbers: int,
        now_ms: int | None,
        looks: Arguments,
        also: Sequence[Statement] = (),
    ) -> tuple[list[Row], list[list[Row]]]:
        """Open the transaction; the rows of `look_at_queues`, and those of the statements that are to go along."""
        statements: list[Statement] = [("BEGIN", {})]
        if ids:
            lock = Q.lock_exclusive if exclusive else Q.lock_shared
            statements.append((lock, {"ids": list(ids), "wait_ms": LOCK_WAIT_MS}))
        statements.append((Q.look, {"now_ms": now_ms, "wait_ms": LOCK_WAIT_MS}))
        if ids:
            statements.append((Q.look_at_queues, looks))
        if numbers:
            statements.append((Q.numbers, {"count": numbers}))
        answers = await self._send([*statements, *also])
        answers, others = answers[: len(statements)], answers[len(statements) :]
        if numbers:
            self._numbers = [number for (number,) in answers.pop()]
        seen = answers.pop() if ids else []
        self.now_ms, self.epoch, *_ = answers.pop()[0]
        return seen, others

    async def commit(self, last: Sequence[Statement]) -> None:
        """Send what was put off, the counts, and what is given; then end."""
        if self._counts:
            ids = sorted(self._counts)
            changes = [self._counts[queue_id] for queue_id in ids]
            visible, in_flight, delayed = (list(column) for column in zip(*changes, strict=True))
            last_seq = [self.states[queue_id].last_seq if queue_id in self.states else 0 for queue_id in ids]
            returns = [int(queue_id in self.states and self.states[queue_id].came_back) for queue_id in ids]
            self.later(
                Q.add_counts,
                {
                    "ids": ids,
                    "generations": [self._generations[queue_id] for queue_id in ids],
                    "returns": returns,
                    "slot": self.slot,
                    "visible": visible,
                    "in_flight": in_flight,
                    "delayed": delayed,
                    "last_seq": last_seq,
                },
            )
        self.is_ending = True
        await self.many(*last, ("COMMIT", {}))
