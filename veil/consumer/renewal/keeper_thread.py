"""A keeper in a thread of its own: a handler that computes for minutes does not starve it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from random import Random

from veil.consumer.lease import Lease, Settling
from veil.consumer.renewal.keeper import Keeper, KeeperEvents, LeaseKeeper, RenewalApi, promise, steady_s
from veil.consumer.renewal.policy import RenewalPolicy


class KeeperThread(Keeper):
    """Keeps leases on an event loop and with connections of its own, both made in its thread.

    Python code, however busy, hands over the interpreter every few milliseconds. Code that holds it (an extension that
    computes without releasing the GIL) stops this keeper too; what is lost by it is reported. `KeeperProcess` is immune.
    """

    def __init__(
        self,
        api_factory: Callable[[], RenewalApi],
        policy: RenewalPolicy,
        *,
        monotonic: Callable[[], float] = steady_s,
        events: KeeperEvents | None = None,
        random: Random | None = None,
    ) -> None:
        self._api_factory = api_factory
        self._policy, self._monotonic, self._events, self._random = policy, monotonic, events, random
        self._keeper: LeaseKeeper | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = promise()

    async def start(self) -> None:
        """Start the thread; raises what its factory raised."""
        ready = promise()
        # A daemon: a process that ends without closing its consumer must not hang on the renewal of its leases.
        self._thread = threading.Thread(
            target=self._main, args=(ready,), name="veil-lease-keeper", daemon=True
        )
        self._thread.start()
        await asyncio.wrap_future(ready)

    def hold(self, lease: Lease) -> None:
        """Keep the lease from now on."""
        self._running().hold(lease)

    def let_go(self, lease: Lease) -> Settling:
        """Send no renewal for the lease after this; settled when none is under way either."""
        return self._running().let_go(lease)

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        """Set the window by hand."""
        return self._running().change(lease, visibility_s)

    async def close(self) -> None:
        """Stop, and return once the thread has ended; harmless the second time, or before the start."""
        if self._loop is None or self._stop is None or self._thread is None:
            return
        if not self._stopped.done():
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.wrap_future(self._stopped)
        self._thread.join()

    def _running(self) -> LeaseKeeper:
        if self._keeper is None:
            raise RuntimeError("the keeper has not been started")
        return self._keeper

    def _main(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self._keep(ready))
        except BaseException as problem:
            if ready.done():
                raise
            ready.set_exception(problem)
        finally:
            self._stopped.set_result(None)

    async def _keep(self, ready: Future[None]) -> None:
        api = self._api_factory()
        try:
            keeper = LeaseKeeper(
                api, self._policy, monotonic=self._monotonic, events=self._events, random=self._random
            )
            await keeper.start()
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._keeper = keeper
            ready.set_result(None)
            await self._stop.wait()
            await keeper.close()
        finally:
            await api.close()
