"""The embedded store: the contract of `stores/store.py` on one SQLite file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from veil.core.attempt import NOTHING_REPORTED, ReportedOutcome
from veil.core.clock import Clock, ClockMark, LeaseTime, Trouble
from veil.core.errors import StoreDamaged, StoreError, VeilError
from veil.core.event import NOBODY
from veil.core.lease import Deletion, HoldContent, HoldKey, HoldTally
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import MoveTask, Queue, QueueCounts, QueueKey, ScanStep
from veil.core.receipt import Receipt, ReceiptBook
from veil.stores.commit_stats import CommitStats
from veil.stores.outbox import OUTBOX_BYTES_MAX, OutboxBound, PlanBuilder
from veil.stores.sql import START, UNREADABLE, HoldCursor, HoldStep, to_task
from veil.stores.sqlite import holds, leases, moves, queues
from veil.stores.sqlite.commit import GroupCommit
from veil.stores.sqlite.data_directory import DISK_FULL, DataLock, Reserve
from veil.stores.sqlite.database import Database, Q
from veil.stores.sqlite.messages import Peek, oldest_sent_ms, peek_next, receive, send
from veil.stores.sqlite.opening import connect, open_database
from veil.stores.sqlite.outbox import SqliteOutbox
from veil.stores.store import (
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

_log = logging.getLogger(__name__)

FORGET_EVERY_MS = 10_000
# Of bodies that were claimed and wait for their commit, or for the worker that asked. A group may have hundreds of receives, each
# of ten large messages.
CLAIMED_BYTES_MAX = 64 << 20
_PEEKS_MAX = 6  # at once: their messages are held as well
_TAKEN_S = 0.002  # after which a worker has taken some of what it was sent


def _seen(done: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for: a store that failed says so."""
    if not done.cancelled():
        done.exception()


def _on_queue(
    work: Callable[Concatenate[Database, Queue, P], T], *, looks: bool = False
) -> Callable[Concatenate[SqliteStore, Queue, P], Coroutine[Any, Any, T]]:
    """An operation on a queue that does this work once everything due there has happened."""

    async def call(self: SqliteStore, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._settled(queue, synced=looks)
        return await self._do(partial(work, self._db, queue, *args, **kwargs), looks=looks)

    return call


class SqliteStore(OwnLeaseTime):
    """Durable on one machine. Every change is in the WAL and synced before its method returns.

    With `journal`, what happens to messages is recorded in the outbox. If nobody takes it away and it has grown to
    `outbox_bytes_max`, events are not recorded until it is smaller, and counted as lost: the queues go on working rather
    than fill the disk.
    """

    is_shared = False
    receipts: ReceiptBook
    events: StoreEvents
    store_id: str

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        journal: bool = False,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        lease_grace: bool = False,
    ) -> None:
        self._records = journal
        self._bound = OutboxBound(outbox_bytes_max)
        self._directory = directory
        self._clock = clock
        self.lease_time = LeaseTime(clock, is_on=lease_grace)
        self.lease_time.on_trouble = self._note_trouble
        self._lock = DataLock(directory)
        self._reserve = Reserve(directory)
        self._sweeper: asyncio.Task[None] | None = None
        self._is_to_sweep = False
        self._forget_at_ms = 0
        self._claimed_bytes = 0
        self._room, self._peeks = asyncio.Lock(), asyncio.Semaphore(_PEEKS_MAX)
        self.unsent_bytes: Callable[[], int] = lambda: 0  # of answers that workers have not taken yet
        self.events = NoEvents()
        self.commit_stats = CommitStats()
        self.on_failure: Callable[[BaseException], None] | None = None

    # ---- opening and closing

    async def open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.acquire()
        try:
            self._reserve.release_if_needed(self._clock.now_ms())
            self._connection = open_database(self._directory)
            try:
                self._start(self._connection)
            except BaseException as error:
                self._connection.close()
                if isinstance(error, apsw.Error):
                    raise StoreError(f"the data in {self._directory} cannot be opened: {error}") from error
                if isinstance(error, UNREADABLE):
                    raise StoreDamaged(f"{self._directory}: {error}; run 'veil verify'") from error
                raise
        except BaseException:
            self._lock.release()
            raise
        self._start_sweeping()

    def _start(self, connection: apsw.Connection) -> None:
        db = self._db = Database(
            connection,
            self._clock,
            self,
            self._reserve,
            self._bound,
            journal=self._records,
            lease_time=self.lease_time,
        )
        if mark := db.execute(Q.read_mark).fetchone():
            *readings, last_seq, _, _ = mark
            saved = ClockMark(*readings)
            self._clock.resume(saved)
            db.sequence.last = last_seq
            trouble = db.execute(Q.read_meta, (leases.TROUBLE,)).get
            self.lease_time.resume(
                None if trouble is None else leases.decode_trouble(trouble), saved.engine_ms
            )
        self._outbox = SqliteOutbox(db)
        self._load()
        self.store_id = db.execute(Q.read_meta, ("store_id",)).get.decode()
        self.receipts = ReceiptBook(db.execute(Q.read_meta, ("receipt_key",)).get)
        if not self._reserve.take():
            _log.warning("%s: %s", self._directory, DISK_FULL)
        # The WAL file comes into being with the first write.
        with connection:
            db.before_commit()
        self._commits = GroupCommit(
            db,
            Path(connection.filename_wal),
            connect(Path(connection.filename)),
            after_rollback=self._load,
            on_full=lambda: self._reserve.release(self._clock.now_ms()),
            on_failure=self._failed,
            stats=self.commit_stats,
            lease_time=self.lease_time,
        )
        self._do = self._commits.submit

    def _load(self) -> None:
        self._db.load()
        self._outbox.load()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        with suppress(StoreError):  # it has failed, and says so elsewhere
            await self._do(self._db.write_back_all)
            await self._do(leases.note_end, self._db)
        await self._commits.close()
        self._connection.close()
        self._lock.release()

    def _note_trouble(self, trouble: Trouble) -> None:
        _log.warning(trouble.told)
        self.events.troubled(trouble)
        # At the end of the loop's turn: it may have been noticed in the middle of an operation.
        asyncio.get_running_loop().call_soon(self._keep_trouble, trouble)

    def _keep_trouble(self, trouble: Trouble) -> None:
        self._do(leases.note_trouble, self._db, trouble).add_done_callback(_seen)

    def _failed(self, error: BaseException) -> None:
        if self.on_failure is not None:
            self.on_failure(error)

    # ---- time

    def next_due_ms(self) -> int | None:
        due_ms = self._db.next_due_ms()
        if not self._db.remembers:
            return due_ms
        return self._forget_at_ms if due_ms is None else min(due_ms, self._forget_at_ms)

    async def settle(self) -> None:
        db = self._db
        for state in db.due_states(self._clock.now_ms()):
            while await self._do(leases.settle, db, state.queue.id):
                pass
            if present := db.states.get(state.queue.id):
                # It was taken off the heap of due queues above: put it back with what is next.
                await self._do(db.look_ahead, present, looks=True)
        now_ms = self._clock.now_ms()
        if now_ms >= self._forget_at_ms:
            # Some at a time, so that what is due meanwhile need not wait; and again at once until nothing is left.
            more = await self._do(leases.forget_old, db, now_ms)
            self._forget_at_ms = now_ms if more else now_ms + FORGET_EVERY_MS
            await self._do(holds.forget_stale_stream, db)

    def _is_due(self, queue: Queue) -> bool:
        # Asked before every operation on messages, and nearly always answered with no.
        state = self._db.states.get(queue.id)
        return state is not None and state.next_due_ms <= self._clock.now_ms()

    async def _settled(self, queue: Queue, *, synced: bool = True) -> None:
        """Return when everything due in the queue has happened, letting others in between chunks; and is on disk, unless
        what comes next waits for the same sync anyway: a renewal has no time for two."""
        while self._is_due(queue):
            settled = self._do(leases.settle, self._db, queue.id)
            if synced or self._is_due(queue):
                if not await settled:
                    return
            else:
                settled.add_done_callback(_seen)

    async def has_duty(self, duty: str) -> bool:
        return True  # there is nobody else

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        state = self._db.by_key.get(key)
        return None if state is None else state.queue

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        return await self._do(queues.create, self._db, key, content, rest_ms)

    edit_queue = _on_queue(queues.edit)

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        await self._settled(queue)  # what had expired was not purged
        while await self._do(queues.begin_delete, self._db, queue):
            pass
        await self._do(queues.delete, self._db, queue, caller)
        self._start_sweeping()

    def _start_sweeping(self) -> None:
        self._is_to_sweep = True  # also where a sweep is about to end
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep_deleted())

    async def _sweep_deleted(self) -> None:
        try:
            while self._is_to_sweep:
                self._is_to_sweep = False
                while await self._do(queues.sweep_deleted, self._db):
                    pass
                while await self._do(self._outbox.sweep):
                    pass
        except StoreError:
            return  # it will be taken up at the next start

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        found = self._db.by_key.of_account(region, account, prefix=prefix, after=after)
        return [state.queue for state in islice(found, limit)]

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        found = self._db.by_key.of_account(key.region, key.account, after=after)
        return sources_of((state.queue for state in found), key, limit)

    async def all_queues(self) -> list[Queue]:
        return self._db.queues()

    # ---- messages

    def _change(self, queue: Queue, work: Callable[..., T], *given: Any) -> Awaitable[T]:
        """Do the work on the queue once everything due there has happened; nearly always it has."""
        state = self._db.states.get(queue.id)
        if state is not None and state.next_due_ms <= self._clock.now_ms():
            return self._settle_and_change(queue, work, *given)
        return self._do(work, self._db, queue, *given)

    async def _settle_and_change(self, queue: Queue, work: Callable[..., T], *given: Any) -> T:
        await self._settled(queue, synced=False)
        return await self._do(work, self._db, queue, *given)

    def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> Awaitable[list[Sent]]:
        if self._reserve.is_released:
            self._reserve.retake(self._clock.now_ms())  # while there is no room for it, the work is refused
        return self._change(queue, send, messages, retry_key, caller)

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        if self._is_due(queue):
            await self._settled(queue)
        claimed_bytes = 0
        has_room = True

        def claim() -> list[StoredMessage] | None:
            nonlocal claimed_bytes, has_room
            self._claimed_bytes -= claimed_bytes  # where it is done again
            claimed_bytes = 0
            # Here, not before: operations may wait for the connection, and then all of them come at once.
            has_room = self._claimed_bytes + self.unsent_bytes() <= CLAIMED_BYTES_MAX
            if not has_room:
                return None
            messages = receive(self._db, queue, count, visibility_s, attempt_id, caller)
            claimed_bytes = sum([message.body_bytes for message in messages or ()])
            self._claimed_bytes += claimed_bytes
            return messages

        try:
            messages = await self._do(claim, looks=True)
            while messages is None:
                if has_room:  # what was spent is out of the way
                    messages = await self._do(claim, looks=True)
                    continue
                async with self._room:  # one after the other
                    while (messages := await self._do(claim, looks=True)) is None and not has_room:
                        await self._do(_nothing)  # until the commit of what was claimed so far,
                        await self._taken()  # and until its receivers have taken it
            return messages
        finally:
            self._claimed_bytes -= claimed_bytes

    def delete(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        strict: bool = False,
        caller: Caller = NOBODY,
        reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
    ) -> Awaitable[list[Deletion | VeilError]]:
        return self._change(queue, leases.delete, receipts, strict, caller, reported)

    def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> Awaitable[list[VeilError | None]]:
        return self._change(queue, leases.extend, extensions, caller)

    rotate = _on_queue(leases.rotate)
    undo_receive = _on_queue(leases.undo_receive)
    note_holders = _on_queue(leases.note_holders)

    async def share_heard(self, packed: bytes) -> list[bytes | None]:
        return []

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        await self._settled(queue)
        up_to_seq = await self._do(queues.begin_purge, self._db, queue, rest_ms)
        while await self._do(queues.forget_purged, self._db, queue.id, up_to_seq):
            pass
        while await self._do(queues.purge_step, self._db, queue, up_to_seq, caller):
            pass

    async def counts(self, queue: Queue) -> QueueCounts:
        await self._settled(queue)
        return self._db.state_of(queue).queue_counts

    oldest_sent_ms = _on_queue(oldest_sent_ms, looks=True)
    peek_next = _on_queue(peek_next, looks=True)

    def _read_all(self, query: str, *given: Any) -> list[Any]:
        rows: list[Any] = self._db.execute(query, given).fetchall()
        return rows

    async def peek(
        self,
        queue: Queue,
        *,
        after_seq: int = 0,
        up_to_seq: int | None = None,
        sent_after_ms: int | None = None,
        sent_before_ms: int | None = None,
        limit: int = 100,
        bytes_max: int | None = None,
    ) -> list[StoredMessage]:
        await self._settled(queue)
        self._db.state_of(queue)
        sent = (sent_after_ms, sent_before_ms)
        peek = Peek(queue.id, after_seq, up_to_seq, *sent, limit, bytes_max)
        async with self._peeks:
            while self.unsent_bytes() > CLAIMED_BYTES_MAX:
                await self._taken()
            while True:
                if not await self._do(peek.look, self._db, looks=True):
                    return peek.messages
                await asyncio.sleep(0)  # a look is answered at once, which alone would let nobody in

    async def _taken(self) -> None:
        await asyncio.sleep(_TAKEN_S if self.unsent_bytes() else 0)

    # ---- holds

    open_stream = _on_queue(holds.open_stream)

    async def receive_hold(
        self, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldContent:
        await self._settled(queue)
        given = (self._db, queue, key, count, visibility_s, caller)
        while (content := await self._do(holds.receive_hold, *given)) is None:
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

    async def _all_holds(self, step: Callable[..., HoldStep], queue: Queue, *given: Any) -> HoldTally:
        tally = HoldTally()
        cursor: HoldCursor | None = START
        while cursor is not None:
            await self._settled(queue)
            done, cursor = await self._do(step, self._db, queue, *given, cursor)
            tally = tally.plus(done)
        return tally

    # ---- chosen redrives

    redrive = _on_queue(moves.redrive)
    discard = _on_queue(moves.discard)

    # ---- the journal

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        if not self._records:
            return None
        outbox, taken = self._outbox, PlanBuilder()
        if outbox.plan() is None:
            more = True
            while more:
                more = await self._do(outbox.extend_plan, taken, rows_max, bytes_max, looks=True)
                await asyncio.sleep(0)
        return await self._do(outbox.make_plan, taken)

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        found: list[OutboxRow] = []
        while self._records and len(found) < limit:
            rows = await self._do(self._outbox.read, plan, after, limit - len(found), looks=True)
            if not rows:
                break
            found += rows
            after = found[-1].number
        return found

    async def finish_export(self, plan: ExportPlan) -> None:
        await self._do(self._outbox.finish, plan)
        while await self._do(self._outbox.sweep):
            pass

    async def outbox_size(self) -> OutboxSize:
        if not self._records:
            return OutboxSize(0, 0, None, 0)
        oldest_ms = await self._do(self._outbox.oldest_ms, looks=True)
        return OutboxSize(self._outbox.rows, self._db.outbox_bytes, oldest_ms, self._bound.lost_events)

    # ---- move tasks

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        await self._settled_source(task)
        return await self._do(moves.start, self._db, task, caller)

    async def step_move(self, task_id: str, count: int, found: ScanStep | None = None) -> MoveTask:
        await self._settled_source(await self._do(moves.find, self._db, task_id))
        return await self._do(moves.step, self._db, task_id, count, found)

    async def _settled_source(self, task: MoveTask) -> None:
        state = self._db.by_key.get(task.source)
        if state is not None:
            await self._settled(state.queue)

    async def cancel_move(self, task_id: str) -> MoveTask:
        return await self._do(moves.cancel, self._db, task_id)

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        rows = await self._do(self._read_all, Q.list_moves, source.arn, limit, looks=True)
        return [to_task(row) for row in rows]

    async def active_moves(self) -> list[MoveTask]:
        rows = await self._do(self._read_all, Q.active_moves, looks=True)
        return [to_task(row) for row in rows]


def _nothing() -> None:
    """Work that waits for the commit of what was done before it."""
