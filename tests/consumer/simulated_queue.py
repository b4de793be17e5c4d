"""An event loop on which time passes only when there is nothing else to do: hours of renewal in a second, exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from veil.client.api import ApiError, Failure
from veil.consumer.lease import Lease
from veil.consumer.renewal.policies import LIFETIME_S

T = TypeVar("T")


class NothingToWaitFor(RuntimeError):
    """Everybody waits, and no timer will ever wake anybody."""


class _NoWaiting(selectors.DefaultSelector):
    """Looks at sockets and never waits for them: waiting moves the loop's clock instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise NothingToWaitFor("every task waits for something that no timer will bring")
        self.loop.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which starts at 0 and jumps to the next timer. For one thread only."""

    def __init__(self) -> None:
        selector = _NoWaiting()
        super().__init__(selector)
        selector.loop = self
        self.now_s = 0.0
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s

    def stall(self, for_s: float) -> None:
        """Let time pass while nobody on this loop can run, as in a stopped process."""
        self.now_s += for_s


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time; `asyncio.get_running_loop().time` is the clock to hand to everything inside."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


# ---- A queue service that knows nothing but visibility, for the tests and figures of the renewal policies.
#
# Each message has one receiver after another: when a window ends, the next holder takes it, which makes the old receipt
# worthless. That is harsher than any real queue, where somebody must happen to receive it.

URL = "http://queue.test/000000000000/simulated"


class Extension(NamedTuple):
    """A change of visibility that the queue was asked for."""

    at_s: float
    remaining_s: float
    visibility_s: int
    expiry_s: float  # what it is after the request, granted or not
    failure: Failure | None = None


@dataclass(slots=True)
class _Hidden:
    received_at_s: float
    expiry_s: float
    taken: bool = False
    deleted: bool = False
    extensions: list[Extension] = field(default_factory=list)


class SimulatedQueue:
    """`extend` as a service does it, on a clock that is handed in; `trouble` may fail, delay or cut a call first.

    With `patient`, a message whose window has ended waits for the old holder (nobody polls the queue): a late renewal
    succeeds, as on a standard queue.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        patient: bool = False,
        keep_history: bool = True,
        trouble: Callable[[float], Awaitable[None]] | None = None,
        after: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._now = now
        self._patient = patient
        self._keep_history = keep_history
        self._trouble, self._after = trouble, after
        self._messages: dict[str, _Hidden] = {}
        self.calls: list[tuple[float, int]] = []  # when, how many entries
        self.call_count = 0
        self.entry_count = 0

    def lease(self, number: int, visibility_s: float, *, kind: str = "") -> Lease:
        """Receive a message: the lease that a consumer then has."""
        now_s = self._now()
        receipt = f"r{number}"
        self._messages[receipt] = _Hidden(now_s, now_s + visibility_s)
        return Lease(
            queue_url=URL, message_id=f"m{number}", receipt=receipt, token=1, received_at_s=now_s,
            visibility_s=visibility_s, monotonic=self._now, kind=kind,
        )  # fmt: skip

    def handled(self, lease: Lease) -> None:
        """The handler has ended, and its message is deleted."""
        self._look(lease.receipt).deleted = True

    def extensions(self, lease: Lease) -> list[Extension]:
        """What the queue was asked for this message."""
        return self._messages[lease.receipt].extensions

    def expiry_s(self, lease: Lease) -> float:
        """When the message becomes, or became, visible."""
        return self._messages[lease.receipt].expiry_s

    def taken(self, lease: Lease) -> bool:
        """Whether somebody else has received the message."""
        return self._look(lease.receipt).taken

    async def extend(self, url: str, changes: Sequence[tuple[str, int]]) -> list[ApiError | None]:
        self.call_count += 1
        self.entry_count += len(changes)
        if self._keep_history:
            self.calls.append((self._now(), len(changes)))
        if self._trouble is not None:
            try:
                await self._trouble(self._now())
            except ApiError as problem:
                for receipt, visibility_s in changes:
                    self._note(self._look(receipt), visibility_s, problem.failure)
                raise
        results = [self._extend_one(receipt, visibility_s) for receipt, visibility_s in changes]
        if self._after is not None:
            await self._after(self._now())
        return results

    async def close(self) -> None:
        await asyncio.sleep(0)

    def _look(self, receipt: str) -> _Hidden:
        message = self._messages[receipt]
        if not self._patient and not message.deleted and self._now() > message.expiry_s:
            message.taken = True
        return message

    def _extend_one(self, receipt: str, visibility_s: int) -> ApiError | None:
        message, now_s = self._look(receipt), self._now()
        problem: ApiError | None = None
        if message.taken or message.deleted:
            problem = ApiError(
                Failure.LOST, "InvalidParameterValue", "Message does not exist or is not available"
            )
        elif visibility_s > LIFETIME_S or now_s - message.received_at_s + visibility_s > LIFETIME_S:
            problem = ApiError(
                Failure.CAPPED, "InvalidParameterValue", "Total VisibilityTimeout is beyond the limit"
            )
        self._note(message, visibility_s, None if problem is None else problem.failure)
        return problem

    def _note(self, message: _Hidden, visibility_s: int, failure: Failure | None) -> None:
        now_s = self._now()
        remaining_s = message.expiry_s - now_s
        if failure is None:
            message.expiry_s = now_s + visibility_s
        if self._keep_history:
            message.extensions.append(Extension(now_s, remaining_s, visibility_s, message.expiry_s, failure))
