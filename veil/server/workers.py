"""The workers of a server, as the store process has them: started, handed connections, started again.

The store process accepts every connection and hands it to the worker that has the fewest. So a connection that waits to be
accepted survives any worker, the workers are equally loaded, and a stop begins with one process that accepts no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, cast

from veil.core.clock import Clock, LeaseTime, TroubleKind
from veil.core.errors import VeilError
from veil.core.queue import QueueKey
from veil.journal.helper_process import module_path
from veil.server.attendant import STORE_PROCESS, Attendant, SharedStore
from veil.server.http import listening
from veil.server.metrics import Metrics
from veil.server.settings import Settings
from veil.server.worker import WORKER_PROCESS, SharedPage, WorkerConfig
from veil.service.service import Service
from veil.stores.remote import Link
from veil.wire.exchange import AnswerCounts, Handler
from veil.wire.sigv4 import AccessKey

_log = logging.getLogger(__name__)

_START_S: Final = 60.0
# A worker that has not said within this time that it forgot a queue hangs: it must not go by what the queue was.
_ANSWER_S: Final = 5.0
# A worker that hangs takes no renewals, so no lease lapses meanwhile; one that hangs for so many looks is ended.
_LOOK_S: Final = 0.25
_UNHEARD_MAX: Final = 40
_ACCEPT_AT_ONCE: Final = 64
_AFTER_NO_FILES_S: Final = 1.0
# After a worker that died young: doubled from one such death to the next.
_RESTART_S: Final = 0.1
_RESTART_MAX_S: Final = 5.0
_YOUNG_S: Final = 5.0


class WorkersFailed(VeilError):
    """A worker did not start; the text says why."""


class _WorkerProcess:
    def __init__(
        self,
        place: int,
        process: asyncio.subprocess.Process,
        connections: socket.socket,
        attendant: Attendant,
    ) -> None:
        self.place, self.process, self.connections, self.attendant = place, process, connections, attendant
        self.link: Link
        self.handed = 0  # connections
        self.is_replaced = False  # it was asked to go: another takes its place
        self.is_leaving = False  # it finishes what it has begun
        self.is_gone = asyncio.Event()
        self.unheard = 0  # looks since it was asked whether it is there
        self.born_s = asyncio.get_running_loop().time()


class Listener:
    """A port whose connections go to the workers; stands where one process has an HttpServer."""

    def __init__(self, workers: Workers, place: int) -> None:
        self._workers, self._place = workers, place
        self._sockets: list[socket.socket] = []

    async def start(self, host: str, port: int, *, tls: object = None) -> None:
        """Listen on every address of the host; nothing is accepted before a worker is there."""
        self._sockets = await listening(host, port)

    @property
    def address(self) -> tuple[str, int]:
        host, port, *_ = self._sockets[0].getsockname()
        return host, port

    def watch(self, watched: bool) -> None:
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            if watched:
                loop.add_reader(each, self._accept, each)
            else:
                loop.remove_reader(each)

    def close_sockets(self) -> None:
        self.watch(False)
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                _log.error("connections cannot be accepted: %s", problem.strerror)
                self.watch(False)
                asyncio.get_running_loop().call_later(_AFTER_NO_FILES_S, self._workers.watch)
                return
            self._workers.hand_over(connection, self._place)


class Workers:
    def __init__(
        self, settings: Settings, service: Service, keys: dict[str, AccessKey], clock: Clock, metrics: Metrics,
        handle: Handler, answers: AnswerCounts,
    ) -> None:  # fmt: skip
        self._settings, self._service, self._keys, self._clock = settings, service, keys, clock
        self._metrics, self.handle, self.answers = metrics, handle, answers
        self.listeners = [Listener(self, place) for place in range(1 if settings.smq_port is None else 2)]
        self._ready: dict[int, _WorkerProcess] = {}  # by place
        self._page_file = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process runs
        # Twice as many as workers: one that is asked to go has its numbers until it is gone, and another takes over before.
        self._places = 2 * settings.workers
        self._page = SharedPage(self._page_file.fileno(), self._places)
        self._is_stopping = False
        self._is_served = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_look: asyncio.TimerHandle | None = None
        self.restarts = 0
        self.connections_max = self.refused_max = 0
        cast(SharedStore, service.store).forget = self._forget_queue

    @property
    def connection_count(self) -> int:
        return self._page.total(SharedPage.CONNECTIONS)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._ready.values()]

    def unsent_bytes(self) -> int:
        return sum([worker.link.unsent_bytes for worker in self._ready.values()])

    async def start(self, connections_max: int, refused_max: int) -> None:
        """Return when every worker serves; raises WorkersFailed."""
        self.connections_max, self.refused_max = connections_max, refused_max
        await asyncio.gather(*(self._start(place) for place in range(self._settings.workers)))
        self._look()

    async def reload(self) -> None:
        """Tell the workers the keys that count from now on, and to look at their certificate."""
        await self._ask_all("reload", list(self._keys.values()))

    async def metrics_page(self, by_queue: bool) -> bytes:
        for worker, counts in await self._ask_all("count"):
            worker.attendant.counted(counts)
        return await self._metrics.page(by_queue)

    async def stop(self, grace_s: float, down: str) -> None:
        """Accept no more, let the workers finish what they have begun within the grace, and end them."""
        self._is_stopping = True
        if self._next_look is not None:
            self._next_look.cancel()
        for listener in self.listeners:
            listener.close_sockets()
        workers = list(self._ready.values())
        await asyncio.gather(*(self._end(worker, grace_s, down) for worker in workers))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- connections

    def watch(self) -> None:
        """Accept connections while there is somebody to hand them to; while there is nobody, no lease lapses."""
        is_served = any(not worker.is_leaving for worker in self._ready.values())
        for listener in self.listeners:
            listener.watch(is_served)
        if is_served is not self._is_served:
            self._is_served = is_served
            if is_served:
                self._lease_time.answered(self)
            else:
                self._lease_time.waits(self, TroubleKind.RESTART)

    def hand_over(self, connection: socket.socket, listener: int) -> None:
        """Give an accepted connection to the worker that has the fewest."""
        with connection:
            for worker in sorted(self._ready.values(), key=self._load):
                if worker.is_leaving:
                    continue
                try:
                    socket.send_fds(worker.connections, [bytes([listener])], [connection.fileno()])
                except OSError:  # it is busy, or has just died
                    continue
                worker.handed += 1
                return
            _log.warning("a connection was closed: no worker could take it")

    def _load(self, worker: _WorkerProcess) -> int:
        # By what we have done, and not by what it has come to: it may have answered a client before it can note that it has it.
        return worker.handed - self._page.get(worker.place, SharedPage.GONE)

    # ---- asking

    async def _ask_all(self, name: str, *given: Any) -> list[tuple[_WorkerProcess, Any]]:
        """What every worker answers; one that does not is ended, and another started in its place."""
        workers = list(self._ready.values())
        answers = await asyncio.gather(*(self._ask(worker, name, *given) for worker in workers))
        return [
            (worker, answer) for worker, answer in zip(workers, answers, strict=True) if answer is not worker
        ]

    async def _ask(self, worker: _WorkerProcess, name: str, *given: Any) -> Any:
        try:
            return await asyncio.wait_for(worker.link.ask(name, *given), _ANSWER_S)
        except TimeoutError:
            self._end_hanging(worker)
        except VeilError:
            pass  # it has died, and is started again
        return worker

    def _look(self) -> None:
        """Ask every worker whether it is there. Counted in looks: where this process stood still, they are not to blame."""
        for worker in self._ready.values():
            worker.unheard += 1
            if worker.unheard == 1:
                self._lease_time.waits(worker, TroubleKind.PAUSED)
                worker.link.ask("ready").add_done_callback(partial(self._heard, worker))
            elif worker.unheard == _UNHEARD_MAX:
                self._end_hanging(worker)
        self._next_look = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    @property
    def _lease_time(self) -> LeaseTime:
        return cast(LeaseTime, cast(Any, self._service.store).lease_time)

    def _heard(self, worker: _WorkerProcess, answer: asyncio.Future[None]) -> None:
        answer.exception()  # it has died: that is seen elsewhere
        worker.unheard = 0
        self._lease_time.answered(worker)

    @staticmethod
    def _end_hanging(worker: _WorkerProcess) -> None:
        _log.error("worker %d does not answer: it is ended", worker.process.pid)
        _kill(worker.process)

    async def _forget_queue(self, key: QueueKey) -> None:
        await self._ask_all("forget_queue", key)

    # ---- lives

    async def _start(self, place: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            ours, theirs = socket.socketpair()
            connections, their_connections = socket.socketpair()
            with theirs, their_connections:
                fds = (theirs.fileno(), their_connections.fileno(), self._page_file.fileno())
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", "from veil.server.worker import main; main()",
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=fds,
                    start_new_session=True,  # Ctrl-C in the terminal is for us, who let the workers finish
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(module_path())},
                )  # fmt: skip
        except OSError as problem:
            raise WorkersFailed(f"a worker cannot be started: {problem.strerror}") from None
        assert process.stdin is not None
        store, told = self._service.store, dict(self._keys)
        config = WorkerConfig(
            self._settings, told, self._clock, store.receipts, store.store_id, place, self._places,
            self.connections_max, self.refused_max, *fds,
        )  # fmt: skip
        process.stdin.write(pickle.dumps(config))
        process.stdin.close()
        connections.setblocking(False)
        attendant = Attendant(self._service, self.handle, self.metrics_page, self.answers)
        worker = _WorkerProcess(place, process, connections, attendant)
        attendant.on_leaving = lambda: self._replace(worker)
        self._page.clear(place)
        _, worker.link = await loop.create_connection(
            lambda: Link(
                WORKER_PROCESS,
                STORE_PROCESS,
                attendant,
                find_queue=self._service.store.find_queue,
                is_owner=True,
                on_lost=lambda: self._lost(worker),
            ),
            sock=ours,
        )
        try:
            await asyncio.wait_for(worker.link.ask("ready"), _START_S)
        except (TimeoutError, VeilError):
            _kill(process)
            raise WorkersFailed(f"a worker did not start (exit {await process.wait()})") from None
        while told != self._keys:  # a key may have been taken away while it started
            told = dict(self._keys)
            await self._ask(worker, "reload", list(told.values()))
        self._ready[place] = worker
        self.watch()

    def _replace(self, worker: _WorkerProcess) -> None:
        """The worker was asked to go: once another serves in its place, let it finish what it has begun."""
        if worker.is_replaced or worker.is_leaving or self._ready.get(worker.place) is not worker:
            return
        worker.is_replaced = True
        _log.info("worker %d was asked to stop: another takes its place", worker.process.pid)
        self._in_background(self._replaced(worker))

    async def _replaced(self, worker: _WorkerProcess) -> None:
        place = (worker.place + self._settings.workers) % self._places
        if (before := self._ready.get(place)) is not None:  # it was asked to go too, and has not finished
            await before.is_gone.wait()
        await self._start_again(place, 0)
        if not self._is_stopping:
            await self._end(worker, self._settings.stop_grace_s, "stopping")

    def _lost(self, worker: _WorkerProcess) -> None:
        worker.attendant.lost()
        worker.connections.close()
        self._page.clear(worker.place)
        if self._ready.get(worker.place) is worker:
            del self._ready[worker.place]
            worker.is_gone.set()
            self.watch()
            if not worker.is_replaced and not worker.is_leaving:
                self._in_background(self._bury(worker))

    async def _bury(self, worker: _WorkerProcess) -> None:
        code = await worker.process.wait()
        lived_s = asyncio.get_running_loop().time() - worker.born_s
        self.restarts += 1
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        _log.error("worker %d died (%s): another is started", worker.process.pid, how)
        await self._start_again(worker.place, _RESTART_S if lived_s < _YOUNG_S else 0)

    async def _start_again(self, place: int, delay_s: float) -> None:
        while not self._is_stopping:
            await asyncio.sleep(delay_s)
            try:
                await self._start(place)
                return
            except WorkersFailed as problem:
                _log.error("%s", problem)
                delay_s = min(2 * delay_s or _RESTART_S, _RESTART_MAX_S)

    async def _end(self, worker: _WorkerProcess, grace_s: float, down: str) -> None:
        if worker.is_leaving:  # it is being ended already
            await worker.process.wait()
            return
        worker.is_leaving = True
        self.watch()
        # A long poll may be longer than the grace.
        halfway = asyncio.get_running_loop().call_later(grace_s / 2, worker.attendant.end_polls)
        with contextlib.suppress(TimeoutError, VeilError):
            await asyncio.wait_for(worker.link.ask("stop", grace_s, down), grace_s + _ANSWER_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.process.wait(), _ANSWER_S)
        halfway.cancel()
        _kill(worker.process)
        await worker.process.wait()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
