"""Renews leases on an event loop, or in a thread with a loop of its own: the ledger says what is due, this sends it."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, Protocol

from veil.client.api import ApiError, Failure, RetryBackoff
from veil.client.blocking import LoopThread
from veil.client.client import SqsClient, with_retries
from veil.consumer.lease import Lease, LeaseLost, LeaseStatus, Settling
from veil.consumer.renewal.ledger import DueRenewal, LeaseEvent, Ledger
from veil.consumer.renewal.policies import RenewalPolicy
from veil.core.clock import Timer

_log = logging.getLogger(__name__)


# ---- common to all keepers


class KeeperEvents:
    """What a keeper tells of its work, from its own thread; override what is of interest. Must return quickly."""

    def happened(self, name: str, lease: Lease, *facts: Any) -> None:
        """One of the events of a lease below, by its name."""
        getattr(self, name)(lease, *facts)

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        """The service granted a window of that length."""

    def late(self, by_s: float) -> None:
        """The keeper woke so much later than planned: the interpreter was held, the process or the machine stopped."""

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        """A try to renew failed; `again` when there is time for another."""

    def lost(self, lease: Lease, why: str) -> None:
        """Another consumer has, or may have, the message; its handler has been told."""

    def capped(self, lease: Lease, why: str) -> None:
        """The lease cannot be renewed any more; it lasts until its deadline."""

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        """Renewal ends for good in so many seconds; the handler has been told."""


class Keeper(Protocol):
    """Keeps leases alive from `hold` to `let_go`. Both may be called from any thread, and never block."""

    # Whether a loss is on the lease the moment the keeper learns of it. From a helper process it has to travel, and
    # is only known once `let_go` has settled.
    knows_at_once: bool = True

    async def start(self) -> None:
        """Be ready to hold; raises what keeps it from working."""

    def hold(self, *leases: Lease) -> None:
        """Keep the leases from now on: call it at once for everything that was received."""

    def let_go(self, *leases: Lease) -> Settling:
        """Send no renewal for the leases after this; settled when none is under way either.

        Await it, then ask `lease.end()` whether the lease was kept, then delete or release. A renewal that overtook a release
        would hide the message again; and a loss that is on its way from a helper process is known only then.
        """

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        """Set the window by hand, for `lease.extend` and `lease.release`; from then on the keeper leaves the lease alone."""

    async def close(self) -> None:
        """Stop, and cut off calls under way; what is still held is renewed no more."""


# ---- clock

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


# Seconds that neither a step of the wall clock nor a suspended machine bends; the same in every process of a host.
# `time.monotonic` stands still on Linux while the machine is suspended, and the queue's clock does not: counted on it, a lease
# would look alive after a night in a closed laptop. Use one clock for receiving, leases and keeper. Not a function of its own:
# it is read several times for each message.
steady_s: Callable[[], float] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)


# The loop's own clock stands still while the machine is suspended: without a look now and then, a timer of a minute would
# notice a night's sleep a minute after waking up.
_SLEEP_MAX_S = 1.0
_LATE_S = 0.5
_BY_HAND_TRIES, _BY_HAND_TIMEOUT_S = 5, 5.0
_BY_HAND_BACKOFF = RetryBackoff(first_s=0.3, max_s=0.3, jitter=2 / 3)


CallLater = Callable[[float, Callable[[], None]], Timer]


class LeaseKeeper(Keeper):
    """Keeps leases on the event loop that started it, by a client that is made there and closed with it."""

    def __init__(
        self,
        make_api: Callable[[], SqsClient],
        policy: RenewalPolicy,
        *,
        monotonic: Callable[[], float] = steady_s,
        events: KeeperEvents | None = None,
        random: Random | None = None,
        call_later: CallLater | None = None,
    ) -> None:
        self._make_api = make_api
        self._api: SqsClient | None = None
        self._monotonic = monotonic
        self._events = events or KeeperEvents()
        self._random = random or Random()  # noqa: S311 - spreads retries, guards nothing
        self._ledger = Ledger(policy, self._random)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._call_later = call_later  # None: the event loop's
        self._timer: Timer | None = None
        self._planned_s = math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        self._api = self._make_api()
        self._loop = asyncio.get_running_loop()
        self._call_later = self._call_later or self._loop.call_later
        self._thread = threading.get_ident()
        self._plan()

    def hold(self, *leases: Lease) -> None:
        for lease in leases:
            if lease.control is None:
                lease.control = self
        with self._lock:
            self._ledger.hold(leases, self._monotonic())
            earlier = self._ledger.next_s() < self._planned_s
        # Usually not: the keeper looks every second anyway, and waking another thread's loop costs a system call.
        if earlier:
            self._call(self._plan)

    def let_go(self, *leases: Lease) -> Settling:
        ended = []
        with self._lock:
            for held in self._ledger.let_go(leases, self._monotonic()):
                held.waiting.append(future := promise())
                ended.append(future)
            events = self._ledger.events()
        self._apply(events)
        return Settling(*ended)

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        done = promise()
        if not self._call(self._begin_change, lease, visibility_s, done):
            done.set_exception(_closed())
        return done

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._api is not None:
            await self._api.close()

    # ---- waking

    def _call(self, call: Callable[..., None], *arguments: Any) -> bool:
        """On the keeper's own loop, from wherever; False when there is none (any more)."""
        if self._loop is None:
            return False
        if threading.get_ident() == self._thread:
            call(*arguments)
            return True
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # it has been closed
            return False
        return True

    def _plan(self) -> None:
        if self._closed or self._call_later is None:
            return
        now_s = self._monotonic()
        with self._lock:
            next_s = min(self._ledger.next_s(), now_s + _SLEEP_MAX_S) if self._ledger else math.inf
            if next_s == self._planned_s and self._timer is not None:
                return
            self._planned_s = next_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if next_s < math.inf:
            self._timer = self._call_later(max(next_s - now_s, 0.0), self._wake)

    def _wake(self) -> None:
        now_s = self._monotonic()
        late_s = now_s - self._planned_s
        self._timer = None
        try:
            with self._lock:
                self._planned_s = math.inf
                calls, events = self._ledger.due(now_s), self._ledger.events()
            self._apply(events)
            if late_s > _LATE_S:
                self._tell(self._events.late, late_s)
            for call in calls:
                self._spawn(self._renew(call))
        finally:  # a policy that fails for one lease must not end the renewal of the rest
            self._plan()

    # ---- sending

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, call: list[DueRenewal]) -> None:
        with self._lock:
            self._call_ended([renewal for renewal in call if renewal.held.gone])
            call = [renewal for renewal in call if not renewal.held.gone]
        if not call:
            return
        results: Sequence[ApiError | None] = [_closed()] * len(call)
        # From before it is sent: a slow answer may only make us more careful.
        asked_at_s = self._monotonic()
        try:
            results = await self._extend(
                call[0].held.lease.queue_url,
                [(renewal.held.lease.receipt, renewal.ask_s) for renewal in call],
                self._ledger.timeout_s(call, asked_at_s),
            )
        finally:
            now_s = self._monotonic()
            with self._lock:
                self._ledger.answered(call, results, asked_at_s, now_s)
                self._call_ended(call)
                events = self._ledger.events()
            self._apply(events)
            self._plan()

    def _call_ended(self, call: list[DueRenewal]) -> None:
        for renewal in call:
            renewal.held.under_way = False
            for future in renewal.held.waiting:
                future.set_result(None)
            renewal.held.waiting.clear()

    async def _extend(
        self, url: str, changes: list[tuple[str, int]], timeout_s: float
    ) -> Sequence[ApiError | None]:
        """One call; whatever goes wrong with it goes wrong for each of its entries."""
        try:
            assert self._api is not None
            async with asyncio.timeout(timeout_s):
                results = await self._api.extend(url, changes)
        except ApiError as problem:
            return [problem] * len(changes)
        except TimeoutError:
            return [_unreachable(f"no answer within {timeout_s:.1f} s")] * len(changes)
        except Exception as problem:
            # A fault of the client must not end the renewal of everything else.
            _log.exception("renewal: the client failed")
            return [_unreachable(repr(problem))] * len(changes)
        if len(results) != len(changes):
            return [_unreachable(f"{len(results)} answers to {len(changes)} entries")] * len(changes)
        return results

    def _begin_change(self, lease: Lease, visibility_s: int, done: Future[None]) -> None:
        if self._closed:
            done.set_exception(_closed())
        else:
            self._spawn(self._change(lease, visibility_s, done))

    async def _change(self, lease: Lease, visibility_s: int, done: Future[None]) -> None:
        before = lease.by_hand
        error: Exception | None = None
        try:
            with self._lock:
                lease.by_hand = True  # nothing more is sent for it; what is under way is waited for
                held = self._ledger.get(lease)
                under_way: Future[None] | None = None
                if held is not None and held.under_way:
                    held.waiting.append(under_way := promise())
            if under_way is not None:
                await asyncio.wrap_future(under_way)
            deadline_s = await with_retries(
                lambda: self._asked(lease, visibility_s),
                _BY_HAND_BACKOFF,
                tries=_BY_HAND_TRIES,
                random=self._random,
            )
        except (Exception, asyncio.CancelledError) as problem:
            error = _closed() if isinstance(problem, asyncio.CancelledError) else problem
            lease.by_hand = before
            with self._lock:
                if isinstance(error, LeaseLost):
                    self._ledger.lose(lease, str(error))
                else:
                    self._ledger.by_hand(lease, None)
                events = self._ledger.events()
        else:
            lease.changed_by_hand(visibility_s, deadline_s)
            with self._lock:
                if visibility_s:
                    self._ledger.by_hand(lease, deadline_s)
                else:
                    self._ledger.let_go([lease], self._monotonic())
                events = self._ledger.events()
        self._apply(events)
        self._plan()
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    async def _asked(self, lease: Lease, visibility_s: int) -> float:
        """Ask for that window; until when it lasts."""
        if lease.state is not LeaseStatus.HELD:
            raise LeaseLost(lease.why or "the lease has ended")
        asked_at_s = self._monotonic()
        (problem,) = await self._extend(lease.queue_url, [(lease.receipt, visibility_s)], _BY_HAND_TIMEOUT_S)
        if problem is not None:
            raise LeaseLost(str(problem)) if problem.failure is Failure.LOST else problem
        return asked_at_s + visibility_s

    # ---- telling

    def _apply(self, events: Sequence[LeaseEvent]) -> None:
        for name, lease, facts in events:
            if name == "lost":
                lease.lose(facts[0])
                facts = (lease.why or facts[0],)
            elif name == "warned":
                lease.warn(facts[0])
                facts = (facts[0] - self._monotonic(),)
            self._tell(self._events.happened, name, lease, *facts)

    def _tell(self, call: Callable[..., None], *facts: object) -> None:
        try:
            call(*facts)
        except Exception:
            _log.exception("renewal: an observer of the keeper failed")


def promise() -> Future[None]:
    """A future for other threads and loops to wait for; one that gives up waiting does not spoil it for the rest."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def _closed() -> ApiError:
    return _unreachable("the keeper is closed")


def _unreachable(message: str) -> ApiError:
    return ApiError(Failure.UNREACHABLE, "", message)


class KeeperThread(LeaseKeeper):
    """Keeps leases on an event loop and with connections of its own, both made in its thread.

    Python code, however busy, hands over the interpreter every few milliseconds. Code that holds it (an extension that
    computes without releasing the GIL) stops this keeper too; what is lost by it is reported. `KeeperProcess` is immune.
    """

    _runs_in: LoopThread | None = None

    async def start(self) -> None:
        """Start the thread; raises what kept the client from being made."""
        self._runs_in = LoopThread("veil-lease-keeper")
        try:
            await asyncio.wrap_future(self._runs_in.begin(super().start()))
        except Exception:
            await asyncio.to_thread(self._runs_in.close)
            raise

    async def close(self) -> None:
        """Stop, and return once the thread has ended; harmless the second time, or before the start."""
        runs_in, self._runs_in = self._runs_in, None
        if runs_in is not None and self._loop is not None:
            await asyncio.wrap_future(runs_in.begin(super().close()))
            await asyncio.to_thread(runs_in.close)
