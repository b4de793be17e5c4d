"""Sharding: several PostgreSQL servers under one set of queues. Each queue lives on one server; its operations touch no other.

The first server also keeps the map of which queue lives where. Nodes cache the map, so the failure of a server affects only
its own queues. While the first server is down, queues cannot be created or deleted.

A move between queues (dead letters, redrives, move tasks) is one transaction if both queues live on the same server, so a queue
is placed on the server of its dead-letter queue if that already exists. Otherwise the destination has a *stand-in* on the
source's server: an ordinary queue of the same name that clients never see. The move goes into the stand-in in one transaction,
as it would go into the queue itself. A carrier then copies the messages to the real queue, records in the same transaction that
it did, and removes them from the stand-in. If a process dies in between, each message still arrives exactly once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from veil.core.clock import Clock, Trouble
from veil.core.decide import origin_of
from veil.core.errors import MoveTaskMissing, QueueMissing, StoreError, StoreUnavailable, VeilError
from veil.core.event import NOBODY
from veil.core.limits import RETENTION_MAX_S
from veil.core.message import Caller, Sent
from veil.core.queue import MoveTask, Queue, QueueKey, QueueSettings, ScanStep
from veil.core.receipt import Receipt, ReceiptBook
from veil.stores.commit_stats import CommitStats
from veil.stores.outbox import OUTBOX_BYTES_MAX
from veil.stores.postgres.servers import SERVERS_MAX, server_of
from veil.stores.postgres.store import PostgresStore
from veil.stores.store import (
    Chosen,
    ExportPlan,
    NoEvents,
    OutboxRow,
    OutboxSize,
    QueueContent,
    QueuesByKey,
    StoreEvents,
    sources_of,
)

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_CARRY_EVERY_S: Final = 1.0
_CARRIED_AT_ONCE: Final = 100
_CARRIED_BYTES: Final = 8 << 20
_OPEN_AGAIN_S: Final = 2.0
_DUTY: Final = "carry"
_NUMBERS: Final = 1 << 63  # that an outbox row of one server may have
_STAND_IN: Final = "*stand-in*"  # a tag that nobody can give a queue: clients' tags have no asterisks


def _routed(
    method: Callable[Concatenate[PostgresStore, Queue, P], Awaitable[T]],
) -> Callable[Concatenate[ShardedStore, Queue, P], Coroutine[Any, Any, T]]:
    """Run the operation on the server where the queue lives."""

    async def call(self: ShardedStore, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(self._server(queue.id), queue, *args, **kwargs)

    return call


def _is_stand_in(queue: Queue) -> bool:
    return _STAND_IN in queue.tags


class ShardedStore:
    """The contract of `stores/store.py` over several PostgreSQL servers; the first one keeps the map."""

    is_shared = True

    def __init__(
        self,
        dsns: Sequence[str],
        clock: Clock | None = None,
        *,
        journal: bool = False,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        lease_grace: bool = False,
    ) -> None:
        if not 2 <= len(dsns) <= SERVERS_MAX:
            raise StoreError(f"{len(dsns)} servers: expected 2 to {SERVERS_MAX}")
        bound = outbox_bytes_max // len(dsns)
        self._all = [
            PostgresStore(
                dsn,
                clock,
                journal=journal,
                outbox_bytes_max=bound,
                lease_grace=lease_grace,
                one_of_several=True,
            )
            for dsn in dsns
        ]
        self._home = self._all[0]
        # Every node is one of the first server's.
        self.has_duty, self.share_heard = self._home.has_duty, self._home.share_heard
        self._by_number: dict[int, PostgresStore] = {}  # those that were opened
        self._placed: dict[QueueKey, int] = {}
        self._owner: StoreEvents = NoEvents()
        self._wakes_carrier = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._moving: dict[str, PostgresStore] = {}  # which server has which move task
        self._exporting: dict[str, PostgresStore] = {}  # by the id of its journal
        self._exported_last = -1  # the number of the server whose journal was last
        self.store_id = ""
        self.receipts: ReceiptBook = _Receipts(self._server)

    @property
    def clock(self) -> Clock:
        """The first server's clock. Each server decides by its own; this one is only for waiting."""
        return self._home.clock

    @property
    def events(self) -> StoreEvents:
        return self._owner

    @events.setter
    def events(self, owner: StoreEvents) -> None:
        self._owner = owner
        for server in self._by_number.values():
            server.events = _ServerEvents(self, server)

    @property
    def commit_stats(self) -> CommitStats:
        """The sums over all servers."""
        return CommitStats.of_all(server.commit_stats for server in self._all)

    def pool_stats(self) -> Mapping[str, int]:
        """The sums over all servers."""
        sums: Counter[str] = Counter()
        for server in self._all:
            sums.update(server.pool_stats())
        return sums

    async def probe(self) -> None:
        """Raise StoreError if no server can take a message now. While one can, its queues are served."""
        pending = {asyncio.ensure_future(server.probe()) for server in self._by_number.values()}
        problem: BaseException | None = None
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for probe in done:
                    problem = probe.exception()
                    if problem is None:
                        return
        finally:
            for probe in pending:
                probe.cancel()
        raise problem or StoreUnavailable("no server is open")

    # ---- opening and closing

    async def open(self) -> None:
        """Raises what opening the first server raises. Another server that is down is opened when it is back."""
        await self._open_member(self._home)
        try:
            self.store_id = self._home.store_id
            for server in self._all[1:]:
                try:
                    await self._open_member(server)
                except StoreUnavailable as problem:
                    _log.warning("a server is away, its queues answer 503 until it is back: %s", problem)
                    self._tasks.append(asyncio.create_task(self._open_later(server)))
            await self._learn()
        except BaseException:
            await self.close()
            raise
        self._tasks.append(asyncio.create_task(self._carry_on()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._by_number.values()))

    async def _open_member(self, server: PostgresStore) -> None:
        await server.open()
        try:
            await self._join(server)
        except BaseException:
            await server.close()
            raise

    async def _open_later(self, server: PostgresStore) -> None:
        while True:
            await asyncio.sleep(_OPEN_AGAIN_S)
            try:
                await self._open_member(server)
            except StoreUnavailable:
                continue
            except StoreError as problem:
                _log.error("a server that is back cannot be used: %s", problem)
                return
            _log.info("a server is back, and its queues with it")
            return

    async def _join(self, server: PostgresStore) -> None:
        number = await self._home.number_server(server.store_id)
        if (number == 0) != (server is self._home):
            raise StoreError(
                "the servers are in another order than before: the first one must stay the first"
            )
        await server.take_number(self._home.store_id, number)
        self._by_number[number] = server
        if server is self._home:
            for key in {queue.key for queue in server.known_queues()} - set(await server.placements()):
                await server.place(key, 0)  # queues from before it became one of several
        server.events = _ServerEvents(self, server)

    # ---- where things are

    def _server(self, queue_id: int) -> PostgresStore:
        return self._numbered(server_of(queue_id))

    def _numbered(self, number: int, queue: str = "the queue") -> PostgresStore:
        server = self._by_number.get(number)
        if server is None:
            raise StoreUnavailable(f"the server on which {queue} lives is away")
        return server

    async def _learn(self) -> None:
        self._placed = await self._home.placements()

    async def _at(self, key: QueueKey) -> PostgresStore | None:
        """The server on which the queue lives, if it exists."""
        if key not in self._placed:
            await self._learn()
        number = self._placed.get(key)
        return None if number is None else self._numbered(number, f"the queue {key.name}")

    async def _everywhere(self) -> list[Queue]:
        """Every queue of every server; for a server that is down, as last known."""
        with suppress(StoreError):
            await self._learn()
        found: list[Queue] = []
        away: list[StoreError] = []
        for server in self._by_number.values():
            try:
                found += await server.all_queues()
            except StoreError as problem:
                away.append(problem)
                found += server.known_queues()
        if len(away) == len(self._by_number):
            raise away[0]
        return [queue for queue in found if not _is_stand_in(queue)]

    async def _stand_in(self, server: PostgresStore, key: QueueKey) -> None:
        """Create a stand-in for the queue on the server, if the queue lives elsewhere."""
        real_at = await self._at(key)
        if real_at is None or real_at is server or await server.find_queue(key) is not None:
            return
        real = await real_at.find_queue(key)
        if real is not None:
            settings = QueueSettings(
                fifo=real.settings.fifo, delay_s=real.settings.delay_s, retention_s=RETENTION_MAX_S
            )
            await server.create_queue(key, QueueContent(settings, {_STAND_IN: ""}), rest_ms=0)

    async def _stand_ins_of(self, queue: Queue) -> AsyncIterator[tuple[PostgresStore, Queue]]:
        for other in [*self._by_number.values()]:
            if (
                other is not self._server(queue.id)
                and (found := await other.find_queue(queue.key)) is not None
            ):
                yield other, found

    async def _stand_ins_for(self, server: PostgresStore, chosen: Iterable[Chosen]) -> None:
        for key in {one.destination for one in chosen if one.destination is not None}:
            await self._stand_in(server, key)

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        for is_last in (False, True):
            server = await self._at(key)
            found = None if server is None else await server.find_queue(key)
            if server is None or (found is not None and not _is_stand_in(found)):
                return found
            if not is_last:
                await self._learn()  # it may have been deleted and recreated on another server
        return None

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        await self._learn()
        number = await self._home.place(key, self._placed.get(key, self._chosen(key, content)))
        self._placed[key] = number
        server = self._numbered(number, f"the queue {key.name}")
        if content.settings.redrive is not None:
            await self._stand_in(server, content.settings.redrive.dead_letters)
        before = await server.find_queue(key)
        if before is not None and _is_stand_in(before):
            await server.delete_queue(before)  # of an earlier queue of that name, which is gone
        queue = await server.create_queue(key, content, rest_ms=0 if before is not None else rest_ms)
        for other in self._by_number.values():
            # Queues may name their dead letters before these exist.
            if other is not server and sources_of(other.known_queues(), key, 1):
                await self._stand_in(other, key)
        return queue

    def _chosen(self, key: QueueKey, content: QueueContent) -> int:
        """The server for a new queue: that of its dead-letter queue, otherwise the one that its name hashes to on every node."""
        redrive = content.settings.redrive
        with_it = None if redrive is None else self._placed.get(redrive.dead_letters)
        if with_it is not None:
            return with_it

        def weight(number: int) -> bytes:
            return hashlib.blake2s(f"{number}\n{key.arn}".encode(), digest_size=8).digest()

        return max(self._by_number, key=weight)

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        server = self._server(queue.id)
        changed = edit(QueueContent(queue.settings, dict(queue.tags)))
        if changed.settings.redrive is not None:
            await self._stand_in(server, changed.settings.redrive.dead_letters)
        edited = await server.edit_queue(queue, edit)
        delay_s = edited.settings.delay_s
        if delay_s != queue.settings.delay_s:
            async for other, stand_in in self._stand_ins_of(queue):
                await other.edit_queue(
                    stand_in, lambda it: it._replace(settings=replace(it.settings, delay_s=delay_s))
                )
        return edited

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        await self._server(queue.id).delete_queue(queue, caller=caller)
        async for other, stand_in in self._stand_ins_of(queue):
            await other.delete_queue(stand_in, caller=caller)
        await self._home.unplace(queue.key)
        self._placed.pop(queue.key, None)

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        found = QueuesByKey((queue.key, queue) for queue in await self._everywhere())
        return [*islice(found.of_account(region, account, prefix=prefix, after=after), limit)]

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        found = QueuesByKey((queue.key, queue) for queue in await self._everywhere())
        return sources_of(found.of_account(key.region, key.account, after=after), key, limit)

    async def all_queues(self) -> list[Queue]:
        return await self._everywhere()

    # ---- what concerns one queue

    send = _routed(PostgresStore.send)
    receive = _routed(PostgresStore.receive)
    delete = _routed(PostgresStore.delete)
    extend = _routed(PostgresStore.extend)
    rotate = _routed(PostgresStore.rotate)
    undo_receive = _routed(PostgresStore.undo_receive)
    note_holders = _routed(PostgresStore.note_holders)

    purge = _routed(PostgresStore.purge)
    discard = _routed(PostgresStore.discard)
    counts = _routed(PostgresStore.counts)
    oldest_sent_ms = _routed(PostgresStore.oldest_sent_ms)
    peek = _routed(PostgresStore.peek)
    peek_next = _routed(PostgresStore.peek_next)
    open_stream = _routed(PostgresStore.open_stream)
    receive_hold = _routed(PostgresStore.receive_hold)
    extend_holds = _routed(PostgresStore.extend_holds)
    delete_holds = _routed(PostgresStore.delete_holds)

    # ---- redrives and move tasks

    async def redrive(
        self, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
    ) -> list[Sent | VeilError]:
        server = self._server(queue.id)
        await self._stand_ins_for(server, chosen)
        return await server.redrive(queue, chosen, caller=caller)

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        server = await self._at(task.source)
        if server is None:
            raise QueueMissing(task.source.name)
        if task.destination is not None:
            await self._stand_in(server, task.destination)
        self._moving[task.id] = server
        return await server.start_move(task, caller=caller)

    async def step_move(self, task_id: str, count: int, found: ScanStep | None = None) -> MoveTask:
        server = await self._with_move(task_id)
        await self._stand_ins_for(server, found.chosen if found else ())
        return await server.step_move(task_id, count, found)

    async def cancel_move(self, task_id: str) -> MoveTask:
        return await (await self._with_move(task_id)).cancel_move(task_id)

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        server = await self._at(source)
        tasks = [] if server is None else await server.list_moves(source, limit)
        if server is not None:
            self._moving |= dict.fromkeys((task.id for task in tasks), server)
        return tasks

    async def active_moves(self) -> list[MoveTask]:
        found: list[MoveTask] = []
        for server in self._by_number.values():
            with suppress(StoreUnavailable):  # its tasks go on when it is back
                tasks = await server.active_moves()
                self._moving |= dict.fromkeys((task.id for task in tasks), server)
                found += tasks
        return found

    async def _with_move(self, task_id: str) -> PostgresStore:
        if task_id not in self._moving:
            for server in self._by_number.values():
                if await server.has_move(task_id):
                    self._moving[task_id] = server
                    break
            else:
                raise MoveTaskMissing
        return self._moving[task_id]

    # ---- time and duties

    def trouble_at(self, now_ms: int) -> Trouble | None:
        troubles = [each for server in self._all if (each := server.trouble_at(now_ms)) is not None]
        return max(troubles, key=lambda each: each.to_ms, default=None)

    def begin_serving(self) -> None:
        for server in self._all:
            server.begin_serving()

    def end_serving(self) -> None:
        for server in self._all:
            server.end_serving()

    def next_due_ms(self) -> int | None:
        return min(
            (due for server in self._by_number.values() if (due := server.next_due_ms()) is not None),
            default=None,
        )

    async def settle(self) -> None:
        settled = await asyncio.gather(
            *(server.settle() for server in self._by_number.values()), return_exceptions=True
        )
        for problem in settled:
            # One that is away settles when it is back; the others must not wait for it.
            if isinstance(problem, BaseException) and not isinstance(problem, StoreError):
                raise problem

    # ---- the journal: each server's own, in turn

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        # Round robin: a busy server always has something to export, and the others would never get a turn.
        for number in sorted(self._by_number, key=lambda each: (each <= self._exported_last, each)):
            server = self._by_number[number]
            try:
                plan = await server.plan_export(rows_max=rows_max, bytes_max=bytes_max)
            except StoreUnavailable:
                continue
            if plan is not None:
                self._exporting[plan.journal_id], self._exported_last = server, number
                return plan
        return None

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        if (server := self._exporting.get(plan.journal_id)) is not None:
            return await server.outbox_rows(plan, after=after, limit=limit)
        # Nobody's plan, by which one only looks: the rows of one server after those of another.
        found: list[OutboxRow] = []
        for number, server in sorted(self._by_number.items()):
            before = number * _NUMBERS
            if after < before + _NUMBERS and len(found) < limit:
                with suppress(StoreUnavailable):
                    left, behind = limit - len(found), max(0, after - before)
                    rows = await server.outbox_rows(plan, after=behind, limit=left)
                    found += [row._replace(number=before + row.number) for row in rows]
        return found

    async def finish_export(self, plan: ExportPlan) -> None:
        server = self._exporting.get(plan.journal_id)
        if server is not None:
            await server.finish_export(plan)

    async def outbox_size(self) -> OutboxSize:
        sizes: list[OutboxSize] = []
        for server in self._by_number.values():
            with suppress(StoreUnavailable):  # what waits there is exported when it is back
                sizes.append(await server.outbox_size())
        return OutboxSize(
            sum(size.rows for size in sizes),
            sum(size.packed_bytes for size in sizes),
            min((size.oldest_ms for size in sizes if size.oldest_ms is not None), default=None),
            sum(size.lost_events for size in sizes),
        )

    # ---- the carrier

    def wake_carrier(self) -> None:
        """Messages came into a stand-in."""
        self._wakes_carrier.set()

    async def _carry_on(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CARRY_EVERY_S):
                    await self._wakes_carrier.wait()
            self._wakes_carrier.clear()
            for number, server in [*self._by_number.items()]:
                try:
                    if self._stand_ins(server) and await server.has_duty(_DUTY):
                        await self.carry(number)
                except VeilError as problem:
                    _log.debug("messages wait on server %d to be carried over: %s", number, problem)
                except Exception:
                    _log.exception("messages wait on server %d to be carried over", number)

    @staticmethod
    def _stand_ins(server: PostgresStore) -> list[Queue]:
        return [queue for queue in server.known_queues() if _is_stand_in(queue)]

    async def carry(self, number: int) -> int:
        """Carry everything in the stand-ins of a server to the real queues, and return the number of messages."""
        server, carried = self._by_number[number], 0
        await self._learn()
        for stand_in in self._stand_ins(server):
            target = await self._at(stand_in.key)
            real = None if target is None else await target.find_queue(stand_in.key)
            if target is None or real is None or _is_stand_in(real):
                continue  # deleted; its stand-ins go with it
            while True:
                # Their clock, read before the look: messages that appear later are at worst looked at again.
                seen_ms = target.clock.now_ms()
                messages = await server.peek(stand_in, limit=_CARRIED_AT_ONCE, bytes_max=_CARRIED_BYTES)
                if not messages:
                    break
                for origin in {key for message in messages if (key := origin_of(message)) is not None}:
                    await self._stand_in(target, origin)  # so that they can be redriven from there
                await target.adopt(real, messages, seen_ms=seen_ms)
                await server.dismiss(stand_in, messages)
                carried += len(messages)
            await target.forget_carried(real, number)
        return carried


class _ServerEvents:
    """Passes a server's events on: those of stand-ins to the carrier, all others to the owner of the store."""

    def __init__(self, store: ShardedStore, server: PostgresStore) -> None:
        self._store, self._server = store, server

    def _is_stand_in(self, queue_id: int) -> bool:
        known = self._server.known_queue(queue_id)
        return known is not None and _is_stand_in(known)

    def messages_available(self, queue_id: int, count: int) -> None:
        if self._is_stand_in(queue_id):
            self._store.wake_carrier()
        else:
            self._store.events.messages_available(queue_id, count)

    def counted(self, event: str, queue_id: int, count: int) -> None:
        self._store.events.counted(event, queue_id, count)

    def due_sooner(self) -> None:
        self._store.events.due_sooner()

    def troubled(self, trouble: Trouble) -> None:
        self._store.events.troubled(trouble)


class _Receipts(ReceiptBook):
    """Each server signs receipts with its own key."""

    __slots__ = ("_server",)

    def __init__(self, server_of_queue: Callable[[int], PostgresStore]) -> None:
        self._server = server_of_queue

    def write(self, queue_id: int, seq: int, holder: int) -> str:
        return self._server(queue_id).receipts.write(queue_id, seq, holder)

    def read(self, text: str, queue_id: int) -> Receipt:
        return self._server(queue_id).receipts.read(text, queue_id)

    def read_all(self, texts: Sequence[str], queue_id: int) -> list[Receipt]:
        return self._server(queue_id).receipts.read_all(texts, queue_id)
