"""The store of another process: the contract of `stores/store.py` over a local socket, for `veil serve --workers`.

Both ends are a `Link`. What can be asked over it is a contract, a class whose methods have annotated signatures; how arguments
and results are written follows from these, so a new operation of the store needs nothing here. What comes about in one turn
of the event loop leaves in one write, in both directions. Errors travel as themselves.

Three things do not travel. A queue is named by its id and key, and the other end uses it as it stands there. The edit of a queue,
a function, is called on this side, and what it comes to is sent. And time stays with the store's owner: a remote store has
nothing due, for its owner settles it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Final, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from veil.core.attempt import NOTHING_REPORTED, ReportedOutcome
from veil.core.errors import QueueMissing, StoreError, StoreFailed, VeilError
from veil.core.event import NOBODY
from veil.core.lease import Deletion, Extension
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import Queue, QueueKey, QueueSettings
from veil.core.receipt import Receipt, ReceiptBook
from veil.stores.store import NoEvents, QueueContent, Store, StoreEvents

_log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct("<IIH")  # bytes that follow, the number of the call, what it is
_BLANK: Final = bytes(_HEAD.size)
_ANSWER, _ERROR, _FIRST_METHOD = range(3)
# A turn of the loop may have hundreds of them: the other end, on another core, need not wait for the last. With 16 there are a
# tenth fewer requests a second on two cores; with 2 as many as with 4, for twice as many writes.
_FRAMES_AT_ONCE: Final = 4
# Beyond this the store's owner reads nothing more from a worker that does not take its answers. A worker always reads: if both
# could stop, each would wait for the other. What it has for the store is bounded by what its clients may send.
_UNSENT_BYTES_MAX: Final = 32 << 20
_QUEUES_KNOWN_MAX: Final = 10_000
_READ_BYTES: Final = 1 << 18


# ---- what is written


class QueueRef(NamedTuple):
    """Which queue is meant; a name may be used again, an id never is."""

    id: int
    key: QueueKey


class _WrittenError(msgspec.Struct):
    """An error as it travels: its class by name, its text, and what it knows."""

    name: str
    text: list[str]
    facts: dict[str, Any]

    def read(self) -> VeilError:
        kind = _error_classes().get(self.name, StoreError)
        error = kind.__new__(kind)
        error.args = tuple(self.text)
        vars(error).update(self.facts)
        return error


@cache
def _error_classes() -> dict[str, type[VeilError]]:
    # Members of the family that stand outside core.errors.
    import veil.core.policy  # noqa: F401

    found: dict[str, type[VeilError]] = {}
    unseen: list[type[VeilError]] = [VeilError]
    while unseen:
        kind = unseen.pop()
        found[kind.__name__] = kind
        unseen += kind.__subclasses__()
    return found


def _unknown_to_msgspec(value: Any) -> Any:
    if isinstance(value, VeilError):
        return _WrittenError(type(value).__name__, [str(each) for each in value.args], vars(value))
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)  # what an error knows of a value that was refused


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_unknown_to_msgspec)


def _written(hint: Any) -> Any:
    """The type as it travels."""
    if hint is Queue:
        return QueueRef
    if hint is VeilError:
        return _WrittenError
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, [_written(each) for each in get_args(hint)])
    return hint


class Method:
    """One operation of a contract, and how it travels."""

    def __init__(self, kind: int, function: Callable[..., Any]) -> None:
        self.kind, self.name = kind, function.__name__
        hints = get_type_hints(function)
        result = hints["return"]
        self.answers = inspect.iscoroutinefunction(function)
        self.gives_future = get_origin(result) is Awaitable  # without a coroutine of its own
        if self.gives_future:
            self.answers, (result,) = True, get_args(result)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.names = tuple(each.name for each in parameters)
        self.defaults = tuple(each.default for each in parameters)
        self.positional = sum(each.kind is not each.KEYWORD_ONLY for each in parameters)
        self.keywords = self.names[self.positional :]
        self.on_queue = bool(parameters) and hints[parameters[0].name] is Queue
        types = tuple(_written(hints[each.name]) for each in parameters)
        self.read_given = msgspec.msgpack.Decoder(tuple[types] if types else tuple[()]).decode  # type: ignore[valid-type]
        # A list in which refusals stand in their places.
        has_refusals = get_origin(result) is list and VeilError in get_args(get_args(result)[0])
        if has_refusals:
            result = list[_written(get_args(result)[0])]  # type: ignore[misc]
        self._read = msgspec.msgpack.Decoder(result).decode
        # What the call came to.
        self.read_result: Callable[[memoryview], Any] = self._read_list if has_refusals else self._read

    def given(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call in the order of the parameters."""
        first = len(given)
        all_given = [*given, *map(named.get, self.names[first:], self.defaults[first:])]
        if self.on_queue:
            all_given[0] = (all_given[0].id, all_given[0].key)
        return all_given

    def _read_list(self, written: memoryview) -> list[Any]:
        result: list[Any] = self._read(written)
        # Nearly always they are all alike: done.
        if result and type(result[0]) is not _WrittenError and result.count(result[0]) == len(result):
            return result
        return [each.read() if type(each) is _WrittenError else each for each in result]


def methods_of(*contracts: type) -> tuple[Method, ...]:
    """What can be asked over a link: the public methods of the contracts, in their order."""
    functions = [
        each
        for contract in contracts
        for name, each in vars(contract).items()
        if inspect.isfunction(each) and not name.startswith("_")
    ]
    return tuple(Method(kind, each) for kind, each in enumerate(functions, _FIRST_METHOD))


# ---- the link

# They wait for futures of the store and for nothing else, so they need no task.
_WAIT_FOR_FUTURES: Final = frozenset(("find_queue", "send", "receive", "delete", "extend", "rotate"))


class _TasklessCall:
    """A coroutine that is resumed by the callbacks of the futures it awaits. A task of asyncio's, which is registered and can be
    cancelled, costs as much as the rest of the link does."""

    __slots__ = ("_loop", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
        self._loop, self._work = loop, work
        self._go_on()

    def _go_on(self, _: object = None) -> None:
        try:
            future = self._work.send(None)
        except StopIteration:
            return
        if future is None:  # a bare turn of the loop
            self._loop.call_soon(self._go_on)
        else:
            future._asyncio_future_blocking = False
            future.add_done_callback(self._go_on)


class Link(asyncio.Protocol):
    """One end of a socket between two processes, each of which may ask the other."""

    def __init__(
        self,
        asks: Sequence[Method],
        offers: Sequence[Method],
        handler: object,
        *,
        find_queue: Callable[[QueueKey], Awaitable[Queue | None]] | None = None,
        is_owner: bool = False,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`handler` has a method for each of the offers; `is_owner` for the end that has the store; `on_lost` is called when the
        other end is gone."""
        self._asks = {method.name: method for method in asks}
        self._offers = {method.kind: (method, getattr(handler, method.name)) for method in offers}
        self._find_queue = find_queue
        self._is_owner = is_owner
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[asyncio.Future[Any], Method]] = {}
        self._number = 0
        self._out = bytearray()
        self._frames = 0  # in it
        self._rest = bytearray()  # of a frame that has not arrived whole
        self._needed = 0
        self._unread: int | None = None  # the owner's second file descriptor of the socket
        self._running: set[asyncio.Task[None]] = set()
        self.is_lost = False

    # ---- asking

    def ask(self, name: str, *given: Any, **named: Any) -> asyncio.Future[Any]:
        """What the other end answers; raises what it raised, and StoreFailed where it is gone."""
        return self.ask_in_order(name, self._asks[name].given(given, named))

    def ask_in_order(self, name: str, given: Sequence[Any]) -> asyncio.Future[Any]:
        """`ask`, with all arguments in the order of the parameters, and a queue as its QueueRef."""
        method = self._asks[name]
        future = self._loop.create_future()
        if self.is_lost:
            future.set_exception(StoreFailed("the other process is gone"))
            return future
        self._number = number = self._number + 1 & 0xFFFFFFFF
        self._write(number, method.kind, given)
        self._waiting[number] = (future, method)
        return future

    def tell(self, name: str, *given: Any) -> None:
        """Let the other end know; nothing is answered."""
        if not self.is_lost:
            self._write(0, self._asks[name].kind, given)

    @property
    def unsent_bytes(self) -> int:
        """What the other end has not taken yet."""
        return 0 if self.is_lost else len(self._out) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """End the link from this side; nobody is told that it is lost."""
        self._on_lost = lambda: None
        if self._unread is not None:
            os.close(self._unread)
            self._unread = None
        self.flush()
        self._transport.close()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        if self._is_owner:
            self._unread = os.dup(transport.get_extra_info("socket").fileno())

    def pause_writing(self) -> None:
        if self._is_owner:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._is_owner:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        unread, self._unread = self._unread, None
        if unread is not None:
            self._read_to_the_end(unread)
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(StoreFailed("the other process is gone"))
        self._on_lost()

    def _read_to_the_end(self, descriptor: int) -> None:
        """A write to a worker that has just died ends the transport, whatever the worker had said before and is not read yet."""
        with socket.socket(fileno=descriptor) as end, suppress(OSError):
            while data := end.recv(_READ_BYTES):
                self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest = bytearray()
        at, end, view = 0, len(data), memoryview(data)
        self._needed = _HEAD.size
        while end - at >= _HEAD.size:
            length, number, kind = _HEAD.unpack_from(data, at)
            start = at + _HEAD.size
            if start + length > end:
                self._needed = _HEAD.size + length
                break
            at = start + length
            self._take(number, kind, view[start:at])
        self._rest += view[at:]

    # ---- frames

    def _take(self, number: int, kind: int, written: memoryview) -> None:
        if kind >= _FIRST_METHOD:
            method, call = self._offers[kind]
            given = method.read_given(written)
            if not method.answers:
                call(*given)
            elif method.name in _WAIT_FOR_FUTURES:
                _TasklessCall(self._loop, self._run(number, method, call, given))
            else:
                task = self._loop.create_task(self._run(number, method, call, given))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            return
        future, method = self._waiting.pop(number)
        if future.done():  # whoever asked has gone away
            return
        if kind == _ANSWER:
            future.set_result(method.read_result(written))
        else:
            future.set_exception(_read_error(written).read())

    async def _run(
        self, number: int, method: Method, call: Callable[..., Awaitable[Any]], given: Sequence[Any]
    ) -> None:
        try:
            if method.on_queue:
                given = (await self._queue_of(given[0]), *given[1:])
            if method.keywords:
                first = method.positional
                named = dict(zip(method.keywords, given[first:], strict=True))
                result = await call(*given[:first], **named)
            else:
                result = await call(*given)
        except VeilError as refusal:
            self._write(number, _ERROR, refusal)
        except Exception as error:
            _log.exception("%s failed", method.name)
            self._write(number, _ERROR, StoreError(f"{method.name} failed: {error!r}"))
        else:
            self._write(number, _ANSWER, result)

    async def _queue_of(self, ref: QueueRef) -> Queue:
        assert self._find_queue is not None, "this end knows no queues"
        queue = await self._find_queue(ref.key)
        # One that is gone gets no settings: whatever is asked of it, the store says QueueMissing.
        return queue if queue is not None and queue.id == ref.id else Queue(ref.id, ref.key, QueueSettings())

    def _write(self, number: int, kind: int, value: Any) -> None:
        if self.is_lost:
            return
        out = self._out
        start = len(out)
        out += _BLANK
        try:
            _encoder.encode_into(value, out, -1)
        except BaseException:
            del out[start:]
            raise
        _HEAD.pack_into(out, start, len(out) - start - _HEAD.size, number, kind)
        self._frames += 1
        if start == 0:
            self._loop.call_soon(self.flush)
        elif self._frames >= _FRAMES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write at the end of this turn of the loop what would be written at the end of the next."""
        if self._out and not self.is_lost:
            out, self._out, self._frames = self._out, bytearray(), 0
            self._transport.write(out)


_read_error: Final = msgspec.msgpack.Decoder(_WrittenError).decode


# ---- the store


class ContentChanged(StoreError):
    """The queue is not any more what an edit was made from."""


class ServedStore:
    """The other end of a remote store: a store, and in another form the operation that takes a function."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def swap_content(self, queue: Queue, present: QueueContent, new: QueueContent) -> Queue:
        """`edit_queue`, once the edit is made; raises ContentChanged where it was made from something else."""

        def edit(content: QueueContent) -> QueueContent:
            if content != present:
                raise ContentChanged
            return new

        edited: Queue = await self.edit_queue(queue, edit)
        return edited


_NOT_ASKED: Final = (
    "open", "close", "begin_serving", "end_serving", "next_due_ms", "trouble_at", "edit_queue", "share_heard",
)  # fmt: skip
_OPERATIONS: Final = type(
    "Operations", (), {name: each for name, each in vars(Store).items() if name not in _NOT_ASKED}
)
STORE_CONTRACTS: Final = (_OPERATIONS, ServedStore)
STORE_METHODS: Final = methods_of(*STORE_CONTRACTS)


class RemoteStore(Store):
    """The store behind a link. What it knows of queues stays true: the other end has it forget a queue before a change of
    that queue is answered to anybody."""

    is_shared = False
    events: StoreEvents

    def __init__(self, receipts: ReceiptBook, store_id: str) -> None:
        self.receipts, self.store_id = receipts, store_id
        self.events = NoEvents()
        self._queues: dict[QueueKey, Queue] = {}
        self.link: Link  # given before the first operation

    async def close(self) -> None:
        self.link.close()

    def next_due_ms(self) -> int | None:
        return None

    async def find_queue(self, key: QueueKey) -> Queue | None:
        queue = self._queues.get(key)
        if queue is None:
            queue = await self.link.ask("find_queue", key)
            if queue is not None:
                if len(self._queues) >= _QUEUES_KNOWN_MAX:
                    self._queues.clear()
                self._queues[key] = queue
        return queue

    def forget_queue(self, key: QueueKey) -> None:
        """The queue has changed, or is gone."""
        self._queues.pop(key, None)

    # Those of nearly every request are written out: to put arguments into their order by name is a third of asking.

    def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> Awaitable[list[Sent]]:
        return self.link.ask_in_order("send", ((queue.id, queue.key), messages, retry_key, caller))

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        given = ((queue.id, queue.key), count, visibility_s, attempt_id, caller)
        messages: list[StoredMessage] = await self.link.ask_in_order("receive", given)
        return messages

    def delete(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        strict: bool = False,
        caller: Caller = NOBODY,
        reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
    ) -> Awaitable[list[Deletion | VeilError]]:
        return self.link.ask_in_order("delete", ((queue.id, queue.key), receipts, strict, caller, reported))

    def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> Awaitable[list[VeilError | None]]:
        return self.link.ask_in_order("extend", ((queue.id, queue.key), extensions, caller))

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        while True:
            present: Queue | None = await self.link.ask("find_queue", queue.key)
            if present is None or present.id != queue.id:
                raise QueueMissing(queue.name)
            content = QueueContent(present.settings, dict(present.tags))
            try:
                edited: Queue = await self.link.ask("swap_content", queue, content, edit(content))
            except ContentChanged:
                continue
            return edited


def _remote(method: Method) -> Callable[..., Any]:
    name = method.name

    def ask(self: RemoteStore, *given: Any, **named: Any) -> asyncio.Future[Any]:
        return self.link.ask(name, *given, **named)

    async def await_answer(self: RemoteStore, *given: Any, **named: Any) -> Any:
        return await self.link.ask(name, *given, **named)

    return ask if method.gives_future else await_answer


for _method in STORE_METHODS:
    if _method.name not in vars(RemoteStore):
        setattr(RemoteStore, _method.name, _remote(_method))
