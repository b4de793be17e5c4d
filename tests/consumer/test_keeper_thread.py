"""A keeper in its own thread, in real time."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import wait

import pytest

from tests.consumer.simulated_queue import SimulatedQueue
from tests.waiting import until_async
from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.consumer.lease import Lease, LeaseStatus
from veil.consumer.renewal import Adaptive, Heartbeat, RenewalPolicy
from veil.consumer.renewal.keeper import KeeperEvents, KeeperThread, steady_s

WINDOW_S = 60  # longer than any machine stands still
OFTEN = Heartbeat(timeout=WINDOW_S, threshold=WINDOW_S - 0.5, interval=0.2)
SELDOM = Adaptive(visibility=WINDOW_S, window_min=WINDOW_S, window_max=WINDOW_S)


class Heard(KeeperEvents):
    def __init__(self) -> None:
        self.lates: list[float] = []
        self.losses: list[str] = []
        self.threads: set[str] = set()

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        self.threads.add(threading.current_thread().name)

    def late(self, by_s: float) -> None:
        self.lates.append(by_s)

    def lost(self, lease: Lease, why: str) -> None:
        self.losses.append(lease.message_id)


class Rig:
    def __init__(self, policy: RenewalPolicy) -> None:
        self.queue, self.heard = SimulatedQueue(steady_s), Heard()
        self.made_in: list[str] = []
        self.keeper = KeeperThread(self._make, policy, events=self.heard)

    def _make(self) -> SqsClient:
        self.made_in.append(threading.current_thread().name)
        return self.queue


@pytest.fixture(params=[OFTEN])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    rig = Rig(request.param)
    await rig.keeper.start()
    yield rig
    await rig.keeper.close()


async def test_a_handler_that_computes_in_python_keeps_its_lease(rig):
    lease = rig.queue.lease(1, WINDOW_S)
    rig.keeper.hold(lease)
    until_s = time.monotonic() + WINDOW_S
    while lease.extensions < 3 and time.monotonic() < until_s:  # the event loop of this thread stands still
        pass
    assert lease.extensions >= 3
    assert not lease.lost and not rig.queue.taken(lease)
    assert rig.made_in == ["veil-lease-keeper"]
    assert rig.heard.threads == {"veil-lease-keeper"}
    await rig.keeper.let_go(lease)


@pytest.mark.parametrize("rig", [Adaptive(visibility=1, window_min=1, window_max=1)], indirect=True)
async def test_a_handler_that_holds_the_interpreter_is_told_of_its_loss_at_once(rig):
    lease = rig.queue.lease(1, 1)
    rig.keeper.hold(lease)
    ctypes.PyDLL(None).usleep(1_700_000)
    assert lease.lost  # by a look at it, before the keeper has had a turn
    assert not lease.end()
    await until_async(lambda: rig.heard.losses and rig.heard.lates)
    assert rig.heard.losses == ["m1"]
    assert rig.heard.lates[0] > 1


async def test_letting_go_from_another_loop_waits_for_the_call_under_way():
    under_way, go_on = threading.Event(), threading.Event()

    async def slow(now_s: float) -> None:
        under_way.set()
        while not go_on.is_set():
            await asyncio.sleep(0.005)

    queue = SimulatedQueue(steady_s, trouble=slow)
    keeper = KeeperThread(lambda: queue, OFTEN)
    await keeper.start()
    lease = queue.lease(1, WINDOW_S)
    keeper.hold(lease)
    assert await asyncio.to_thread(under_way.wait, 60)
    settling = keeper.let_go(lease)
    assert not any(future.done() for future in settling.futures)
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await settling
    assert go_on.is_set() and len(queue.extensions(lease)) == 1
    await keeper.close()


@pytest.mark.parametrize("rig", [SELDOM], indirect=True)
async def test_a_sync_handler_extends_and_releases_by_hand(rig):
    lease = rig.queue.lease(1, WINDOW_S)
    rig.keeper.hold(lease)

    def handler() -> None:
        lease.extend(600)
        assert lease.remaining_s > 2 * WINDOW_S
        lease.release()

    await asyncio.to_thread(handler)
    assert (lease.state, lease.released) == (LeaseStatus.ENDED, True)
    assert [each.visibility_s for each in rig.queue.extensions(lease)] == [600, 0]


async def test_many_threads_may_hold_and_let_go_at_once(rig):
    def work(first: int) -> list[Lease]:
        leases = [rig.queue.lease(number, WINDOW_S) for number in range(first, first + 300)]
        for lease in leases:
            rig.keeper.hold(lease)
            assert lease.end()
            wait(rig.keeper.let_go(lease).futures, timeout=60)
        return leases

    works = (asyncio.to_thread(work, first) for first in range(0, 1_200, 300))
    let_go = [lease for leases in await asyncio.gather(*works) for lease in leases]
    before = [len(rig.queue.extensions(lease)) for lease in let_go]
    still_held = rig.queue.lease(1_200, WINDOW_S)
    rig.keeper.hold(still_held)
    await until_async(lambda: still_held.extensions >= 2)
    assert [len(rig.queue.extensions(lease)) for lease in let_go] == before
    assert rig.heard.losses == []
    await rig.keeper.let_go(still_held)


async def test_a_factory_that_fails_is_heard_of_at_the_start():
    def broken() -> SqsClient:
        raise ApiError(Failure.FATAL, "", "no credentials")

    keeper = KeeperThread(broken, Adaptive())
    with pytest.raises(ApiError, match="no credentials"):
        await keeper.start()
    await keeper.close()


async def test_closing_twice_or_before_the_start_is_harmless(rig):
    await KeeperThread(lambda: rig.queue, Adaptive()).close()
    await rig.keeper.close()
    await rig.keeper.close()
    assert not [each for each in threading.enumerate() if each.name == "veil-lease-keeper"]
