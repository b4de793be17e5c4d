"""One message's renewal, played in virtual time against a simulated queue, and told afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.consumer.simulated_queue import Extension, SimulatedQueue, VirtualTimeLoop, run_virtual
from veil.client.api import ApiError, Failure
from veil.consumer.lease import Lease
from veil.consumer.renewal.keeper import KeeperEvents, LeaseKeeper
from veil.consumer.renewal.policies import RenewalPolicy


class Noted(KeeperEvents):
    """Every event with its time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.all: list[tuple[str, float]] = []
        self.leases: list[tuple[str, str]] = []

    def _note(self, what: str, lease: Lease | None = None) -> None:
        self.all.append((what, self._loop.time()))
        if lease is not None:
            self.leases.append((what, lease.message_id))

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        self._note("renewed", lease)

    def late(self, by_s: float) -> None:
        self._note("late")

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        self._note("failed", lease)

    def lost(self, lease: Lease, why: str) -> None:
        self._note("lost", lease)

    def capped(self, lease: Lease, why: str) -> None:
        self._note("capped", lease)

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        self._note("warned", lease)

    def count(self, what: str) -> int:
        return sum(1 for name, _ in self.all if name == what)

    def at(self, what: str) -> float | None:
        return next((round(at_s, 6) for name, at_s in self.all if name == what), None)


@dataclass
class Story:
    """What became of the message. Times are seconds after its receive."""

    extensions: list[Extension] = field(default_factory=list)
    calls: list[tuple[float, int]] = field(default_factory=list)
    deleted_at_s: float | None = None
    lost_at_s: float | None = None
    capped_at_s: float | None = None
    warned_at_s: float | None = None
    visible_at_s: float | None = None  # had it not been deleted
    taken: bool = False
    why: str = ""
    late: int = 0

    @property
    def events(self) -> list[tuple[float, float, int, float]]:
        """(time, remaining, new timeout, new expiry) of every renewal that was granted."""
        return [
            (round(each.at_s, 6), round(each.remaining_s, 6), each.visibility_s, round(each.expiry_s, 6))
            for each in self.extensions
            if each.failure is None
        ]

    @property
    def failures(self) -> list[tuple[float, Failure]]:
        return [(round(each.at_s, 6), each.failure) for each in self.extensions if each.failure is not None]


def play(
    policy: RenewalPolicy,
    *,
    visibility_s: float,
    handler_s: float,
    held_after_s: float = 0.0,
    loop_since_s: float | None = None,
    stalls: Sequence[tuple[float, float]] = (),
    throttled: Sequence[tuple[float, float]] = (),
    gone_at_s: float | None = None,
    patient: bool = False,
) -> Story:
    """Receive, hold after a while, handle, delete: with the process stopped and calls throttled when the story says so."""

    async def whole() -> Story:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)

        async def trouble(now_s: float) -> None:
            if any(begin <= now_s <= end for begin, end in throttled):
                raise ApiError(Failure.THROTTLED, "RequestThrottled", "slow down")
            if gone_at_s is not None and now_s >= gone_at_s:
                raise ApiError(Failure.LOST, "ReceiptHandleIsInvalid", "no longer")

        story, events = Story(), Noted(loop)
        queue = SimulatedQueue(loop.time, patient=patient, trouble=trouble)
        keeper = LeaseKeeper(lambda: queue, policy, monotonic=loop.time, events=events, random=Random(1))
        await keeper.start()
        if loop_since_s is not None:  # the loop runs already, for a message that stays
            keeper.hold(queue.lease(0, 43_000))
            await asyncio.sleep(loop_since_s)
        lease = queue.lease(1, visibility_s)
        over = asyncio.Event()

        def lost() -> None:
            story.lost_at_s = round(loop.time(), 6)
            over.set()

        lease.when_lost(lost)
        for begin, end in stalls:
            loop.call_at(begin, loop.stall, end - begin)
        await asyncio.sleep(held_after_s)
        keeper.hold(lease)
        try:
            # Of two things at one instant the handler's end comes first, as in the vectors.
            await asyncio.wait_for(over.wait(), handler_s - 1e-7)
        except TimeoutError:
            await keeper.let_go(lease)
            if lease.end():
                queue.handled(lease)
                story.deleted_at_s = round(loop.time(), 6)
        await keeper.close()
        story.taken = queue.taken(lease)
        story.extensions, story.calls, story.why = queue.extensions(lease), queue.calls, lease.why
        story.visible_at_s = round(queue.expiry_s(lease), 6)
        story.capped_at_s, story.warned_at_s = events.at("capped"), events.at("warned")
        story.late = events.count("late")
        return story

    return run_virtual(whole())
