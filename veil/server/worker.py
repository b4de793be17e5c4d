"""A worker of `veil serve --workers N`: HTTP, signatures, protocols and policies in a process of its own.

The store process starts it, hands it connections that it has accepted, and does the operations of the store for it
(`stores/remote.py`). What is of the whole server is there: the line of long polls, the console, the metrics, move tasks, the
holders of leases. A worker has its connections, and the queues that it knows of. It ends with the store process.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import pickle
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import uvloop

from veil.core.clock import Clock
from veil.core.message import Caller, StoredMessage
from veil.core.queue import MoveTask, Queue, QueueKey
from veil.core.receipt import ReceiptBook
from veil.server.application import make_applications, service_rules
from veil.server.attendant import STORE_PROCESS, RelayedAnswer, WorkerCounts
from veil.server.http import HttpServer
from veil.server.http_limits import Capacity, HttpLimits
from veil.server.process import EXIT_STORE_FAILED, begin_process, configure_logging, settle_down
from veil.server.settings import Settings
from veil.server.tls import Tls
from veil.service.background import MoveRunners
from veil.service.history import QueueDepth
from veil.service.receive import give_back
from veil.service.service import ReceiveRequest, Service
from veil.stores.remote import Link, RemoteStore, methods_of
from veil.wire.exchange import AnswerCounts, Request, Response
from veil.wire.sigv4 import AccessKey

_COUNT_EVERY_S: Final = 1.0


class WorkerConfig(NamedTuple):
    """What a worker is told at its start, on stdin."""

    settings: Settings
    keys: dict[str, AccessKey]
    clock: Clock  # engine time is the store's
    receipts: ReceiptBook
    store_id: str
    place: int  # its row in the page
    places: int  # in the page
    connections_max: int
    refused_max: int
    link_fd: int
    connections_fd: int
    page_fd: int


# ---- limits of the whole server


class SharedPage:
    """Numbers that every process of the server can read: a row for each worker, written by that worker alone."""

    GONE, CONNECTIONS, SEATS, HELD_BYTES = range(4)  # connections that were, and that are
    _COLUMNS: Final = 4

    def __init__(self, fd: int, places: int) -> None:
        size = places * self._COLUMNS * 8
        os.ftruncate(fd, size)
        self._numbers = memoryview(mmap.mmap(fd, size)).cast("q")

    def get(self, worker: int, column: int) -> int:
        return self._numbers[worker * self._COLUMNS + column]

    def set(self, worker: int, column: int, value: int) -> None:
        self._numbers[worker * self._COLUMNS + column] = value

    def total(self, column: int) -> int:
        return sum(self._numbers[column :: self._COLUMNS])

    def add(self, worker: int, column: int) -> None:
        self._numbers[worker * self._COLUMNS + column] += 1

    def clear(self, worker: int) -> None:
        """The worker is gone, with all that it had."""
        for column in range(self._COLUMNS):
            self.set(worker, column, 0)


def _own_number(column: int) -> Any:
    def get(capacity: SharedCapacity) -> int:
        return capacity.page.get(capacity.place, column)

    def set_(capacity: SharedCapacity, value: int) -> None:
        capacity.page.set(capacity.place, column, value)

    return property(get, set_)


class SharedCapacity(Capacity):
    """What the listeners of all workers have together."""

    connection_count = _own_number(SharedPage.CONNECTIONS)
    seats_taken = _own_number(SharedPage.SEATS)
    held_bytes = _own_number(SharedPage.HELD_BYTES)

    def __init__(self, limits: HttpLimits, page: SharedPage, place: int) -> None:
        self.page, self.place = page, place
        super().__init__(limits)

    def lose(self) -> None:
        self.page.add(self.place, SharedPage.GONE)
        super().lose()

    def is_full(self) -> bool:
        return self.page.total(SharedPage.SEATS) >= self.connections_max

    def has_room_for(self, size_bytes: int) -> bool:
        return self.page.total(SharedPage.HELD_BYTES) + size_bytes <= self.held_bytes_max

    def overrun(self) -> bool:
        total = self.page.total
        return total(SharedPage.CONNECTIONS) - total(SharedPage.SEATS) > self.refused_max


# ---- what the store process does in a worker's place


class _MovesElsewhere(MoveRunners):
    """The store process carries move tasks out from the moment it has started one."""

    def run(self, task: MoveTask) -> None:
        pass


# ---- the process


class Worker:
    """Serves the connections that it is handed, until it is told to stop."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        settings = self._settings = config.settings
        self._keys = config.keys
        self._tls = Tls(settings) if settings.tls_cert is not None else None
        self._ended = asyncio.Event()
        self._link: Link
        self._polls = itertools.count(1)
        self._delivering: list[int] = []
        self._adopting: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        config, settings = self._config, self._settings
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._link.tell("leaving"))
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # for the store process, which tells us
        # Its operations are made from the contract.
        self._store = RemoteStore(config.receipts, config.store_id)  # type: ignore[abstract]
        _, self._link = await loop.create_connection(
            lambda: Link(STORE_PROCESS, WORKER_PROCESS, self, on_lost=_leave_at_once),
            sock=socket.socket(fileno=config.link_fd),
        )
        self._store.link = self._link
        self._service = service = Service(self._store, config.clock, service_rules(settings))
        service.moves = _MovesElsewhere(self._store, config.clock, service.time_slices, ())
        service.owner = self
        self._answers = AnswerCounts()
        self._application, smq = make_applications(
            settings,
            service,
            self._keys,
            self._answers,
            partial(self._link.ask, "metrics_page"),
            self._relay,
            relay=self._relay,
        )
        self._page = SharedPage(config.page_fd, config.places)
        capacity = SharedCapacity(settings.http, self._page, config.place)
        capacity.connections_max, capacity.refused_max = config.connections_max, config.refused_max
        handlers = [self._application.handle] if smq is None else [self._application.handle, smq]
        self._servers = [HttpServer(handler, settings.http, capacity) for handler in handlers]
        for server in self._servers:
            server.open(tls=None if self._tls is None else self._tls.current)
        self._application.down = None
        watching = None if self._tls is None else loop.create_task(self._tls.watch())
        self._connections = socket.socket(fileno=config.connections_fd)
        self._connections.setblocking(False)
        loop.add_reader(self._connections, self._adopt)
        self._count_again()
        settle_down()
        await self._ended.wait()
        if watching is not None:
            watching.cancel()
        await service.stop()

    # ---- what the store process asks

    async def ready(self) -> None:
        """Answered once connections may come."""

    async def forget_queue(self, key: QueueKey) -> None:
        """The queue has changed: what is known of it is no longer true."""
        self._store.forget_queue(key)

    async def count(self) -> WorkerCounts:
        """What was counted since the last time."""
        tallies = [(*key, count) for key, count in self._service.tallies.items()]
        answers = [(*key, count) for key, count in self._answers.items()]
        self._service.tallies.clear()
        self._answers.clear()
        return WorkerCounts(tallies, answers)

    async def reload(self, keys: list[AccessKey]) -> None:
        """These keys count from now on, and the certificate that is in its file."""
        if self._tls is not None:
            self._tls.reload("SIGHUP")
        # In place: the verifier looks keys up in this very mapping.
        self._keys.clear()
        self._keys.update({key.key_id: key for key in keys})

    async def stop(self, grace_s: float, down: str) -> None:
        """Finish what is under way, within the grace; answered when it is done."""
        self._application.down = down
        self._adopt()  # what was accepted before this
        self._loop.remove_reader(self._connections)
        await asyncio.gather(*self._adopting, return_exceptions=True)
        await asyncio.gather(*(server.close(grace_s) for server in self._servers))
        self._link.tell("counted", await self.count())
        self._loop.call_soon(self._ended.set)

    # ---- connections

    def _adopt(self) -> None:
        """Take the connections that wait for us: one byte each, which listener they came by."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._connections, 1, 1)
            except BlockingIOError:
                return
            if not data:  # the store process is gone, and so will we be
                self._loop.remove_reader(self._connections)
                return
            for fd in fds:
                task = self._loop.create_task(self._servers[data[0]].adopt(_connection(fd)))
                self._adopting.add(task)
                task.add_done_callback(self._adopted)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        self._adopting.discard(task)
        if task.cancelled() or task.exception() is not None:  # a client that has gone already
            self._page.add(self._config.place, SharedPage.GONE)

    # ---- the owner of the store, as our service has it (Owner)

    async def long_poll(self, queue: Queue, wanted: ReceiveRequest) -> list[StoredMessage]:
        poll = next(self._polls)
        answer = self._link.ask("long_poll", queue, poll, wanted)
        try:
            messages: list[StoredMessage] = await asyncio.shield(answer)
            return messages
        except asyncio.CancelledError:
            self._link.tell("end_poll", poll)
            answer.add_done_callback(lambda late: self._give_back(queue, late, wanted.caller))
            raise

    def _give_back(self, queue: Queue, late: asyncio.Future[list[StoredMessage]], caller: Caller) -> None:
        if not late.cancelled() and late.exception() is None:
            give_back(self._service, queue, late.result(), caller=caller)

    async def delivering(self, seq: int) -> None:
        # Before the client has the answer, not after: whoever died in between would have what is with the client received by
        # somebody else.
        if not self._delivering:
            self._loop.call_soon(self._tell_delivering)
        self._delivering.append(seq)
        await asyncio.sleep(0)  # told
        await asyncio.sleep(0)  # and out of this process: some loops write at the end of a turn only

    def _tell_delivering(self) -> None:
        seqs, self._delivering = self._delivering, []
        self._link.tell("delivering", seqs)
        self._link.flush()

    async def queue_depths(self, queues: Sequence[Queue], *, with_oldest: bool) -> dict[int, QueueDepth]:
        depths: dict[int, QueueDepth] = await self._link.ask("queue_depths", list(queues), with_oldest)
        return depths

    # ---- of the whole server

    async def _relay(self, request: Request) -> Response:
        answer: RelayedAnswer = await self._link.ask(
            "relay", request.method, request.path, request.query, request.headers, request.body, request.peer
        )
        stream = None if answer.stream is None else self._stream(answer.stream)
        return Response(answer.status, answer.body, answer.content_type, answer.headers, stream=stream)

    async def _stream(self, stream: int) -> AsyncIterator[bytes]:
        try:
            while (piece := await self._link.ask("next_piece", stream)) is not None:
                yield piece
        finally:
            self._link.tell("end_stream", stream)

    def _count_again(self) -> None:
        if self._service.tallies or self._answers:
            self._loop.create_task(self._tell_counts())
        self._loop.call_later(_COUNT_EVERY_S, self._count_again)

    async def _tell_counts(self) -> None:
        self._link.tell("counted", await self.count())


# What the store process asks of a worker.
_ASKED: Final = ("ready", "forget_queue", "count", "reload", "stop")
WORKER_PROCESS: Final = methods_of(type("WorkerProcess", (), {name: vars(Worker)[name] for name in _ASKED}))


def _connection(fd: int) -> socket.socket:
    connection = socket.socket(fileno=fd)
    connection.setblocking(False)
    return connection


def _leave_at_once() -> NoReturn:
    # Without a store there is nothing to answer with, and nothing to wait for.
    os._exit(EXIT_STORE_FAILED)


def main() -> None:
    """Run a worker; the store process has written its configuration to stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the store process
    config: WorkerConfig = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own parent
    configure_logging(config.settings.log_level, config.settings.log_format)
    begin_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Worker(config).serve())
