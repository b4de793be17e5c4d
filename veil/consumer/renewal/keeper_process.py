"""A keeper in a process of its own: for handlers that hold the interpreter for longer than a window."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from veil.client.api import ApiError, Failure
from veil.consumer.lease import Lease, LeaseLost, LeaseState, Settling
from veil.consumer.renewal import helper
from veil.consumer.renewal.helper import FromHelper, ToHelper, line, read_by_parent
from veil.consumer.renewal.keeper import Keeper, KeeperEvents, RenewalApi, promise, steady_s
from veil.consumer.renewal.policies import RenewalPolicy

_log = logging.getLogger(__name__)


# ---- the helper process

_FLUSH_CHECK_S = 0.2


class HelperPipe:
    """One helper process. `heard` is called from a thread of its own with each message, and with None at the end."""

    def __init__(
        self,
        api_factory: Callable[[], RenewalApi],
        policy: RenewalPolicy,
        heard: Callable[[HelperPipe, FromHelper | None], None],
    ) -> None:
        # A plain command, not multiprocessing: that would run the program's main module a second time. Modules of the
        # current directory are for what the program itself brings along (a policy of its own), if it looks there.
        here = os.path.realpath(os.curdir)
        elsewhere = [path for path in sys.path if path and os.path.realpath(path) != here]
        looks_here = [here] if len(elsewhere) < len(sys.path) else []
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-P", "-m", "veil.consumer.renewal.helper", *looks_here],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((*elsewhere, str(Path(__file__).parents[3])))},
        )
        assert self._process.stdin is not None
        self._fd = self._process.stdin.fileno()
        os.set_blocking(self._fd, False)
        self._heard = heard
        self._room = threading.Condition()
        self._backlog = bytearray()
        self._ended = False
        self._write(base64.b64encode(pickle.dumps((api_factory, policy))) + b"\n")
        self._reader = threading.Thread(target=self._listen, name="veil-helper-reader", daemon=True)
        self._writer = threading.Thread(target=self._flush, name="veil-helper-writer", daemon=True)
        self._reader.start()
        self._writer.start()

    @property
    def pid(self) -> int:
        """Of the helper."""
        return self._process.pid

    def say(self, message: ToHelper) -> None:
        """Written when this returns, unless the pipe is full: the next moment may belong to code that holds the GIL."""
        self._write(line(message))

    def close(self, timeout_s: float) -> None:
        """Wait for the helper to end, or end it."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end()
        for thread in (self._reader, self._writer):
            if thread is not threading.current_thread():
                thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, text: bytes) -> None:
        with self._room:
            if self._ended:
                return
            if not self._backlog:
                text = text[self._written(text) :]
            if text:
                self._backlog += text
                self._room.notify()

    def _written(self, text: bytes | bytearray) -> int:
        try:
            return os.write(self._fd, text)
        except BlockingIOError:
            return 0
        except OSError:  # it has ended; the reader will say so
            return len(text)

    def _flush(self) -> None:
        while True:
            with self._room:
                self._room.wait_for(lambda: self._backlog or self._ended)
                if self._ended:
                    return
            select.select([], [self._fd], [], _FLUSH_CHECK_S)
            with self._room:
                if not self._ended:
                    del self._backlog[: self._written(self._backlog)]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._heard(self, read_by_parent.decode(text))
        self._end()
        self._heard(self, None)

    def _end(self) -> None:
        with self._room:
            self._ended = True
            self._room.notify()


_CLOSE_TIMEOUT_S = 5.0
_RESTARTS_MAX = 5


class KeeperProcess(Keeper):
    """Keeps leases in a helper process, which ends with this one, and is started again should it die alone.

    The factory and the policy are pickled: the factory is a function of a module, or a `functools.partial` of one. The
    helper counts on the same host's monotonic clock. It also renews for a parent that hangs, up to the policy's maximum.
    """

    knows_at_once = False

    def __init__(
        self,
        api_factory: Callable[[], RenewalApi],
        policy: RenewalPolicy,
        *,
        events: KeeperEvents | None = None,
    ) -> None:
        self._api_factory, self._policy = api_factory, policy
        self._events = events or KeeperEvents()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._leases: dict[int, Lease] = {}
        self._by_lease: dict[Lease, int] = {}
        self._letting_go: dict[int, Future[None]] = {}
        self._changing: dict[int, tuple[Lease, Future[None]]] = {}
        self._pipe: HelperPipe | None = None
        self._ready = promise()
        self._restarts = 0
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Of the helper, once it has been started."""
        return None if self._pipe is None else self._pipe.pid

    async def start(self) -> None:
        """Start the helper; raises RuntimeError with its reason when it cannot work."""
        self._pipe = await asyncio.to_thread(HelperPipe, self._api_factory, self._policy, self._heard)
        await asyncio.wrap_future(self._ready)

    def hold(self, *leases: Lease) -> None:
        """Keep the leases from now on."""
        with self._lock:
            for lease in leases:
                if lease in self._by_lease or lease.noticed is not LeaseState.HELD:
                    continue
                if self._pipe is None:  # given up: it lasts as long as the receive made it
                    lease.lost_at_s = steady_s() + lease.visibility_s
                    continue
                if lease.control is None:
                    lease.control = self
                number = next(self._numbers)
                self._leases[number] = lease
                self._by_lease[lease] = number
                self._pipe.say(_hold(number, lease))

    def let_go(self, lease: Lease) -> Settling:
        """Send no renewal for the lease after this; settled when the helper has none under way either, and everything that
        it had to tell of this lease is known."""
        with self._lock:
            number = self._by_lease.pop(lease, None)
            if number is None or self._pipe is None:
                return Settling()
            # Still known by its number until the helper answers: a loss that it told of before must not go unheard.
            future = self._letting_go[number] = promise()
            self._pipe.say(helper.LetGo(number))
        return Settling(future)

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        """Set the window by hand."""
        done = promise()
        with self._lock:
            number = self._by_lease.get(lease)
            if number is None or self._pipe is None:
                done.set_exception(LeaseLost(lease.why or "the lease is over"))
            elif number in self._changing:
                done.set_exception(RuntimeError("the lease is being changed already"))
            else:
                self._changing[number] = (lease, done)
                self._pipe.say(helper.Change(number, visibility_s))
        return done

    async def close(self) -> None:
        """Stop the helper, and return once it has ended."""
        self._closing = True
        pipe = self._pipe
        if pipe is not None:
            pipe.say(helper.Close())
            await asyncio.to_thread(pipe.close, _CLOSE_TIMEOUT_S)

    # ---- in the reader's thread

    def _heard(self, pipe: HelperPipe, message: FromHelper | None) -> None:
        try:
            self._take(pipe, message)
        except Exception:
            _log.exception("renewal: whoever watches the keeper failed")

    def _take(self, pipe: HelperPipe, message: FromHelper | None) -> None:
        match message:
            case None:
                self._ended(pipe)
            case helper.Ready(problem):
                if not self._ready.done():
                    if problem:
                        self._closing = True
                        self._ready.set_exception(RuntimeError(f"the renewal helper cannot work: {problem}"))
                    else:
                        self._ready.set_result(None)
            case helper.HasLetGo(number):
                with self._lock:
                    self._leases.pop(number, None)
                    future = self._letting_go.pop(number, None)
                if future is not None:
                    future.set_result(None)
            case helper.HasChanged():
                self._changed(message)
            case helper.WasLate(by_s):
                self._events.late(by_s)
            case _:
                lease = self._leases.get(message.number)
                if lease is not None:
                    self._event(message, lease)

    def _event(
        self,
        message: helper.HasRenewed | helper.HasLost | helper.HasCapped | helper.HasWarned | helper.HasFailed,
        lease: Lease,
    ) -> None:
        match message:
            case helper.HasRenewed(_, visibility_s, deadline_s):
                lease.renewed(deadline_s)
                self._events.renewed(lease, visibility_s)
            case helper.HasLost(_, why):
                lease.lose(why)
                self._events.lost(lease, why)
            case helper.HasCapped(_, why):
                self._events.capped(lease, why)
            case helper.HasWarned(_, ends_at_s):
                lease.warn(ends_at_s)
                self._events.warned(lease, lease.ends_in_s or 0.0)
            case helper.HasFailed(_, failure, code, text, again):
                self._events.failed(lease, ApiError(failure, code, text), again)

    def _changed(self, message: helper.HasChanged) -> None:
        with self._lock:
            lease, done = self._changing.pop(message.number)
        if message.lost:
            lease.lose(message.lost)
            done.set_exception(LeaseLost(message.lost))
        elif message.failure is not None:
            done.set_exception(ApiError(message.failure, message.code, message.message))
        else:
            lease.by_hand = True
            if message.visibility_s:
                lease.renewed(message.deadline_s)
            else:
                lease.released = lease.end()
            done.set_result(None)

    def _ended(self, pipe: HelperPipe) -> None:
        """The helper is gone: start another one, and hand it what the first one held."""
        if not self._ready.done():
            self._closing = True
            self._ready.set_exception(RuntimeError("the renewal helper ended before it was ready"))
        with self._lock:
            waiting = list(self._letting_go.values())
            for number in self._letting_go:
                self._leases.pop(number, None)
            changing = [done for _, done in self._changing.values()]
            self._letting_go.clear()
            self._changing.clear()
        for future in waiting:
            future.set_result(None)
        for done in changing:
            done.set_exception(ApiError(Failure.UNREACHABLE, "", "the renewal helper has ended"))
        if self._closing:
            return
        pipe.close(_CLOSE_TIMEOUT_S)
        self._restarts += 1
        if self._restarts > _RESTARTS_MAX:
            self._give_up()
            return
        _log.error("renewal: the helper process has ended, starting another one")
        with self._lock:
            self._pipe = HelperPipe(self._api_factory, self._policy, self._heard)
            for number, lease in self._leases.items():
                self._pipe.say(_hold(number, lease))

    def _give_up(self) -> None:
        with self._lock:
            self._pipe = None
            leases = list(self._leases.values())
            self._leases.clear()
            self._by_lease.clear()
        why = f"the helper process that renews leases has ended {self._restarts} times"
        _log.critical("renewal: %s; nothing is renewed any more", why)
        for lease in leases:
            # Nobody would notice the end of its window.
            lease.lose(why)
            self._events.lost(lease, why)


def _hold(number: int, lease: Lease) -> helper.Hold:
    return helper.Hold(
        number=number,
        queue_url=lease.queue_url,
        message_id=lease.message_id,
        receipt=lease.receipt,
        received_at_s=lease.received_at_s,
        visibility_s=lease.visibility_s,
        deadline_s=lease.deadline_s,
        kind=lease.kind,
        by_hand=lease.by_hand,
        grace_s=lease.grace_s,
    )
