"""Runs the operations of the store, each in one transaction on a connection of the pool.

An operation names its queues. Their locks are taken first, in ascending order: shared if operations may run concurrently,
exclusive if they must run one after another (FIFO queues, queues with groups, edits). Whatever is due in the queues is settled
before the operation reads anything. A transaction that PostgreSQL aborted (deadlock, collision) is retried. If the connection
breaks after COMMIT was sent, the outcome is unknown, and the caller gets StoreUnavailable.
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
from veil.stores.postgres.connection import RETRYABLE, DatabaseClock, as_store_error, is_lost, write_notices
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
from veil.stores.postgres.watermarks import DueTimes, ScanStarts, Watermarks
from veil.stores.store import StoreEvents

T = TypeVar("T")
Work = Callable[[Transaction], Awaitable[T]]
Pool = AsyncConnectionPool[PipelinedConnection]

_log = logging.getLogger(__name__)

RETRIES_MAX: Final = 8
# How many dead connections one operation replaces: all connections of a pool may have died together.
LOST_MAX: Final = 12
BACKOFF_S: Final = 0.02
BACKOFF_MAX_S: Final = 0.5
ASK_POOL_S: Final = 0.5
SLOTS_PER_NODE: Final = 64
# Another node's transaction may be settling what is due. It usually ends soon; one that hangs is not waited for much longer.
# A transaction of this node is waited for until it ends.
PAUSES_S: Final = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)

COMPACT_AFTER: Final = 2_000  # changes
# All other operations of the queue wait behind it, so it gives up soon; there will be another try.
COMPACT_WAIT_MS: Final = 50

# Only a COMMIT that waits for a missing standby, or a vanished peer, takes this long. Callers then get an error (outcome unknown)
# before their own timeout ends.
ANSWER_S: Final = 30.0
_ANSWER_TURNS: Final = 10
# How long a stopping node waits for what is in progress; nobody waits for the answers any more.
DRAIN_S: Final = 10.0


class AnswerTimer:
    """Calls back with an error after ANSWER_S without an answer, and again after each further ANSWER_S.

    It counts ten short timers instead of one long one: a process that was suspended reads the answers that arrived meanwhile
    before it concludes that they are missing.
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
    """Limit the time that the body may wait; raises StoreUnavailable when it is over."""
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
    """Return when all tasks have ended, including those added meanwhile; tasks that hang are cancelled."""
    until_s = time.monotonic() + DRAIN_S
    while tasks:
        _, hanging = await asyncio.wait(tasks, timeout=max(0.0, until_s - time.monotonic()))
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


class BeginResult(Enum):
    """How the start of a transaction ended."""

    READY = auto()
    RETRY = auto()  # other locks are needed, or so much was due that it was committed separately
    WAIT = auto()  # another transaction is settling what is due, and this one would not see the result


class Need(NamedTuple):
    """What a transaction needs."""

    queues: Sequence[Queue | QueueKey] = ()
    exclusive: bool = False
    takes: int = 0  # the most messages that it may put in flight
    numbers: int = 0  # how many counter values it needs for order keys

    @classmethod
    def of(cls, group: Sequence[SharedOperation]) -> Need:
        """What the operations of a shared transaction need together."""
        queues = {operation.queue.id: operation.queue for operation in group}
        exclusive = any(operation.may_add_groups for operation in group)
        takes, numbers = sum(each.takes for each in group), sum(each.numbers for each in group)
        return cls([*queues.values()], exclusive, takes, numbers)


NO_QUEUES: Final = Need()


class Locks(NamedTuple):
    """Which queues a transaction locks, and how."""

    ids: list[int]
    exclusive: bool

    def covers(self, other: Locks) -> bool:
        return set(other.ids) <= set(self.ids) and (self.exclusive or not other.exclusive)


class ReconnectBackoff:
    """Delays the next connection, longer each time, after a new connection was lost before it did any work.

    While its database is down, a pooler accepts a connection at once and closes it at the first statement. Without a delay a
    failover would cause thousands of connections. Established connections that are lost together cause no delay.
    """

    def __init__(self) -> None:
        self._losses = 0
        self._until_s = 0.0

    async def over(self) -> None:
        """Wait until the next try is allowed."""
        if (wait_s := self._until_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    def lost(self, connection: PipelinedConnection) -> None:
        """Note that the connection was lost."""
        now_s = time.monotonic()
        if not connection.has_worked and now_s >= self._until_s:
            self._until_s = now_s + min(BACKOFF_S * 2**self._losses, BACKOFF_MAX_S)
            self._losses = min(self._losses + 1, 10)

    def worked(self, connection: PipelinedConnection) -> None:
        """Note that the connection did some work."""
        connection.has_worked = True
        self._losses = 0


class Engine:
    """Begins, settles, retries and commits transactions; see the module docstring."""

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
        self.due_times = DueTimes()
        self.watermarks = Watermarks()
        self.compaction = CountCompaction(self)
        self.bound = bound
        self.recording = recording
        self.events: Callable[[], StoreEvents]
        self.node = 0  # this node's own number
        self.other_nodes = 1  # other nodes that are alive; until they are counted, assume one
        self._half_full: set[int] = set()  # queues that use more than half of the in-flight limit
        self.is_listening = False  # notifications of other nodes reach this one
        self.clock: Clock = DatabaseClock() if clock is None else clock
        self.lease_time = LeaseTime(self.clock, is_on=lease_grace)
        self._backoff = ReconnectBackoff()
        self.database_ms = 0  # the database's time when it last answered
        self._was_away = False
        self._turns = asyncio.Semaphore(pool.max_size)
        self._free_slots = list(range(SLOTS_PER_NODE))
        # Transactions that are settling what is due, until they end.
        self._settling: dict[Transaction, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refresh: asyncio.Task[None] | None = None
        self._next_refresh: asyncio.Task[None] | None = None

    async def run(self, work: Work[T], need: Need = NO_QUEUES) -> T:
        """Do the work in one transaction, durable when this returns.

        The work may be started several times until it is committed once. If the caller is cancelled, it is finished anyway.
        """
        task = asyncio.ensure_future(self._do(work, need))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        async with answered_in_time():
            return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, in case nobody waits for it any more

    async def drain(self) -> None:
        """Return when nothing is in progress."""
        await drained(self._tasks)

    async def refresh_queues(self) -> None:
        """Update this node's knowledge of the queues."""
        await self.run(nothing)

    async def refresh_queues_together(self) -> None:
        """`refresh_queues` for many callers at once: those who ask while one is running share the next one, which starts after
        they have asked."""
        if self._next_refresh is None:
            self._next_refresh = asyncio.ensure_future(self._refresh_after(self._refresh))
            self._tasks.add(self._next_refresh)
            self._next_refresh.add_done_callback(self._ended)
        await asyncio.shield(self._next_refresh)

    async def _refresh_after(self, under_way: asyncio.Task[None] | None) -> None:
        if under_way is not None:
            await asyncio.wait([under_way])
        self._refresh, self._next_refresh = self._next_refresh, None
        await self.refresh_queues()

    def renewals_wait(self) -> AbstractContextManager[None]:
        """The body asks the database for something that every renewal needs too: while the database is down, renewals count as
        waiting, whether or not one has arrived."""
        return self.lease_time.waiting(TroubleKind.DATABASE, self.database_ms)

    async def refresh_queues_in(self, tx: Transaction) -> None:
        """`refresh_queues` within a transaction."""
        if self._was_away:
            # Queues deleted that long ago may have left no row behind.
            self._was_away = False
            self.queues.reload(await tx.rows(Q.living_queues))
        else:
            self.queues.update(await tx.rows(Q.changed_queues, {"epoch": self.queues.epoch}))
        self.watermarks.clear()  # a retention may have changed

    # ---- one transaction

    async def _do(self, work: Work[T], need: Need) -> T:
        paused = 0
        while True:
            is_last = paused == len(PAUSES_S)
            begun, ours, result = await self.retry(partial(self._attempt, work, need, is_last))
            if begun is BeginResult.READY:
                return result[0]
            # Wait without holding locks or a connection.
            if ours:
                await asyncio.wait(ours)
            elif begun is BeginResult.WAIT:
                await asyncio.sleep(PAUSES_S[paused])
                paused += 1

    async def _attempt(
        self, work: Work[T], need: Need, is_last: bool, tx: Transaction
    ) -> tuple[BeginResult, list[asyncio.Future[None]], list[T]]:
        begun = BeginResult.RETRY if await self.begin(tx, need) is None else await self._settle(tx)
        ours = self._settling_beside(tx) if begun is BeginResult.WAIT else []
        if begun is BeginResult.WAIT and not ours and is_last:
            begun = BeginResult.READY
        result = [await work(tx)] if begun is BeginResult.READY else []
        if begun is not BeginResult.RETRY:
            await self.commit(tx)  # when others are settling too, this commits our part of it
        return begun, ours, result

    async def retry(self, attempt: Work[T]) -> T:
        """The result of the attempt in a transaction, retried if PostgreSQL aborted it or the connection was lost before COMMIT;
        raises StoreError."""
        retries = lost = 0
        while True:
            async with self.transaction() as tx:
                tx.retries = retries
                try:
                    return await attempt(tx)
                except RETRYABLE as error:
                    retries += 1
                    if retries > RETRIES_MAX:
                        raise as_store_error(error) from error
                    _log.debug("a transaction is retried: %s", error)
                except (psycopg.Error, OSError) as error:
                    lost += 1
                    if tx.is_ending or not is_lost(error) or lost > LOST_MAX:
                        raise as_store_error(error) from error

    def _settling_beside(self, tx: Transaction) -> list[asyncio.Future[None]]:
        """Futures for the end of this node's other transactions that are settling the same queues."""
        return [
            end
            for other, end in self._settling.items()
            if other is not tx and not other.states.keys().isdisjoint(tx.states)
        ]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction on its own connection, rolled back unless it is committed; raises StoreUnavailable.

        If all connections are busy, this waits for one without a time limit: the pool's timeout is for a database that is down.
        """
        async with self._turns:
            try:
                with self.renewals_wait():
                    await self._backoff.over()
                    connection = await self._connection()
            except (PoolTimeout, PoolClosed, psycopg.OperationalError) as error:
                raise as_store_error(error) from error
            slot = self._free_slots.pop()
            recorder = EventRecorder() if self.recording else None
            tx = Transaction(connection, self.node * SLOTS_PER_NODE + slot, recorder, self.lease_time)
            try:
                yield tx
            finally:
                self._free_slots.append(slot)
                try:
                    await self._return_connection(connection)
                finally:
                    if (end := self._settling.pop(tx, None)) is not None:
                        end.set_result(None)
                    if tx.has_claimed:
                        # What it had claimed is visible again; others may have skipped it.
                        self.watermarks.clear()

    async def _connection(self) -> PipelinedConnection:
        """A connection of the pool, asked for in several short tries: the pool stops reconnecting early, and starts again for the
        next request."""
        # Count tries instead of time: the process may have been suspended.
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
            # The pool uses wait_for, which in Python 3.11 loses a cancellation that arrives together with the result: a cancelled
            # heartbeat would go on, and closing the store would wait for it forever.
            if asking.cancelling() > cancellations:
                await self.pool.putconn(connection)
                raise asyncio.CancelledError
            return connection

    def locks(self, need: Need) -> Locks:
        """What a transaction must lock, as far as is known. A receive may move spent messages, so it also locks the dead-letter
        queues."""
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
        """Whether concurrent receives could together exceed the in-flight limit: each sees what others have committed, not
        what they are about to take. So receives run one after another once a queue uses half of the limit, or if they could
        fill the other half when every connection of every node takes as many."""
        at_once = self.pool.max_size * (self.other_nodes + 1)
        is_large = takes * at_once > limits.IN_FLIGHT_MAX // 2
        return is_large or any(known.queue.id in self._half_full for known in found)

    def _known(self, queue: Queue | QueueKey) -> KnownQueue | None:
        if isinstance(queue, Queue):
            return self.queues.by_id.get(queue.id)
        return self.queues.by_key.get(queue)

    async def begin(
        self, tx: Transaction, need: Need, also: Callable[[ScanStarts], Sequence[Statement]] | None = None
    ) -> list[list[Any]] | None:
        """Open the transaction, read the state of its queues, and return the rows of the statements sent along. None means: begin
        again, because it needs other locks or the statements were based on outdated knowledge."""
        locks, epoch = self.locks(need), self.queues.epoch
        asked, began_s = self.wanted_of(locks.ids), time.monotonic()
        scan_starts = self.watermarks.scan_starts(locks.ids)
        statements = () if also is None else also(scan_starts)
        tx.has_claimed = bool(statements)
        looks, answers = await tx.begin(
            locks.ids,
            exclusive=locks.exclusive,
            numbers=need.numbers,
            now_ms=self.given_now_ms(),
            looks=asked,
            also=statements,
        )
        self._note_time(tx)
        if tx.epoch > self.queues.epoch:
            await self.refresh_queues_in(tx)
        is_stale = self.watermarks.are_stale(looks, scan_starts)
        if statements and (is_stale or self.queues.epoch != epoch):
            return None
        if is_stale:
            asked = self.wanted_of(locks.ids)
            looks = [QueueLook(*row) for row in await tx.rows(Q.look_at_queues, asked)]
        self._load_states(tx, looks, asked, time.monotonic() - began_s)
        # Another transaction may have refreshed the queues meanwhile.
        return answers if locks.covers(self.locks(need)) else None

    def wanted_of(self, ids: Sequence[int]) -> dict[str, list[Any]]:
        """The arguments of `look_at_queues` at the start of a transaction. The next wake is searched for only if the known one
        has passed; otherwise only what is due, because finding a later one may mean reading many dead rows."""
        now_ms = self.clock.now_ms()
        return {
            **self.watermarks.wanted(ids, now_ms),
            "wants_next": [self.due_times.has_passed(queue_id, now_ms) for queue_id in ids],
        }

    def _note_time(self, tx: Transaction) -> None:
        """Note the database's time."""
        if tx.now_ms - self.database_ms > queues.TOMBSTONE_MS // 2:
            self._was_away = True
        self.database_ms = tx.now_ms
        if isinstance(self.clock, DatabaseClock):
            tx.wall_ms = tx.now_ms
            self.clock.set_time(tx.now_ms)
        else:
            tx.wall_ms = self.clock.wall_ms()

    def _load_states(
        self, tx: Transaction, looks: Sequence[QueueLook], asked: dict[str, list[Any]], took_s: float
    ) -> None:
        """Put the states of its queues into the transaction."""
        for look in looks:
            # A queue that was deleted since has no state: `state_of` raises QueueMissing.
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
    def has_other_nodes(self) -> bool:
        """Whether other nodes are alive and need notifications."""
        return self.other_nodes > 0

    def given_now_ms(self) -> int | None:
        """The instant at which a transaction begins; None if the database decides."""
        return None if isinstance(self.clock, DatabaseClock) else self.clock.now_ms()

    async def _settle(self, tx: Transaction) -> BeginResult:
        """Settle what is due; commit it separately if it was much."""
        due = [state for state in tx.states.values() if state.next_due_ms <= tx.now_ms]
        if not due:
            return BeginResult.READY
        more = False
        self._settling[tx] = asyncio.get_running_loop().create_future()
        for state in due:
            more |= await settle(tx, state)
            tx.write_groups(state)
        if more:
            await self.commit(tx)
            return BeginResult.RETRY
        await queues.look_ahead(tx, due)
        if any(state.next_due_ms <= tx.now_ms for state in due):
            return BeginResult.WAIT
        return BeginResult.READY

    async def commit(self, tx: Transaction) -> None:
        """Commit the transaction and announce what happened."""
        for state in tx.states.values():
            tx.write_groups(state)
        outbox.write(tx, self.bound)
        if self.has_other_nodes:
            await tx.flush()  # learn which groups can be served: the notification goes with COMMIT
        await tx.commit(self._notifications(tx))
        tx.has_claimed = False
        self.lease_time.done()
        self._backoff.worked(tx.connection)
        for state in tx.states.values():
            self.due_times.note(state.id, state.next_due_ms, tx.now_ms, looked_ahead=state.looked_ahead)
            self.watermarks.committed(state, tx.now_ms)
            self.compaction.look(state)
        events = self.events()
        events.due_sooner()
        for (event, queue_id), count in tx.announcements.items():
            if event == AVAILABLE:
                events.messages_available(queue_id, count)
            else:
                events.counted(event, queue_id, count)
        if tx.new_epoch is not None:
            # A caller that created, edited or deleted a queue on this node must see the change here at once.
            await self.refresh_queues_in(tx)

    def _notifications(self, tx: Transaction) -> list[Statement]:
        """What other nodes are told: which queues have messages, and whether queues have changed."""
        if not self.has_other_nodes:
            return []
        wakes = {queue_id: n for (event, queue_id), n in tx.announcements.items() if event == AVAILABLE}
        if not wakes and tx.new_epoch is None:
            return []
        return [(Q.notify, {"payload": each}) for each in write_notices(self.node, tx.new_epoch, wakes)]

    async def _return_connection(self, connection: PipelinedConnection) -> None:
        if connection.closed or connection.broken:
            self._backoff.lost(connection)
            self.lease_time.waits(connection, TroubleKind.DATABASE, self.database_ms)
            self.lease_time.failed(connection)
            connection.pgconn.finish()  # otherwise its buffers stay until the next garbage collection, which is rare
            await self.pool.putconn(connection)
            return
        try:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await connection.rollback()
        except psycopg.Error:
            await connection.close()
        await self.pool.putconn(connection)

    async def ask(self, query: str, arguments: dict[str, Any]) -> list[Any]:
        """The rows of one statement in a transaction of its own."""
        try:
            async with answered_in_time(), self.transaction() as tx:
                return await tx.rows(query, arguments)
        except (psycopg.Error, OSError) as error:
            raise as_store_error(error) from error


class CountCompaction:
    """Compacts the counts of a queue into one row of a new generation, in the background, after many changes.

    Every transaction updates a row of the counts. PostgreSQL keeps the old versions of a row for as long as any transaction
    might need them, and every reader goes through them. During a long transaction that would be all versions since it began;
    with generations it is only those of the current one, a few thousand at most.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: dict[int, asyncio.Task[None]] = {}

    def look(self, state: LockedQueue) -> None:
        """Start a compaction if the counts were changed often enough."""
        if state.generation_changes >= COMPACT_AFTER and state.id not in self._under_way:
            task = asyncio.create_task(self._compact(state.id))
            self._under_way[state.id] = task
            task.add_done_callback(lambda _: self._under_way.pop(state.id))

    async def drain(self) -> None:
        """Return when no compaction is in progress."""
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
