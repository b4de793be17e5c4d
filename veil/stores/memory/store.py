"""The store in memory: the contract of `stores/store.py` on plain dicts; the package's text has the readings."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from veil.core.clock import Clock
from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.hold import HoldContent, HoldKey, HoldTally
from veil.core.lease import Deletion
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.core.receipt import Receipt, ReceiptBook
from veil.stores import queue_pages
from veil.stores.memory import holds, leases, moving, peeking, queues, receiving, sending
from veil.stores.memory.frame import Frame
from veil.stores.memory.operation import Operation
from veil.stores.memory.outbox import MemoryOutbox
from veil.stores.memory.shelves import Shelves
from veil.stores.outbox_bound import OUTBOX_BYTES_MAX
from veil.stores.silent_events import SilentEvents
from veil.stores.store import (
    Chosen,
    ExportPlan,
    Extension,
    OutboxRow,
    OutboxSize,
    QueueContent,
    Rotated,
    StoreEvents,
)


class MemoryStore:
    """Keeps the contract of a store, except that nothing outlives the process."""

    is_shared = False

    def __init__(
        self, clock: Clock, *, journal: bool = False, outbox_bytes_max: int = OUTBOX_BYTES_MAX
    ) -> None:
        self.store_id = secrets.token_hex(8)
        self.receipts = ReceiptBook(secrets.token_bytes(32))
        self.events: StoreEvents = SilentEvents()
        self._outbox = MemoryOutbox(outbox_bytes_max) if journal else None
        self._shelves = Shelves()
        self._frame = Frame(self._shelves, clock, self._outbox)

    def _operation(self) -> AbstractContextManager[Operation]:
        return self._frame.operation(self.events)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to let go of."""

    # ---- time

    def next_due_ms(self) -> int | None:
        """The next lapse, end of a delay, or expiry."""
        return self._shelves.next_due_ms()

    async def settle(self) -> None:
        """Let everything happen that is due by now, in every queue."""
        with self._operation():
            pass  # every operation settles first

    async def has_duty(self, duty: str) -> bool:
        """There is nobody else."""
        return True

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        """The queue of that key, or None."""
        shelf = self._shelves.of_key(key)
        return None if shelf is None else shelf.queue

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        """A new queue, or the one that already has the key."""
        with self._operation() as op:
            return queues.create(op, key, content, rest_ms)

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        """Apply a pure function to settings and tags."""
        with self._operation() as op:
            return queues.edit(op, queue, edit)

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        """Remove the queue and everything in it."""
        with self._operation() as op:
            queues.delete(op, queue, caller)

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        """Queues by rising name."""
        return queue_pages.listed(self._shelves.queues(), region, account, prefix, after, limit)

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        """The queues whose redrive policy names that key."""
        return queue_pages.dead_letter_sources(self._shelves.queues(), key, after, limit)

    async def all_queues(self) -> list[Queue]:
        """Every queue, oldest first."""
        return self._shelves.queues()

    # ---- messages

    async def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> list[Sent]:
        """Store the messages in order."""
        with self._operation() as op:
            return sending.send(op, queue, messages, retry_key, caller)

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        """Take up to `count` messages, without waiting."""
        with self._operation() as op:
            return receiving.receive(op, queue, count, visibility_s, attempt_id, caller)

    async def delete(
        self, queue: Queue, receipts: Sequence[Receipt], *, strict: bool = False, caller: Caller = NOBODY
    ) -> list[Deletion | VeilError]:
        """Delete by receipt, each on its own."""
        with self._operation() as op:
            return leases.delete(op, queue, receipts, strict, caller)

    async def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[VeilError | None]:
        """Change visibility by receipt, each on its own."""
        with self._operation() as op:
            return leases.extend(op, queue, extensions, caller)

    async def rotate(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[Rotated | VeilError]:
        """Change visibility and receipt, each on its own."""
        with self._operation() as op:
            return leases.rotate(op, queue, extensions, caller)

    async def undo_receive(
        self, queue: Queue, receipts: Sequence[Receipt], *, caller: Caller = NOBODY
    ) -> None:
        """Make the messages visible again and do not count the receive."""
        with self._operation() as op:
            leases.undo_receive(op, queue, receipts, caller)

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        """Remove every message and the deduplication history."""
        with self._operation() as op:
            queues.purge(op, queue, rest_ms, caller)

    async def counts(self, queue: Queue) -> QueueCounts:
        """How many messages are where, exactly, now."""
        with self._operation() as op:
            return peeking.counts(op, queue)

    async def oldest_sent_ms(self, queue: Queue) -> int | None:
        """Engine time at which the oldest visible message was sent."""
        with self._operation() as op:
            return peeking.oldest_sent_ms(op, queue)

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
        """Messages in whatever state by rising `seq`, without receiving them."""
        with self._operation() as op:
            return peeking.peek(
                op,
                queue,
                after_seq=after_seq,
                up_to_seq=up_to_seq,
                sent_after_ms=sent_after_ms,
                sent_before_ms=sent_before_ms,
                limit=limit,
                bytes_max=bytes_max,
            )

    async def peek_next(self, queue: Queue, *, limit: int = 100) -> list[StoredMessage]:
        """The messages that a receive would come to first, in its order."""
        with self._operation() as op:
            return peeking.peek_next(op, queue, limit)

    # ---- holds

    async def open_stream(self, queue: Queue, stream: str, owner: str) -> None:
        """Make `owner` the stream's owner."""
        with self._operation() as op:
            holds.open_stream(op, queue, stream, owner)

    async def receive_hold(
        self, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldContent:
        """What is under that name, taken now or before."""
        with self._operation() as op:
            return holds.receive(op, queue, key, count, visibility_s, caller)

    async def extend_holds(
        self, queue: Queue, stream: str, owner: str, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldTally:
        """A new deadline for every member of the stream's holds."""
        with self._operation() as op:
            return holds.extend(op, queue, stream, owner, visibility_s, caller)

    async def delete_holds(
        self, queue: Queue, stream: str, owner: str, *, up_to_batch: int, caller: Caller = NOBODY
    ) -> HoldTally:
        """Close the names up to that batch and delete what they hold."""
        with self._operation() as op:
            return holds.delete(op, queue, stream, owner, up_to_batch, caller)

    # ---- chosen redrives

    async def redrive(
        self, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
    ) -> list[Sent | VeilError]:
        """Move the chosen messages, each on its own."""
        with self._operation() as op:
            return moving.redrive(op, queue, chosen, caller)

    # ---- the journal

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        """The plan that was made and not finished, else a new one."""
        return None if self._outbox is None else self._outbox.plan(rows_max, bytes_max)

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        """Rows of the plan by rising number."""
        return [] if self._outbox is None else self._outbox.rows(plan, after, limit)

    async def finish_export(self, plan: ExportPlan) -> None:
        """Drop the rows of the plan, and the plan."""
        if self._outbox is not None:
            self._outbox.finish(plan)

    async def outbox_size(self) -> OutboxSize:
        """How much waits to be exported."""
        return OutboxSize(0, 0, None, 0) if self._outbox is None else self._outbox.size()

    # ---- move tasks

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        """Record a running task, with `to_move` counted now."""
        with self._operation() as op:
            return moving.start(op, task, caller)

    async def step_move(self, task_id: str, count: int) -> MoveTask:
        """Move up to `count` visible messages, oldest first, each to its destination as a new message."""
        with self._operation() as op:
            return moving.step(op, task_id, count)

    async def cancel_move(self, task_id: str) -> MoveTask:
        """Ask a running task to stop."""
        with self._operation() as op:
            return moving.cancel(op, task_id)

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        """The tasks of a source, newest first."""
        return [task for task in reversed(self._shelves.moves.values()) if task.source == source][:limit]

    async def active_moves(self) -> list[MoveTask]:
        """Every task that is not at its end, oldest first."""
        return [task for task in self._shelves.moves.values() if task.is_active]
