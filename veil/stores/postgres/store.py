"""The store for many nodes: the contract of `stores/store.py` on one PostgreSQL database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import psycopg
from psycopg_pool import AsyncConnectionPool

from veil.core.attempt import NOTHING_REPORTED, ReportedOutcome
from veil.core.clock import Clock
from veil.core.errors import StoreError, VeilError
from veil.core.event import NOBODY
from veil.core.lease import STREAM_REST_MS, Deletion, HoldContent, HoldKey, HoldTally
from veil.core.limits import REST_AFTER_DELETE_MS
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import MoveTask, Queue, QueueKey, ScanStep
from veil.core.receipt import Receipt, ReceiptBook
from veil.core.sequence import expires_at_ms
from veil.stores.commit_stats import CommitStats
from veil.stores.outbox import OUTBOX_BYTES_MAX
from veil.stores.postgres import holds, leases, messages, moves, opening, queues, servers
from veil.stores.postgres.commit import PostgresGroupCommit
from veil.stores.postgres.connection import as_store_error, parse_dsn
from veil.stores.postgres.engine import Engine, Need, Pool, Work
from veil.stores.postgres.leases import DeleteOperation, ExtendOperation
from veil.stores.postgres.messages import ReceiveOperation, SendOperation
from veil.stores.postgres.nodes import Nodes
from veil.stores.postgres.outbox import Exports, SharedBound
from veil.stores.postgres.pipeline import PipelinedConnection, Q
from veil.stores.postgres.transaction import NEVER, QueueLook, Transaction, nothing
from veil.stores.sql import START, HoldCursor, HoldStep, to_task
from veil.stores.store import (
    Chosen,
    ExportPlan,
    Extension,
    NoEvents,
    OutboxRow,
    OutboxSize,
    OwnLeaseTime,
    QueueContent,
    StoreEvents,
    sources_of,
)

P = ParamSpec("P")
T = TypeVar("T")

FORGET_EVERY_MS = 10_000
CONNECT_TIMEOUT_S = 5.0
# The pool doubles its wait before each try to reconnect. It gives up early, and the next request starts it again, so that the
# wait stays short however long the database was down.
RECONNECT_S = 1.5


def _on_queue(
    work: Callable[Concatenate[Transaction, Queue, P], Awaitable[T]], *, exclusive: bool = False
) -> Callable[Concatenate[PostgresStore, Queue, P], Coroutine[Any, Any, T]]:
    """An operation on a queue that does this work in one transaction."""

    async def call(self: PostgresStore, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda tx: work(tx, queue, *args, **kwargs), Need([queue], exclusive))

    return call


class PostgresStore(OwnLeaseTime):
    """Any number of nodes on one database, which is what makes it durable.

    Without a clock given, time is the database's own.
    """

    is_shared = True
    receipts: ReceiptBook
    events: StoreEvents
    store_id: str

    def __init__(
        self,
        dsn: str,
        clock: Clock | None = None,
        *,
        journal: bool = False,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        one_of_several: bool = False,
        lease_grace: bool = False,
    ) -> None:
        self._one_of_several = one_of_several
        self._dsn = parse_dsn(dsn)
        self._pool = self._new_pool()
        self._records = journal
        self._keeps_time = clock is None  # otherwise the owner of the clock calls `settle`
        self._engine = Engine(
            self._pool, clock, bound=SharedBound(outbox_bytes_max), recording=journal, lease_grace=lease_grace
        )
        self.lease_time = self._engine.lease_time
        self._engine.events = lambda: self.events
        self._run = self._engine.run
        self._nodes = Nodes(self._engine, self._dsn, self._each_second)
        self.has_duty, self.share_heard = self._nodes.has_duty, self._nodes.share_heard
        self.next_due_ms = self._engine.due_times.next_ms
        self._sweeper: asyncio.Task[None] | None = None
        self._is_to_sweep = False
        self._probing: asyncio.Task[None] | None = None
        self._forget_at_ms = 0
        self.events = NoEvents()
        self.commit_stats = CommitStats()
        self._groups = PostgresGroupCommit(self._engine, self.commit_stats)

    @property
    def clock(self) -> Clock:
        """The clock of the queues; if none was given, an estimate of the database's."""
        return self._engine.clock

    def pool_stats(self) -> Mapping[str, int]:
        """The statistics of psycopg's pool: connections, idle ones, waiting requests, failed connects."""
        return self._pool.get_stats()

    async def probe(self) -> None:
        """Raise StoreError if no message could be sent now. All callers share one probe, because its commit may hang."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._nodes.probe())
        await asyncio.shield(self._probing)

    # ---- opening and closing

    def _new_pool(self) -> Pool:
        return AsyncConnectionPool(
            self._dsn.text,
            connection_class=PipelinedConnection,
            min_size=min(2, self._dsn.connections),
            max_size=self._dsn.connections,
            timeout=CONNECT_TIMEOUT_S,
            reconnect_timeout=RECONNECT_S,
            kwargs=self._dsn.options(),
            open=False,
            name="veil",
        )

    async def _close_pool(self) -> None:
        """Close the pool for good; the store, with another one, may be opened again."""
        await self._pool.close()
        self._pool = self._engine.pool = self._new_pool()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[PipelinedConnection]:
        """A connection outside of the engine's transactions; raises StoreError for what goes wrong with it."""
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, OSError) as error:
            raise as_store_error(error) from error

    async def open(self) -> None:
        await opening.migrate(self._dsn)
        await self._pool.open()
        try:
            async with self._connection() as connection:
                known = await opening.identity(connection, one_of_several=self._one_of_several)
            self.receipts = ReceiptBook(known.receipt_key)
            self.store_id = known.store_id.decode()
            self._exports = Exports(self._engine, known.journal_id.decode())
            await self._engine.refresh_queues()
            await self._look_at_all_queues()
            await self._nodes.start()
        except BaseException:
            await self._close_pool()
            raise
        self._start_sweeping()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._groups.drain()
        await self._engine.drain()
        await self._nodes.stop()
        await self._engine.compaction.drain()
        await self._close_pool()

    # ---- time

    async def settle(self) -> None:
        for queue_id in self._engine.due_times.due_by(self.clock.now_ms()):
            known = self._engine.queues.by_id.get(queue_id)
            if known is None:
                self._engine.due_times.forget(queue_id)
            else:
                await self._run(nothing, Need([known.queue]))
        now_ms = self.clock.now_ms()
        if now_ms >= self._forget_at_ms:
            self._forget_at_ms = now_ms + FORGET_EVERY_MS
            await self._run(_forget_old)
            if self._records:
                await self._exports.size()

    async def _each_second(self) -> None:
        """What a node does for all nodes, including the leases of a dead one."""
        await self._engine.refresh_queues()
        if self._keeps_time:
            await self._look_at_all_queues()
            await self.settle()
        if await self.has_duty("sweep"):
            self._start_sweeping()

    async def _look_at_all_queues(self) -> None:
        """Find the next due time of every queue, including what other nodes stored."""
        engine, now_ms = self._engine, self.clock.now_ms()
        ids = list(engine.queues.by_id)
        if not ids:
            return
        asked = {**engine.watermarks.as_known(ids, now_ms), "wants_next": [True] * len(ids)}
        for look in map(QueueLook._make, await engine.ask(Q.look_at_queues, asked)):
            known = engine.queues.by_id.get(look.queue_id)
            if known is not None:
                expiry_ms = engine.watermarks.next_expiry_ms(look.queue_id) or NEVER
                if look.oldest_seq is not None:
                    expiry_ms = expires_at_ms(look.oldest_seq, known.queue.settings.retention_s)
                wake_ms = NEVER if look.wake_ms is None else look.wake_ms
                engine.due_times.note(look.queue_id, min(wake_ms, expiry_ms), now_ms)

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        known = self._engine.queues.by_key.get(key)
        if known is None or not self._engine.is_listening:
            with self._engine.renewals_wait():
                # It may have been created or edited on another node, and the notification missed.
                await self._engine.refresh_queues_together()
            known = self._engine.queues.by_key.get(key)
        return None if known is None else known.queue

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        known = self._engine.queues
        return await self._run(lambda tx: queues.create(tx, known, key, content, rest_ms))

    edit_queue = _on_queue(queues.edit, exclusive=True)

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        await self._run(lambda tx: queues.delete(tx, queue, caller), Need([queue], exclusive=True))
        self._engine.due_times.forget(queue.id)
        self._start_sweeping()

    def _start_sweeping(self) -> None:
        self._is_to_sweep = True  # also where a sweep is about to end
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep_deleted())

    async def _sweep_deleted(self) -> None:
        try:
            while self._is_to_sweep:
                self._is_to_sweep = False
                while await self._run(queues.sweep_deleted):
                    pass
        except StoreError:
            return  # the next sweep goes on

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        await self._engine.refresh_queues()
        found = self._engine.queues.by_key.of_account(region, account, prefix=prefix, after=after)
        return [known.queue for known in islice(found, limit)]

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        await self._engine.refresh_queues()
        found = self._engine.queues.by_key.of_account(key.region, key.account, after=after)
        return sources_of((known.queue for known in found), key, limit)

    async def all_queues(self) -> list[Queue]:
        await self._engine.refresh_queues()
        return self._engine.queues.all()

    # ---- messages

    async def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> list[Sent]:
        send = SendOperation(queue=queue, caller=caller, new=messages, retry_key=retry_key)
        return cast(list[Sent], await self._groups.do(send))

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        messages: list[StoredMessage] | None = None
        while messages is None:  # None: many messages were spent; other operations run first
            receive = ReceiveOperation(
                queue=queue, caller=caller, count=count, visibility_s=visibility_s, attempt_id=attempt_id
            )
            messages = await self._groups.do(receive)
        return messages

    async def delete(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        strict: bool = False,
        caller: Caller = NOBODY,
        reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
    ) -> list[Deletion | VeilError]:
        delete = DeleteOperation(
            queue=queue, caller=caller, receipts=receipts, strict=strict, reported=reported
        )
        return cast(list[Deletion | VeilError], await self._groups.do(delete))

    async def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[VeilError | None]:
        extend = ExtendOperation(queue=queue, caller=caller, extensions=extensions)
        return cast(list[VeilError | None], await self._groups.do(extend))

    rotate = _on_queue(leases.rotate)
    undo_receive = _on_queue(leases.undo_receive)
    note_holders = _on_queue(leases.note_holders)

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        need = Need([queue], exclusive=True)
        up_to_seq = await self._run(lambda tx: queues.begin_purge(tx, queue, rest_ms), need)
        while await self._run(lambda tx: queues.purge_step(tx, queue, up_to_seq, caller), need):
            pass

    counts = _on_queue(queues.counts)
    oldest_sent_ms = _on_queue(queues.oldest_sent_ms)
    peek = _on_queue(messages.peek)
    peek_next = _on_queue(messages.peek_next)

    # ---- holds

    open_stream = _on_queue(holds.open_stream)

    async def receive_hold(
        self, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldContent:
        def take(tx: Transaction) -> Awaitable[HoldContent | None]:
            return holds.receive_hold(tx, queue, key, count, visibility_s, caller)

        while (content := await self._run(take, Need([queue], takes=count))) is None:
            pass
        return content

    async def extend_holds(
        self, queue: Queue, stream: str, owner: str, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldTally:
        return await self._all_holds(holds.extend_holds, queue, stream, owner, visibility_s, caller)

    async def delete_holds(
        self, queue: Queue, stream: str, owner: str, *, up_to_batch: int, caller: Caller = NOBODY
    ) -> HoldTally:
        return await self._all_holds(holds.delete_holds, queue, stream, owner, up_to_batch, caller)

    async def _all_holds(
        self, step: Callable[..., Awaitable[HoldStep]], queue: Queue, *given: Any
    ) -> HoldTally:
        tally = HoldTally()
        cursor: HoldCursor | None = START
        while cursor is not None:
            here = cursor
            done, cursor = await self._run(lambda tx: step(tx, queue, *given, here), Need([queue]))  # noqa: B023
            tally = tally.plus(done)
        return tally

    # ---- redrives

    async def redrive(
        self, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
    ) -> list[Sent | VeilError]:
        known = self._engine.queues
        named = {one.destination for one in chosen if one.destination is not None}
        return await self._with_all_queues(
            lambda tx: moves.redrive(tx, known, queue, chosen, caller), queue, named, len(chosen)
        )

    discard = _on_queue(moves.discard, exclusive=True)

    async def _with_all_queues(
        self, work: Work[T], source: Queue | QueueKey, others: set[QueueKey], numbers: int
    ) -> T:
        """Do work that may turn out to need more queues, each of which must be locked."""
        while True:
            try:
                return await self._run(work, Need([source, *others], exclusive=True, numbers=numbers))
            except moves.AlsoNeeded as more:
                others = others | more.keys

    # ---- as one of several servers (stores/sharded.py)

    def known_queues(self) -> list[Queue]:
        """The queues as last known, even while the database is down."""
        return self._engine.queues.all()

    def known_queue(self, queue_id: int) -> Queue | None:
        """The queue with that id, as last known."""
        known = self._engine.queues.by_id.get(queue_id)
        return None if known is None else known.queue

    async def number_server(self, store_id: str) -> int:
        """On the first server: the number of a server, which it is given where it has none."""
        async with self._connection() as connection:
            return await servers.number(connection, store_id)

    async def take_number(self, home: str, number: int) -> None:
        """Store the number that the first server assigned; raises StoreError if this cannot be one of its servers."""
        async with self._connection() as connection:
            await servers.take_number(connection, home, number)

    async def placements(self) -> dict[QueueKey, int]:
        """On the first server: where every queue lives."""
        rows = await self._engine.ask(Q.placements, {})
        return {QueueKey(region, account, name): server for region, account, name, server in rows}

    async def place(self, key: QueueKey, server: int) -> int:
        """On the first server: record where a new queue lives, or return where it already does."""

        async def placed(tx: Transaction) -> int:
            tx.defer(Q.place, {**key._asdict(), "server": server})
            [(found,)] = await tx.rows(Q.placement_of, key._asdict())
            return int(found)

        return await self._run(placed)

    async def unplace(self, key: QueueKey) -> None:
        """On the first server: forget where a queue lived."""
        await self._engine.ask(Q.unplace, key._asdict())

    async def has_move(self, task_id: str) -> bool:
        """Whether it has that move task."""
        return bool(await self._engine.ask(Q.find_move, {"id": task_id}))

    adopt = _on_queue(servers.adopt, exclusive=True)
    dismiss = _on_queue(servers.dismiss, exclusive=True)
    forget_carried = _on_queue(servers.forget_carried)

    # ---- the journal

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        return await self._exports.plan(rows_max, bytes_max) if self._records else None

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        return await self._exports.rows(plan, after, limit) if self._records else []

    async def finish_export(self, plan: ExportPlan) -> None:
        await self._exports.finish(plan)

    async def outbox_size(self) -> OutboxSize:
        return await self._exports.size() if self._records else OutboxSize(0, 0, None, 0)

    # ---- move tasks

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        return await self._run(lambda tx: moves.start(tx, task, caller), Need([task.source]))

    async def step_move(self, task_id: str, count: int, found: ScanStep | None = None) -> MoveTask:
        known = self._engine.queues
        task = await self._run(lambda tx: moves.find(tx, task_id))
        chosen = found.chosen if found is not None else ()
        named = {key for key in (task.destination, *(one.destination for one in chosen)) if key is not None}
        return await self._with_all_queues(
            lambda tx: moves.step(tx, known, task_id, count, found), task.source, named, len(chosen)
        )

    async def cancel_move(self, task_id: str) -> MoveTask:
        return await self._run(lambda tx: moves.cancel(tx, task_id))

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        rows = await self._engine.ask(Q.list_moves, {"source": source.arn, "limit": limit})
        return [to_task(row) for row in rows]

    async def active_moves(self) -> list[MoveTask]:
        return [to_task(row) for row in await self._engine.ask(Q.active_moves, {})]


async def _forget_old(tx: Transaction) -> None:
    before = {"before_ms": tx.now_ms - queues.TOMBSTONE_MS, "rested_ms": tx.now_ms - REST_AFTER_DELETE_MS}
    tx.defer(Q.forget_old, {"now_ms": tx.now_ms, **before})
    tx.defer(Q.forget_streams, {"before_ms": tx.now_ms - STREAM_REST_MS})
