"""The helper process: renews what its parent holds, also while the parent's interpreter stands still.

It goes on by itself as long as the parent lives and says nothing else. It ends with the parent, however that ends: then
nobody handles the messages, and their windows must run out.
"""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from veil.client.api import ApiError, Failure
from veil.consumer.lease import Lease, LeaseLost
from veil.consumer.renewal import helper_messages as say
from veil.consumer.renewal.keeper import KeeperEvents, LeaseKeeper, RenewalApi, steady_s
from veil.consumer.renewal.policy import RenewalPolicy

_PARENT_CHECK_S = 0.5


class Helper(KeeperEvents):
    """The parent's leases by number, and a keeper for them."""

    def __init__(
        self, api: RenewalApi, policy: RenewalPolicy, tell: Callable[[say.FromHelper], None]
    ) -> None:
        self.keeper = LeaseKeeper(api, policy, events=self)
        self._tell = tell
        self._leases: dict[int, Lease] = {}
        self._numbers: dict[Lease, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, message: say.ToHelper) -> None:
        """Do what the parent says."""
        match message:
            case say.Hold():
                self._hold(message)
            case say.LetGo(number):
                self._spawn(self._let_go(number))
            case say.Change(number, visibility_s):
                self._spawn(self._change(number, visibility_s))

    def _hold(self, message: say.Hold) -> None:
        lease = Lease(
            queue_url=message.queue_url,
            message_id=message.message_id,
            receipt=message.receipt,
            token=0,
            received_at_s=message.received_at_s,
            visibility_s=message.visibility_s,
            monotonic=steady_s,
            kind=message.kind,
            grace_s=message.grace_s,
        )
        lease.by_hand = message.by_hand
        if message.deadline_s != lease.deadline_s:  # an earlier helper has renewed it
            lease.renewed(message.deadline_s)
        self._leases[message.number] = lease
        self._numbers[lease] = message.number
        self.keeper.hold(lease)

    async def _let_go(self, number: int) -> None:
        lease = self._leases.pop(number, None)
        if lease is not None:
            await self.keeper.let_go(lease)
            self._numbers.pop(lease, None)
        self._tell(say.HasLetGo(number))

    async def _change(self, number: int, visibility_s: int) -> None:
        done = say.HasChanged(number, visibility_s, 0.0)
        lease = self._leases.get(number)
        try:
            if lease is None:
                raise LeaseLost("the lease is over")
            await asyncio.wrap_future(self.keeper.change(lease, visibility_s))
            done.deadline_s = lease.deadline_s
        except LeaseLost as problem:
            done.lost = str(problem)
        except ApiError as problem:
            done.failure, done.code, done.message = problem.failure, problem.code, problem.message
        self._tell(done)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- the keeper's events

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        self._tell(say.HasRenewed(self._numbers[lease], visibility_s, lease.deadline_s))

    def late(self, by_s: float) -> None:
        self._tell(say.WasLate(by_s))

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        error = problem if isinstance(problem, ApiError) else ApiError(Failure.UNREACHABLE, "", repr(problem))
        self._tell(say.HasFailed(self._numbers[lease], error.failure, error.code, error.message, again))

    def lost(self, lease: Lease, why: str) -> None:
        number = self._numbers[lease]
        self._leases.pop(number, None)
        self._tell(say.HasLost(number, why))

    def capped(self, lease: Lease, why: str) -> None:
        self._tell(say.HasCapped(self._numbers[lease], why))

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        self._tell(say.HasWarned(self._numbers[lease], steady_s() + ends_in_s))


async def _serve(heard_fd: int, told_fd: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(heard_fd, "rb", 0))
    # The transport keeps what the parent does not read: a parent that stands still must not stop us too.
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(told_fd, "wb", 0))

    def tell(message: say.FromHelper) -> None:
        transport.write(say.line(message))

    parent = os.getppid()
    try:
        # Our own parent wrote it, through a pipe that nobody else has.
        factory, policy = pickle.loads(base64.b64decode(await reader.readline()))  # noqa: S301
        api: RenewalApi = factory()
    except Exception as problem:
        tell(say.Ready(problem=f"{type(problem).__name__}: {problem}"))
        transport.close()
        return
    helper = Helper(api, policy, tell)
    await helper.keeper.start()
    # The end of the pipe may be held open by a fork of the parent that outlives it.
    orphaned = loop.create_task(_watch(parent))
    tell(say.Ready())
    while text := await reader.readline():
        message = say.read_by_helper.decode(text)
        if isinstance(message, say.Close):
            orphaned.cancel()
            await helper.keeper.close()
            await api.close()
            transport.close()
            return
        helper.hear(message)
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
