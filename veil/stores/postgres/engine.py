"""Runs the operations of the store, each in one transaction on a connection of the pool.

An operation names the queues that it is about. Their locks are taken first, in rising order: shared where operations may
run side by side, exclusive where they must follow one another (FIFO queues, queues with groups, edits). What is due in the
queues happens before the operation looks. A transaction that PostgreSQL gave up for reasons of its own is redone; once
COMMIT was sent on a connection that broke, nobody knows, and the caller is told so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from veil.core import limits
from veil.core.clock import Clock, LeaseTime, TroubleKind
from veil.core.errors import StoreUnavailable, VeilError
from veil.core.event import EventRecorder
from veil.core.queue import Queue, QueueKey
from veil.stores.postgres import outbox, queues
from veil.stores.postgres.connection import REDOABLE, DatabaseClock, in_our_words, is_lost, write_notice
from veil.stores.postgres.leases import settle
from veil.stores.postgres.pipeline import PipelinedConnection, Q, Statement
from veil.stores.postgres.transaction import (
    AVAILABLE,
    KnownQueue,
    KnownQueues,
    LockedQueue,
    QueueLook,
    SharedOperation,
    Transaction,
    nothing,
)
from veil.stores.postgres.watermarks import Dues, SetOutFrom, Watermarks
from veil.stores.store import StoreEvents

T = TypeVar("T")
Work = Callable[[Transaction], Awaitable[T]]
Pool = AsyncConnectionPool[PipelinedConnection]

_log = logging.getLogger(__name__)

REDONE_MAX: Final = 8
# Connections that turn out to be dead are left for others this often: all of a pool may have died together.
LOST_MAX: Final = 12
BACKOFF_S: Final = 0.02
BACKOFF_MAX_S: Final = 0.5
ASK_POOL_S: Final = 0.5
SLOTS_PER_NODE: Final = 64
# What is due may be in the hands of another node's transaction, which is over soon; one that hangs is not waited for much
# longer. A transaction of this node is waited for until it is over.
PAUSES_S: Final = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)

COMPACT_AFTER: Final = 2_000  # changes
# Everybody else waits behind it, so it gives up soon; another one will come.
COMPACT_WAIT_MS: Final = 50

# Nothing takes so long but a COMMIT that waits for a standby which is not there, or a peer that is gone: whoever waits is
# told that nobody knows, before their own patience ends.
ANSWER_S: Final = 30.0
_ANSWER_TURNS: Final = 10
# When a node stops, for what is under way; nobody waits for its answer any more.
DRAIN_S: Final = 10.0


class AnswerTimer:
    """Calls back with what to tell whoever has waited for so long, and after each such while again.

    It counts turns of a tenth: a process that stood still finds what was answered meanwhile before it takes it for missing.
    """

    def __init__(self, call: Callable[[StoreUnavailable], None]) -> None:
        self._call, self._turns = call, 0
        self._next()

    def _next(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(ANSWER_S / _ANSWER_TURNS, self._turn)

    def _turn(self) -> None:
        self._turns += 1
        self._next()
        if self._turns % _ANSWER_TURNS == 0:
            self._call(StoreUnavailable(f"PostgreSQL has not answered within {ANSWER_S:g} s"))

    def cancel(self) -> None:
        """The answer is here."""
        self._timer.cancel()


@asynccontextmanager
async def answered_in_time() -> AsyncIterator[None]:
    """Gives up what is waited for within; raises StoreUnavailable then."""
    given_up: list[StoreUnavailable] = []
    waiting = asyncio.timeout(None)

    def give_up(error: StoreUnavailable) -> None:
        if not given_up:
            given_up.append(error)
            waiting.reschedule(0)

    timer = AnswerTimer(give_up)
    try:
        async with waiting:
            yield
    except TimeoutError as error:
        raise (given_up[0] if given_up else error) from None
    finally:
        timer.cancel()


async def drained(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Return when none of them is under way, those that come meanwhile included; those that hang are given up."""
    until_s = time.monotonic() + DRAIN_S
    while tasks:
        _, hanging = await asyncio.wait(tasks, timeout=max(0.0, until_s - time.monotonic()))
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


class Begun(Enum):
    """What became of the beginning of a transaction."""

    READY = auto()
    AGAIN = auto()  # other locks are needed, or so much was due that it was committed on its own
    OTHERS = auto()  # another transaction lets happen what is due, and this one would not see it


class Need(NamedTuple):
    """What a transaction is about."""

    queues: Sequence[Queue | QueueKey] = ()
    exclusive: bool = False
    takes: int = 0  # so many messages at most are put in flight
    numbers: int = 0  # of the counter, for order keys

    @classmethod
    def of(cls, group: Sequence[SharedOperation]) -> Need:
        """What operations need that share a transaction."""
        queues = {operation.queue.id: operation.queue for operation in group}
        exclusive = any(operation.gives_groups for operation in group)
        takes, numbers = sum(each.takes for each in group), sum(each.numbers for each in group)
        return cls([*queues.values()], exclusive, takes, numbers)


NO_QUEUES: Final = Need()


class Locks(NamedTuple):
    """Which queues a transaction locks, and how."""

    ids: list[int]
    exclusive: bool

    def covers(self, other: Locks) -> bool:
        return set(other.ids) <= set(self.ids) and (self.exclusive or not other.exclusive)


def no_statements(from_marks: SetOutFrom) -> Sequence[Statement]:
    """Nothing goes along with BEGIN."""
    return ()


class ReconnectBackoff:
    """Whoever wants a connection waits a little after a new one was lost before it did anything, longer from time to time.

    A pooler opens a connection at once and closes it at the first statement while its database is away: without a pause that is
    thousands of them in a failover. Old ones that were lost together are no reason to wait.
    """

    def __init__(self) -> None:
        self._losses = 0
        self._until_s = 0.0

    async def over(self) -> None:
        """Return when it may be tried again."""
        if (wait_s := self._until_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    def lost(self, connection: PipelinedConnection) -> None:
        """The connection is gone."""
        now_s = time.monotonic()
        if not connection.has_worked and now_s >= self._until_s:
            self._until_s = now_s + min(BACKOFF_S * 2**self._losses, BACKOFF_MAX_S)
            self._losses = min(self._losses + 1, 10)

    def worked(self, connection: PipelinedConnection) -> None:
        """Something was done by the connection."""
        connection.has_worked = True
        self._losses = 0


class Engine:
    """The frame of the operations; see the module's text."""

    def __init__(
        self,
        pool: Pool,
        clock: Clock | None,
        *,
        bound: outbox.SharedBound,
        recording: bool,
        lease_grace: bool = False,
    ) -> None:
        self.pool = pool
        self.queues = KnownQueues()
        self.dues = Dues()
        self.watermarks = Watermarks()
        self.compaction = CountCompaction(self)
        self.bound = bound
        self.recording = recording
        self.events: Callable[[], StoreEvents]
        self.node = 0  # this node's number
        self.others = 1  # which are alive; until they were counted there may be one
        self._half_full: set[int] = set()  # queues with more than half of what may be in flight
        self.is_told = False  # what other nodes say reaches us
        self.clock: Clock = DatabaseClock() if clock is None else clock
        self.lease_time = LeaseTime(self.clock, is_on=lease_grace)
        self._backoff = ReconnectBackoff()
        self.heard_ms = 0  # what time it was in the database when it last answered
        self._slept = False
        self._turns = asyncio.Semaphore(pool.max_size)
        self._free_slots = list(range(SLOTS_PER_NODE))
        # Those that let happen what is due, until their end.
        self._settling: dict[Transaction, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._learning: asyncio.Task[None] | None = None
        self._next_learning: asyncio.Task[None] | None = None

    async def run(self, work: Work[T], need: Need = NO_QUEUES) -> T:
        """Do the work in one transaction, durable when this returns.

        The work may be begun several times, until it has happened once. Whoever waits for it may go away: it is finished
        all the same.
        """
        task = asyncio.ensure_future(self._do(work, need))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        async with answered_in_time():
            return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, in case nobody waits for it any more

    async def drain(self) -> None:
        """Return when nothing is under way."""
        await drained(self._tasks)

    async def learn(self) -> None:
        """Bring what is known of the queues up to date."""
        await self.run(nothing)

    async def learn_together(self) -> None:
        """The same for everybody who asks while another is under way, by one that begins after they have asked."""
        if self._next_learning is None:
            self._next_learning = asyncio.ensure_future(self._learn_after(self._learning))
            self._tasks.add(self._next_learning)
            self._next_learning.add_done_callback(self._ended)
        await asyncio.shield(self._next_learning)

    async def _learn_after(self, under_way: asyncio.Task[None] | None) -> None:
        if under_way is not None:
            await asyncio.wait([under_way])
        self._learning, self._next_learning = self._next_learning, None
        await self.learn()

    def renewals_wait(self) -> AbstractContextManager[None]:
        """Something is asked of the database meanwhile that renewals need, and every node all the time: while it is away, they
        wait here, whether anybody's has come so far or not."""
        return self.lease_time.waiting(TroubleKind.DATABASE, self.heard_ms)

    async def learn_in(self, tx: Transaction) -> None:
        """The same within a transaction."""
        if self._slept:
            # What was deleted so long ago may have left no trace.
            self._slept = False
            self.queues.learn_anew(await tx.rows(Q.living_queues))
        else:
            self.queues.learn(await tx.rows(Q.changed_queues, {"epoch": self.queues.epoch}))
        self.watermarks.clear()  # a retention may be another one now

    # ---- one transaction

    async def _do(self, work: Work[T], need: Need) -> T:
        paused = 0
        while True:
            is_last = paused == len(PAUSES_S)
            begun, ours, result = await self.redo(partial(self._attempt, work, need, is_last))
            if begun is Begun.READY:
                return result[0]
            # Without the locks and the connection, which others can use.
            if ours:
                await asyncio.wait(ours)
            elif begun is Begun.OTHERS:
                await asyncio.sleep(PAUSES_S[paused])
                paused += 1

    async def _attempt(
        self, work: Work[T], need: Need, is_last: bool, tx: Transaction
    ) -> tuple[Begun, list[asyncio.Future[None]], list[T]]:
        begun = Begun.AGAIN if await self.begin(tx, need) is None else await self._settle(tx)
        ours = self._settling_beside(tx) if begun is Begun.OTHERS else []
        if begun is Begun.OTHERS and not ours and is_last:
            begun = Begun.READY
        result = [await work(tx)] if begun is Begun.READY else []
        if begun is not Begun.AGAIN:
            await self.commit(tx)  # where others are about something due, what of it was ours
        return begun, ours, result

    async def redo(self, attempt: Work[T]) -> T:
        """What the attempt comes to in a transaction, begun anew where PostgreSQL gave it up for reasons of its own, or the
        connection was lost before COMMIT; raises StoreError."""
        redone = lost = 0
        while True:
            async with self.transaction() as tx:
                tx.redone = redone
                try:
                    return await attempt(tx)
                except REDOABLE as error:
                    redone += 1
                    if redone > REDONE_MAX:
                        raise in_our_words(error) from error
                    _log.debug("a transaction is redone: %s", error)
                except (psycopg.Error, OSError) as error:
                    lost += 1
                    if tx.is_ending or not is_lost(error) or lost > LOST_MAX:
                        raise in_our_words(error) from error

    def _settling_beside(self, tx: Transaction) -> list[asyncio.Future[None]]:
        """The ends of this node's other transactions that let happen what is due in the same queues."""
        return [
            end
            for other, end in self._settling.items()
            if other is not tx and not other.states.keys().isdisjoint(tx.states)
        ]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction to be begun on a connection of its own, undone unless it is committed; raises StoreUnavailable.

        Who finds every connection busy waits for a turn here, however long that takes: the pool's own patience is for a
        database that is away.
        """
        async with self._turns:
            try:
                with self.renewals_wait():
                    await self._backoff.over()
                    connection = await self._connection()
            except (PoolTimeout, PoolClosed, psycopg.OperationalError) as error:
                raise in_our_words(error) from error
            slot = self._free_slots.pop()
            recorder = EventRecorder() if self.recording else None
            tx = Transaction(connection, self.node * SLOTS_PER_NODE + slot, recorder, self.lease_time)
            try:
                yield tx
            finally:
                self._free_slots.append(slot)
                try:
                    await self._let_go(connection)
                finally:
                    if (end := self._settling.pop(tx, None)) is not None:
                        end.set_result(None)
                    if tx.has_claimed:
                        # What it had claimed is visible as before; others may have passed it by.
                        self.watermarks.clear()

    async def _connection(self) -> PipelinedConnection:
        """One of the pool's, asked for again and again: the pool gives up connecting long before those who wait for it, and
        begins anew for the next who asks."""
        # Not by the clock: the process may have stood still.
        tries_left = round(self.pool.timeout / ASK_POOL_S)
        asking = asyncio.current_task()
        assert asking is not None
        cancellations = asking.cancelling()
        while True:
            try:
                connection = await self.pool.getconn(ASK_POOL_S)
            except PoolTimeout:
                tries_left -= 1
                if tries_left <= 0:
                    raise
                continue
            # The pool waits by wait_for, which in Python 3.11 loses a cancellation that comes together with its answer: a
            # heartbeat that was told to end would go on, and the store wait for it at its end without end.
            if asking.cancelling() > cancellations:
                await self.pool.putconn(connection)
                raise asyncio.CancelledError
            return connection

    def locks(self, need: Need) -> Locks:
        """What a transaction has to lock, as far as is known; who takes messages may send spent ones to the queues' own dead
        letters."""
        found = [known for each in need.queues if (known := self._known(each)) is not None]
        exclusive = need.exclusive or (need.takes > 0 and self._may_fill(found, need.takes))
        if need.takes:
            targets = [each.queue.settings.redrive for each in found]
            found += [
                known
                for redrive in targets
                if redrive is not None and (known := self._known(redrive.dead_letters)) is not None
            ]
        ids = sorted({each.queue.id for each in found})
        return Locks(ids, exclusive or any(each.is_sequential for each in found))

    def _may_fill(self, found: Sequence[KnownQueue], takes: int) -> bool:
        """Whether receives side by side could pass the limit of messages in flight together: each sees what others have
        committed, not what they are about to take. So beyond half of the limit they follow one another, and so do those
        which could fill the other half if every connection of every node took as many."""
        at_once = self.pool.max_size * (self.others + 1)
        is_large = takes * at_once > limits.IN_FLIGHT_MAX // 2
        return is_large or any(known.queue.id in self._half_full for known in found)

    def _known(self, queue: Queue | QueueKey) -> KnownQueue | None:
        if isinstance(queue, Queue):
            return self.queues.by_id.get(queue.id)
        return self.queues.by_key.get(queue)

    async def begin(
        self, tx: Transaction, need: Need, also: Callable[[SetOutFrom], Sequence[Statement]] = no_statements
    ) -> list[list[Any]] | None:
        """Open the transaction and learn how its queues stand; what the statements that went along found. None: to be begun
        again, since it needs other locks, or what went along was based on what is no longer so."""
        locks, epoch = self.locks(need), self.queues.epoch
        asked, began_s = self.wanted_of(locks.ids), time.monotonic()
        from_marks = self.watermarks.set_out_from(locks.ids)
        statements = also(from_marks)
        tx.has_claimed = bool(statements)
        looks, answers = await tx.begin(
            locks.ids,
            exclusive=locks.exclusive,
            numbers=need.numbers,
            now_ms=self.given_now_ms(),
            looks=asked,
            also=statements,
        )
        self._heard(tx)
        if tx.epoch > self.queues.epoch:
            await self.learn_in(tx)
        is_stale = self.watermarks.are_stale(looks, from_marks)
        if statements and (is_stale or self.queues.epoch != epoch):
            return None
        if is_stale:
            asked = self.wanted_of(locks.ids)
            looks = [QueueLook(*row) for row in await tx.rows(Q.look_at_queues, asked)]
        self._know(tx, looks, asked, time.monotonic() - began_s)
        # Also when another transaction has learnt it meanwhile.
        return answers if locks.covers(self.locks(need)) else None

    def wanted_of(self, ids: Sequence[int]) -> dict[str, list[Any]]:
        """The arguments of `look_at_queues` at the beginning of a transaction. What wakes next is looked for where the instant
        that was known is over; otherwise only what is due, since what lies ahead may be hidden under many dead rows."""
        now_ms = self.clock.now_ms()
        return {
            **self.watermarks.wanted(ids, now_ms),
            "wants_next": [self.dues.has_passed(queue_id, now_ms) for queue_id in ids],
        }

    def _heard(self, tx: Transaction) -> None:
        """Take note of what time it is."""
        if tx.now_ms - self.heard_ms > queues.TOMBSTONE_MS // 2:
            self._slept = True
        self.heard_ms = tx.now_ms
        if isinstance(self.clock, DatabaseClock):
            tx.wall_ms = tx.now_ms
            self.clock.heard(tx.now_ms)
        else:
            tx.wall_ms = self.clock.wall_ms()

    def _know(
        self, tx: Transaction, looks: Sequence[QueueLook], asked: dict[str, list[Any]], took_s: float
    ) -> None:
        """Give the transaction the states of its queues."""
        for look in looks:
            # A queue that was deleted since has no state: whoever asks for it hears so.
            if (known := self.queues.by_id.get(look.queue_id)) is not None:
                state = LockedQueue(known.queue, known.scope, known.has_groups, known.purged_at_ms)
                state.looked_at(look, ahead=asked["wants_next"][asked["ids"].index(look.queue_id)])
                self.watermarks.learn(state, look, asked, took_s)
                if state.in_flight > limits.IN_FLIGHT_MAX // 2:
                    self._half_full.add(state.id)
                else:
                    self._half_full.discard(state.id)
                tx.states[state.id] = tx.by_key[known.queue.key] = state

    @property
    def has_company(self) -> bool:
        """Whether other nodes are alive, who want to be told."""
        return self.others > 0

    def given_now_ms(self) -> int | None:
        """The instant that a transaction begins at; None: the database says."""
        return None if isinstance(self.clock, DatabaseClock) else self.clock.now_ms()

    async def _settle(self, tx: Transaction) -> Begun:
        """Let happen what is due; commit it on its own where that was much."""
        due = [state for state in tx.states.values() if state.next_due_ms <= tx.now_ms]
        if not due:
            return Begun.READY
        more = False
        self._settling[tx] = asyncio.get_running_loop().create_future()
        for state in due:
            more |= await settle(tx, state)
            tx.write_groups(state)
        if more:
            await self.commit(tx)
            return Begun.AGAIN
        await queues.look_ahead(tx, due)
        if any(state.next_due_ms <= tx.now_ms for state in due):
            return Begun.OTHERS
        return Begun.READY

    async def commit(self, tx: Transaction) -> None:
        """End the transaction, and tell everybody what has happened."""
        for state in tx.states.values():
            tx.write_groups(state)
        outbox.write(tx, self.bound)
        if self.has_company:
            await tx.hear()  # which groups can be served: the others are to be told with COMMIT
        await tx.commit(self._notification(tx))
        tx.has_claimed = False
        self.lease_time.done()
        self._backoff.worked(tx.connection)
        for state in tx.states.values():
            self.dues.note(state.id, state.next_due_ms, tx.now_ms, looked_ahead=state.looked_ahead)
            self.watermarks.committed(state, tx.now_ms)
            self.compaction.look(state)
        events = self.events()
        events.due_sooner()
        for (event, queue_id), count in tx.happened.items():
            if event == AVAILABLE:
                events.messages_available(queue_id, count)
            else:
                events.counted(event, queue_id, count)
        if tx.new_epoch is not None:
            # Whoever made, edited or deleted a queue here finds it so here at once.
            await self.learn_in(tx)

    def _notification(self, tx: Transaction) -> list[Statement]:
        """What other nodes are told: which queues have something, and whether queues have changed."""
        if not self.has_company:
            return []
        wakes = {queue_id: n for (event, queue_id), n in tx.happened.items() if event == AVAILABLE}
        if not wakes and tx.new_epoch is None:
            return []
        return [(Q.notify, {"payload": write_notice(self.node, tx.new_epoch, wakes)})]

    async def _let_go(self, connection: PipelinedConnection) -> None:
        if connection.closed or connection.broken:
            self._backoff.lost(connection)
            self.lease_time.waits(connection, TroubleKind.DATABASE, self.heard_ms)
            self.lease_time.failed(connection)
            connection.pgconn.finish()  # its buffers would stay until the next look for garbage, which is rare
            await self.pool.putconn(connection)
            return
        try:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await connection.rollback()
        except psycopg.Error:
            await connection.close()
        await self.pool.putconn(connection)

    async def ask(self, query: str, arguments: dict[str, Any]) -> list[Any]:
        """The rows of one statement, by itself and outside of everything."""
        try:
            async with answered_in_time(), self.transaction() as tx:
                return await tx.rows(query, arguments)
        except (psycopg.Error, OSError) as error:
            raise in_our_words(error) from error


class CountCompaction:
    """Folds the counts of a queue into one row of a new generation, beside the operations, where a transaction saw that many
    changes.

    Every transaction adds to a row of the counts. PostgreSQL keeps the former states of a row for as long as any transaction
    might want to see them, and whoever reads the row goes through them. Under a long transaction that would be every state
    since it began; by generations it is those of the present one, a few thousand at most.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: dict[int, asyncio.Task[None]] = {}

    def look(self, state: LockedQueue) -> None:
        """Take note of how often the counts were changed."""
        if state.generation_changes >= COMPACT_AFTER and state.id not in self._under_way:
            task = asyncio.create_task(self._compact(state.id))
            self._under_way[state.id] = task
            task.add_done_callback(lambda _: self._under_way.pop(state.id))

    async def drain(self) -> None:
        """Return when none is under way."""
        await drained(self._under_way.values())

    async def _compact(self, queue_id: int) -> None:
        try:
            async with self._engine.transaction() as tx:
                await tx.connection.exchange(
                    [
                        ("BEGIN", {}),
                        (Q.lock_exclusive, {"ids": [queue_id], "wait_ms": COMPACT_WAIT_MS}),
                        (Q.fold_counts, {"queue": queue_id, "changes_min": COMPACT_AFTER}),
                        ("COMMIT", {}),
                    ]
                )
        except (VeilError, psycopg.Error, OSError) as error:
            _log.debug("the counts of queue %d were not compacted: %s", queue_id, error)
