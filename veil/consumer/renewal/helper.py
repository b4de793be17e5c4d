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

import msgspec

from veil.client.api import ApiError, Failure
from veil.consumer.lease import Lease, LeaseLost
from veil.consumer.renewal.keeper import KeeperEvents, LeaseKeeper, RenewalApi, steady_s
from veil.consumer.renewal.policies import RenewalPolicy

# ---- what a consumer and its helper say to each other: one JSON object a line, over the helper's stdin and stdout


class Hold(msgspec.Struct, tag="hold"):
    """Keep this lease. Instants are monotonic seconds, which are the same in every process of a host."""

    number: int
    queue_url: str
    message_id: str
    receipt: str
    received_at_s: float
    visibility_s: float
    deadline_s: float
    kind: str
    by_hand: bool
    grace_s: float = 0.0


class LetGo(msgspec.Struct, tag="let_go"):
    """Send nothing for it any more, and say when nothing is under way."""

    number: int


class Change(msgspec.Struct, tag="change"):
    """Set its window by hand."""

    number: int
    visibility_s: int


class Close(msgspec.Struct, tag="close"):
    """End properly; the end of the pipe does as well."""


class Ready(msgspec.Struct, tag="ready"):
    """The helper has its connections, or the reason why not."""

    problem: str = ""


# What the keeper's events tell, and the answers to LetGo and Change.


class HasRenewed(msgspec.Struct, tag="renewed"):
    number: int
    visibility_s: int
    deadline_s: float


class HasFailed(msgspec.Struct, tag="failed"):
    number: int
    failure: Failure
    code: str
    message: str
    again: bool


class HasLost(msgspec.Struct, tag="lost"):
    number: int
    why: str


class HasCapped(msgspec.Struct, tag="capped"):
    number: int
    why: str


class HasWarned(msgspec.Struct, tag="warned"):
    number: int
    ends_at_s: float


class WasLate(msgspec.Struct, tag="late"):
    by_s: float


class HasLetGo(msgspec.Struct, tag="gone"):
    number: int


class HasChanged(msgspec.Struct, tag="changed"):
    """The answer to Change; `lost`, or a failure, when it did not succeed."""

    number: int
    visibility_s: int
    deadline_s: float
    lost: str = ""
    failure: Failure | None = None
    code: str = ""
    message: str = ""


ToHelper = Hold | LetGo | Change | Close
FromHelper = (
    Ready | HasRenewed | HasFailed | HasLost | HasCapped | HasWarned | WasLate | HasLetGo | HasChanged
)

read_by_helper = msgspec.json.Decoder(ToHelper)
read_by_parent = msgspec.json.Decoder(FromHelper)
_encoder = msgspec.json.Encoder()


def line(message: ToHelper | FromHelper) -> bytes:
    """The message as a line."""
    return _encoder.encode(message) + b"\n"


# ---- the process

_PARENT_CHECK_S = 0.5


class Helper(KeeperEvents):
    """The parent's leases by number, and a keeper for them."""

    def __init__(self, api: RenewalApi, policy: RenewalPolicy, tell: Callable[[FromHelper], None]) -> None:
        self.keeper = LeaseKeeper(api, policy, events=self)
        self._tell = tell
        self._leases: dict[int, Lease] = {}
        self._numbers: dict[Lease, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, message: ToHelper) -> None:
        """Do what the parent says."""
        match message:
            case Hold():
                self._hold(message)
            case LetGo(number):
                self._spawn(self._let_go(number))
            case Change(number, visibility_s):
                self._spawn(self._change(number, visibility_s))

    def _hold(self, message: Hold) -> None:
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
        self._tell(HasLetGo(number))

    async def _change(self, number: int, visibility_s: int) -> None:
        done = HasChanged(number, visibility_s, 0.0)
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
        self._tell(HasRenewed(self._numbers[lease], visibility_s, lease.deadline_s))

    def late(self, by_s: float) -> None:
        self._tell(WasLate(by_s))

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        error = problem if isinstance(problem, ApiError) else ApiError(Failure.UNREACHABLE, "", repr(problem))
        self._tell(HasFailed(self._numbers[lease], error.failure, error.code, error.message, again))

    def lost(self, lease: Lease, why: str) -> None:
        number = self._numbers[lease]
        self._leases.pop(number, None)
        self._tell(HasLost(number, why))

    def capped(self, lease: Lease, why: str) -> None:
        self._tell(HasCapped(self._numbers[lease], why))

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        self._tell(HasWarned(self._numbers[lease], steady_s() + ends_in_s))


async def _serve(heard_fd: int, told_fd: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(heard_fd, "rb", 0))
    # The transport keeps what the parent does not read: a parent that stands still must not stop us too.
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(told_fd, "wb", 0))

    def tell(message: FromHelper) -> None:
        transport.write(line(message))

    parent = os.getppid()
    try:
        # Our own parent wrote it, through a pipe that nobody else has.
        factory, policy = pickle.loads(base64.b64decode(await reader.readline()))  # noqa: S301
        api: RenewalApi = factory()
    except Exception as problem:
        tell(Ready(problem=f"{type(problem).__name__}: {problem}"))
        transport.close()
        return
    helper = Helper(api, policy, tell)
    await helper.keeper.start()
    # The end of the pipe may be held open by a fork of the parent that outlives it.
    orphaned = loop.create_task(_watch(parent))
    tell(Ready())
    while text := await reader.readline():
        message = read_by_helper.decode(text)
        if isinstance(message, Close):
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
