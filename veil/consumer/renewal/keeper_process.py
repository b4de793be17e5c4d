"""A keeper in a process of its own, for handlers that hold the interpreter for longer than a window; and that process.

The helper renews what its parent holds, also while the parent's interpreter stands still. It goes on by itself as long as the
parent lives and says nothing else. It ends with the parent, however that ends: the messages are not handled any more then,
and their windows must run out.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.consumer.lease import Lease, LeaseLost, LeaseStatus, Settling
from veil.consumer.renewal.keeper import Keeper, KeeperEvents, LeaseKeeper, promise, steady_s
from veil.consumer.renewal.policies import RenewalPolicy

_log = logging.getLogger(__name__)

# What the two say to each other over the helper's stdin and stdout is one JSON array a line, of what and then of facts. Leases
# go by numbers; instants are monotonic seconds, which are the same in every process of a host.
#
#     to the helper     hold NUMBER DEADLINE BY_HAND FACTS · let_go NUMBER · change NUMBER SECONDS · close
#     from the helper   ready PROBLEM · let_go NUMBER · changed NUMBER SECONDS DEADLINE LOST ERROR · and the events of its keeper
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(list[Any]).decode


# What the helper makes its own lease of.
_FACTS = ("queue_url", "message_id", "receipt", "received_at_s", "visibility_s", "kind", "grace_s")

# ---- in the parent

_FLUSH_CHECK_S = 0.2


class HelperPipe:
    """One helper process. `heard` is called from a thread of its own with each message, and with None at the end."""

    def __init__(
        self,
        needs: bytes,
        heard: Callable[[HelperPipe, list[Any] | None], None],
    ) -> None:
        # A plain command, not multiprocessing: that would run the program's main module a second time. Modules of the
        # current directory are for what the program itself brings along (a policy of its own), if it looks there.
        here = os.path.realpath(os.curdir)
        elsewhere = [path for path in sys.path if path and os.path.realpath(path) != here]
        looks_here = [here] if len(elsewhere) < len(sys.path) else []
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-P", "-m", "veil.consumer.renewal.keeper_process", *looks_here],
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
        self._write(needs + b"\n")
        self._reader = threading.Thread(target=self._listen, name="veil-helper-reader", daemon=True)
        self._writer = threading.Thread(target=self._flush, name="veil-helper-writer", daemon=True)
        self._writer.start()
        self._reader.start()  # the last: it may hear at once that the helper has ended, and then waits for the other's end

    @property
    def pid(self) -> int:
        """Of the helper."""
        return self._process.pid

    def say(self, *message: object) -> None:
        """Written when this returns, unless the pipe is full: the next moment may belong to code that holds the GIL."""
        self._write(_encode(message) + b"\n")

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
            if text.endswith(b"\n"):  # what it was about to say when it was killed, it has not said
                self._heard(self, _decode(text))
        self._end()
        self._heard(self, None)

    def _end(self) -> None:
        with self._room:
            self._ended = True
            self._room.notify()


_CLOSE_TIMEOUT_S = 5.0
_RESTARTS_MAX, _RESTARTS_WITHIN_S = 5, 3_600.0


class KeeperProcess(Keeper):
    """Keeps leases in a helper process, which ends with this one, and is started again should it die alone.

    The factory and the policy are pickled: the factory is a function of a module, or a `functools.partial` of one; RuntimeError
    where that cannot be done. The helper counts on the same host's monotonic clock. It also renews for a parent that hangs, up
    to the policy's maximum.
    """

    knows_at_once = False

    def __init__(
        self,
        make_api: Callable[[], SqsClient],
        policy: RenewalPolicy,
        *,
        events: KeeperEvents | None = None,
    ) -> None:
        try:
            self._needs = base64.b64encode(pickle.dumps((make_api, policy)))
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise RuntimeError(f"the renewal helper cannot work: {problem}") from None
        self._events = events or KeeperEvents()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._leases: dict[int, Lease] = {}
        self._letting_go: dict[int, Future[None]] = {}
        self._changing: dict[int, tuple[Lease, Future[None]]] = {}
        self._pipe: HelperPipe | None = None
        self._ready = promise()
        self._started_again_s: list[float] = []  # when, lately
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Of the helper, once it has been started."""
        return None if self._pipe is None else self._pipe.pid

    async def start(self) -> None:
        """Start the helper; raises RuntimeError with its reason when it cannot work."""
        self._pipe = await asyncio.to_thread(HelperPipe, self._needs, self._heard)
        await asyncio.wrap_future(self._ready)

    def hold(self, *leases: Lease) -> None:
        with self._lock:
            for lease in leases:
                if lease.number in self._leases or lease.noticed is not LeaseStatus.HELD:
                    continue
                if self._pipe is None:  # given up: it lasts as long as the receive made it
                    lease.lost_at_s = steady_s() + lease.visibility_s
                    continue
                if lease.control is None:
                    lease.control = self
                number = lease.number = next(self._numbers)
                self._leases[number] = lease
                self._pipe.say("hold", number, *_told(lease))

    def let_go(self, *leases: Lease) -> Settling:
        heard = []
        with self._lock:
            for lease in leases:
                if self._pipe is not None and self._is_held(lease):
                    # Still known by its number until the helper answers: a loss that it has reported before must not be missed.
                    future = self._letting_go[lease.number] = promise()
                    heard.append(future)
                    self._pipe.say("let_go", lease.number)
        return Settling(*heard)

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        done = promise()
        with self._lock:
            if self._pipe is None or not self._is_held(lease):
                done.set_exception(LeaseLost(lease.why or "the lease is over"))
            elif lease.number in self._changing:
                done.set_exception(RuntimeError("the lease is being changed already"))
            else:
                self._changing[lease.number] = (lease, done)
                self._pipe.say("change", lease.number, visibility_s)
        return done

    def _is_held(self, lease: Lease) -> bool:
        return lease.number in self._leases and lease.number not in self._letting_go

    async def close(self) -> None:
        self._closing = True
        pipe = self._pipe
        if pipe is not None:
            pipe.say("close")
            await asyncio.to_thread(pipe.close, _CLOSE_TIMEOUT_S)

    # ---- in the reader's thread

    def _heard(self, pipe: HelperPipe, message: list[Any] | None) -> None:
        try:
            self._take(pipe, message)
        except Exception:
            _log.exception("renewal: an observer of the keeper failed")

    def _take(self, pipe: HelperPipe, message: list[Any] | None) -> None:
        match message:
            case None:
                self._ended(pipe)
            case ["ready", problem]:
                if not self._ready.done():
                    if problem:
                        self._closing = True
                        self._ready.set_exception(RuntimeError(f"the renewal helper cannot work: {problem}"))
                    else:
                        self._ready.set_result(None)
            case ["let_go", number]:
                with self._lock:
                    self._leases.pop(number, None)
                    future = self._letting_go.pop(number, None)
                if future is not None:
                    future.set_result(None)
            case ["changed", number, *facts]:
                self._changed(number, *facts)
            case ["late", by_s]:
                self._events.late(by_s)
            case [event, number, *facts] if (lease := self._leases.get(number)) is not None:
                self._event(lease, event, *facts)

    def _event(self, lease: Lease, name: str, *facts: Any) -> None:
        if name == "renewed":
            lease.renewed(facts[1])
            facts = facts[:1]
        elif name == "lost":
            lease.lose(*facts)
        elif name == "warned":
            lease.warn(*facts)
            facts = (lease.ends_in_s or 0.0,)
        elif name == "failed":
            facts = (_error(*facts[0]), facts[1])
        self._events.happened(name, lease, *facts)

    def _changed(
        self, number: int, visibility_s: int, deadline_s: float, lost: str | None, error: list[str] | None
    ) -> None:
        with self._lock:
            lease, done = self._changing.pop(number)
        if lost is not None:
            lease.lose(lost)
            done.set_exception(LeaseLost(lost))
        elif error is not None:
            done.set_exception(_error(*error))
        else:
            lease.changed_by_hand(visibility_s, deadline_s)
            done.set_result(None)

    def _ended(self, pipe: HelperPipe) -> None:
        """The helper is gone: start another one, and hand it what the first one held."""
        if not self._ready.done():
            self._closing = True
            self._ready.set_exception(RuntimeError("the renewal helper ended before it was ready"))
        if not self._closing:
            pipe.close(_CLOSE_TIMEOUT_S)
        problem = ""
        # Under one lock: a lease that was let go in between would be held by the next helper for ever.
        with self._lock:
            waiting = list(self._letting_go.values())
            for number in self._letting_go:
                self._leases.pop(number, None)
            changing = [done for _, done in self._changing.values()]
            self._letting_go.clear()
            self._changing.clear()
            if not self._closing:
                problem = self._start_again()
        for future in waiting:
            future.set_result(None)
        for done in changing:
            done.set_exception(ApiError(Failure.UNREACHABLE, "", "the renewal helper has ended"))
        if problem:
            self._give_up(problem)

    def _start_again(self) -> str:
        """Start another helper for the leases that are held; why that cannot be done, if it cannot."""
        now_s = steady_s()
        self._started_again_s = [at_s for at_s in self._started_again_s if now_s - at_s < _RESTARTS_WITHIN_S]
        if len(self._started_again_s) >= _RESTARTS_MAX:
            return f"the helper process that renews leases has ended {_RESTARTS_MAX + 1} times within an hour"
        _log.error("renewal: the helper process has ended, starting another one")
        self._started_again_s.append(now_s)
        try:
            self._pipe = HelperPipe(self._needs, self._heard)
        except OSError as error:  # no memory for it, perhaps, which is what the first one died of
            return f"the helper process that renews leases cannot be started again: {error}"
        for number, lease in self._leases.items():
            if lease.noticed is LeaseStatus.HELD:
                self._pipe.say("hold", number, *_told(lease))
        return ""

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._pipe = None
            leases = list(self._leases.values())
            self._leases.clear()
        _log.critical("renewal: %s; nothing is renewed any more", why)
        for lease in leases:
            # Without a keeper the end of its window would go unnoticed.
            lease.lose(why)
            self._events.lost(lease, why)


def _told(lease: Lease) -> tuple[object, ...]:
    return lease.deadline_s, lease.by_hand, {name: getattr(lease, name) for name in _FACTS}


def _error(failure: str, code: str, message: str) -> ApiError:
    return ApiError(Failure(failure), code, message)


# ---- in the helper

_PARENT_CHECK_S = 0.5


class KeeperHelper(KeeperEvents):
    """The parent's leases by number, and a keeper for them, whose events go to the parent."""

    def __init__(
        self, make_api: Callable[[], SqsClient], policy: RenewalPolicy, tell: Callable[..., None]
    ) -> None:
        self.keeper = LeaseKeeper(make_api, policy, events=self)
        self._tell = tell
        self._leases: dict[int, Lease] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, what: str, number: int, *facts: Any) -> None:
        """Do what the parent says."""
        if what == "hold":
            self._hold(number, *facts)
        elif what == "let_go":
            self._spawn(self._let_go(number))
        else:
            self._spawn(self._change(number, *facts))

    def _hold(self, number: int, deadline_s: float, by_hand: bool, facts: dict[str, Any]) -> None:
        lease = Lease(**facts, token=0, monotonic=steady_s)
        lease.by_hand, lease.number = by_hand, number
        if deadline_s != lease.deadline_s:  # an earlier helper has renewed it
            lease.renewed(deadline_s)
        self._leases[number] = lease
        self.keeper.hold(lease)

    async def _let_go(self, number: int) -> None:
        lease = self._leases.pop(number, None)
        if lease is not None:
            await self.keeper.let_go(lease)
        self._tell("let_go", number)

    async def _change(self, number: int, visibility_s: int) -> None:
        lease = self._leases.get(number)
        deadline_s, lost, error = 0.0, None, None
        try:
            if lease is None:
                raise LeaseLost("the lease is over")
            await asyncio.wrap_future(self.keeper.change(lease, visibility_s))
            deadline_s = lease.deadline_s
        except LeaseLost as problem:
            lost = str(problem)
        except ApiError as problem:
            error = _in_words(problem)
        self._tell("changed", number, visibility_s, deadline_s, lost, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def late(self, by_s: float) -> None:
        self._tell("late", by_s)

    def happened(self, name: str, lease: Lease, *facts: Any) -> None:
        if name == "renewed":
            facts = (*facts, lease.deadline_s)
        elif name == "lost":
            self._leases.pop(lease.number, None)
        elif name == "warned":
            facts = (steady_s() + facts[0],)
        elif name == "failed":
            facts = (_in_words(facts[0]), facts[1])
        self._tell(name, lease.number, *facts)


def _in_words(problem: Exception) -> tuple[str, str, str]:
    if isinstance(problem, ApiError):
        return problem.failure.value, problem.code, problem.message
    return Failure.UNREACHABLE.value, "", repr(problem)


async def _serve(heard_fd: int, told_fd: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(heard_fd, "rb", 0))
    # The transport keeps what the parent does not read: a parent that stands still must not stop us too.
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(told_fd, "wb", 0))

    def tell(*message: object) -> None:
        transport.write(_encode(message) + b"\n")

    parent = os.getppid()
    try:
        # Our own parent wrote it, through a pipe that no other process has.
        make_api, policy = pickle.loads(base64.b64decode(await reader.readline()))  # noqa: S301
        helper = KeeperHelper(make_api, policy, tell)
        await helper.keeper.start()
    except Exception as problem:
        tell("ready", f"{type(problem).__name__}: {problem}")
        transport.close()
        return
    # The end of the pipe may be held open by a fork of the parent that outlives it.
    orphaned = loop.create_task(_watch(parent))
    tell("ready", "")
    while text := await reader.readline():
        message = _decode(text)
        if message == ["close"]:
            orphaned.cancel()
            await helper.keeper.close()
            transport.close()
            return
        helper.hear(*message)
    os._exit(0)  # the parent is gone: not one renewal more


async def _watch(parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(_PARENT_CHECK_S)
    os._exit(0)


def main() -> None:
    """Talk on stdin and stdout until the parent is done, or gone; arguments are directories to look for modules in last."""
    sys.path += sys.argv[1:]
    # Signals to the whole group are for the parent, who needs us most while it drains.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    heard_fd, told_fd = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # whatever prints must not talk to the parent
    asyncio.run(_serve(heard_fd, told_fd))


if __name__ == "__main__":
    main()
