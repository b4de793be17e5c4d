"""What the store process does for its workers: the operations of the store, with what the service notes of them.

An attendant is a worker's end of the link in the store process. What it handed its worker is noted until the worker says that it
answers the client now; if it dies first, the messages are given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from veil.core.event import NOBODY
from veil.core.message import Caller, StoredMessage
from veil.core.queue import MoveTask, Queue, QueueKey
from veil.core.receipt import Receipt
from veil.service.history import QueueDepth, queue_depths
from veil.service.messages import note_deletions, note_extensions, note_rotations, note_sends, purge
from veil.service.moves import cancel_move
from veil.service.queues import delete_queue
from veil.service.receive import delete_holds, extend_holds, long_poll, note_receive, receive_hold, undo
from veil.service.service import ReceiveRequest, Service
from veil.stores.remote import STORE_CONTRACTS, ServedStore, methods_of
from veil.stores.store import QueueContent, Store, StoreEvents
from veil.wire.exchange import AnswerCounts, Handler, Request


class SharedStore(ServedStore):
    """The store of a server with workers: they have forgotten what changes before anybody is told of the change."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.forget: Callable[[QueueKey], Coroutine[Any, Any, None]] | None = None

    @property
    def events(self) -> StoreEvents:
        return self._store.events

    @events.setter
    def events(self, events: StoreEvents) -> None:
        self._store.events = events

    @asynccontextmanager
    async def _forgotten(self, key: QueueKey) -> AsyncIterator[None]:
        """However the change ends: who asked meanwhile was told of it, and it may have come to nothing."""
        try:
            yield
        finally:
            if self.forget is not None:
                await self.forget(key)

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        async with self._forgotten(key):
            return await self._store.create_queue(key, content, rest_ms=rest_ms)

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        async with self._forgotten(queue.key):
            return await self._store.edit_queue(queue, edit)

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        async with self._forgotten(queue.key):
            await self._store.delete_queue(queue, caller=caller)


class RelayedAnswer(NamedTuple):
    """An answer of the store process to a client; a stream is asked for piece by piece."""

    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...]
    stream: int | None


class WorkerCounts(NamedTuple):
    """What was counted since the last time."""

    tallies: list[tuple[str, int, int]]  # event, queue id, count
    answers: list[tuple[str, int, int]]  # action, class of status, count


_HandedMessage = tuple[int, int, int | None]  # seq, delivery, when it was received


class StoreProcess(ServedStore):
    """What a worker asks of the store process, besides the operations of the store."""

    def __init__(
        self,
        service: Service,
        handle: Handler,
        metrics_page: Callable[[bool], Awaitable[bytes]],
        answers: AnswerCounts,
    ) -> None:
        """`handle` answers what is relayed, `metrics_page` is the whole server's, whose answers are counted in `answers`."""
        super().__init__(service.store)
        self._service, self._answers = service, answers
        self._handle, self._metrics_page = handle, metrics_page
        # By the first message's seq. Not the messages, whose bodies would be kept; and each its receipt, which costs more, only
        # where it is needed.
        self._undelivered: dict[int, tuple[Queue, list[_HandedMessage], Caller]] = {}
        self._polls: dict[int, asyncio.Task[Any]] = {}
        self._streams: dict[int, AsyncIterator[bytes]] = {}
        self._reading: dict[int, asyncio.Task[Any]] = {}  # whoever waits for a stream's next piece
        self._stream_count = 0
        self._is_lost = False
        self.on_leaving: Callable[[], None] = lambda: None

    def leaving(self) -> None:
        """Take my place from now on, and let me finish what I have begun."""
        self.on_leaving()

    # ---- receives

    async def long_poll(self, queue: Queue, poll: int, wanted: ReceiveRequest) -> list[StoredMessage]:
        """Receive in the line of all workers; `poll` names it for `end_poll`."""
        task = asyncio.current_task()
        assert task is not None
        self._polls[poll] = task
        try:
            messages = await long_poll(self._service, queue, wanted)
        except asyncio.CancelledError:
            return []
        finally:
            del self._polls[poll]
        return self._handed(queue, messages, wanted.visibility_s, wanted.caller)

    def end_poll(self, poll: int) -> None:
        """The client has gone: answer the poll now, with nothing if it can be."""
        # In the next turn: a poll that came in the same read begins only then.
        asyncio.get_running_loop().call_soon(self._cancel_poll, poll)

    def _cancel_poll(self, poll: int) -> None:
        if poll in self._polls:
            self._polls[poll].cancel()

    def _handed(
        self, queue: Queue, messages: list[StoredMessage], visibility_s: int | None, caller: Caller
    ) -> list[StoredMessage]:
        service = self._service
        note_receive(service, queue, messages, visibility_s, caller)
        if messages:
            handed = [(message.seq, message.delivery, message.received_at_ms) for message in messages]
            if self._is_lost:
                self._give_back(queue, handed, caller)
            else:
                self._undelivered[messages[0].seq] = (queue, handed, caller)
        return messages

    def _give_back(self, queue: Queue, handed: list[_HandedMessage], caller: Caller) -> None:
        receipts = [Receipt(queue.id, seq, delivery) for seq, delivery, _ in handed]
        opened_ms = [received_at_ms for _, _, received_at_ms in handed]
        self._service.in_background(undo(self._service, queue, receipts, opened_ms, caller))

    def delivering(self, seqs: list[int]) -> None:
        """The receives whose first messages these are get their answers now."""
        for seq in seqs:
            self._undelivered.pop(seq, None)

    # ---- of the whole server

    async def relay(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes, peer: str
    ) -> RelayedAnswer:
        """The answer to a request about what only the store process knows: the console, and who holds what."""
        answer = await self._handle(Request(method, path, query, headers, body, peer))
        stream = None
        if answer.stream is not None:
            stream = self._stream_count = self._stream_count + 1
            self._streams[stream] = answer.stream
        return RelayedAnswer(answer.status, answer.body, answer.content_type, answer.headers, stream)

    async def next_piece(self, stream: int) -> bytes | None:
        """The next piece of a stream; None at its end."""
        pieces, task = self._streams.get(stream), asyncio.current_task()
        if pieces is None or task is None:
            return None
        self._reading[stream] = task
        try:
            return await anext(pieces, None)
        except asyncio.CancelledError:
            return None
        finally:
            del self._reading[stream]

    def end_stream(self, stream: int) -> None:
        """Nobody reads the stream any more."""
        reading, pieces = self._reading.get(stream), self._streams.pop(stream, None)
        if reading is not None:
            reading.cancel()  # which ends the stream as well
        elif isinstance(pieces, AsyncGenerator):
            self._service.in_background(pieces.aclose())

    async def metrics_page(self, by_queue: bool) -> bytes:
        return await self._metrics_page(by_queue)

    async def queue_depths(self, queues: list[Queue], with_oldest: bool) -> dict[int, QueueDepth]:
        return await queue_depths(self._service, queues, with_oldest=with_oldest)

    def counted(self, counts: WorkerCounts) -> None:
        for event, queue_id, count in counts.tallies:
            self._service.tallies[event, queue_id] += count
        for action, status_class, count in counts.answers:
            self._answers[action, status_class] += count


# Operations of the store with what takes note of them; and those that the service has under the same name.
_NOTED: Final[dict[str, Callable[..., None]]] = {
    "send": note_sends,
    "delete": note_deletions,
    "extend": note_extensions,
    "rotate": note_rotations,
}
_OF_THE_SERVICE: Final = (receive_hold, extend_holds, delete_holds, delete_queue, cancel_move)
STORE_PROCESS: Final = methods_of(*STORE_CONTRACTS, StoreProcess)


class Attendant(StoreProcess):
    """Does for one worker what it asks: of the operations of the store those with something of the service beside them."""

    def __init__(self, service: Service, *given: Any) -> None:
        super().__init__(service, *given)
        for name, note in _NOTED.items():
            setattr(self, name, partial(self._noted, getattr(service.store, name), note))
        for operation in _OF_THE_SERVICE:
            setattr(self, operation.__name__, partial(operation, service))
        self._receive = service.store.receive  # looked up through two stores otherwise, each time

    def end_polls(self) -> None:
        """Answer every long poll now, with nothing if it can be."""
        for poll in self._polls.values():
            poll.cancel()

    def lost(self) -> None:
        """The worker is gone: give back what it had not answered."""
        self._is_lost = True
        self.end_polls()
        for received in self._undelivered.values():
            self._give_back(*received)
        self._undelivered.clear()
        for stream in list(self._streams):
            self.end_stream(stream)

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        messages = await self._receive(
            queue, count, visibility_s=visibility_s, attempt_id=attempt_id, caller=caller
        )
        return self._handed(queue, messages, visibility_s, caller)

    async def undo_receive(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        opened_ms: Sequence[int | None] | None = None,
        caller: Caller = NOBODY,
    ) -> None:
        if receipts:
            self._undelivered.pop(receipts[0].seq, None)
        await undo(self._service, queue, receipts, opened_ms, caller)

    async def _noted(
        self,
        do: Callable[..., Awaitable[list[Any]]],
        note: Callable[..., None],
        queue: Queue,
        given: Sequence[Any],
        **named: Any,
    ) -> list[Any]:
        """What an operation comes to, of which the service takes note."""
        outcomes = await do(queue, given, **named)
        note(self._service, queue, given, outcomes, **named)
        return outcomes

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        await purge(self._service, queue, caller=caller)

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        started = await self._store.start_move(task, caller=caller)
        self._service.moves.run(started)
        return started
