"""What a handler can read from its lease, and do with it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from datetime import timedelta

import pytest

from veil.consumer.lease import Lease, LeaseLost, LeaseStatus, Settling


class Hands:
    """Changes leases as it is told to."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.asked: list[int] = []
        self._problem = problem

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        self.asked.append(visibility_s)
        future: Future[None] = Future()
        if self._problem is None:
            future.set_result(None)
        else:
            future.set_exception(self._problem)
        return future


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    return Lease(
        queue_url="u",
        message_id="m",
        receipt="r",
        token=3,
        received_at_s=100,
        visibility_s=30,
        monotonic=clock,
    )


def test_the_time_left_is_counted_from_before_the_receive(lease, clock):
    clock.now_s = 110
    assert (lease.remaining_s, lease.deadline_s) == (20, 130)
    lease.renewed(150)
    assert (lease.remaining_s, lease.extensions) == (40, 1)
    clock.now_s = 160
    assert lease.remaining_s == -10


def test_it_is_lost_once_and_everybody_who_asked_is_told(lease):
    told = []
    lease.when_lost(lambda: told.append("first"))
    lease.when_lost(lambda: 1 / 0)
    lease.when_lost(lambda: told.append("second"))
    assert lease.lose("taken") and not lease.lose("again")
    lease.when_lost(lambda: told.append("late"))
    assert told == ["first", "second", "late"]
    assert (lease.lost, lease.why, lease.end()) == (True, "taken", False)


def test_an_ended_lease_is_not_lost_afterwards(lease):
    assert lease.end()
    lease.when_lost(lambda: pytest.fail("it was not lost"))
    assert not lease.lose("too late")
    assert lease.state is LeaseStatus.ENDED
    assert not lease.wait_lost(0)


def test_a_look_after_the_deadline_is_enough_to_learn_of_the_loss(lease, clock):
    """A stopped process goes on in the middle of a handler: nobody else may have run in between."""
    told = []
    lease.when_lost(lambda: told.append("told"))
    lease.lost_at_s = 132
    clock.now_s = 131.9
    assert not lease.lost
    clock.now_s = 132
    assert lease.noticed is LeaseStatus.HELD  # nobody has looked yet
    assert lease.lost and told == ["told"]


def test_ending_a_lease_that_is_over_says_so(lease, clock):
    lease.lost_at_s = 132
    clock.now_s = 140
    assert not lease.end()
    assert lease.state is LeaseStatus.LOST


def test_a_thread_can_wait_for_the_loss(lease):
    waiting = threading.Thread(target=lease.lose, args=("taken",))
    waiting.start()
    assert lease.wait_lost(5)
    waiting.join()


def test_it_warns_once_and_tells_when_the_end_is(lease, clock):
    told = []
    lease.when_warned(lambda: told.append("warned"))
    assert (lease.warned, lease.ends_in_s) == (False, None)
    assert lease.warn(160) and not lease.warn(170)
    lease.when_warned(lambda: told.append("late"))
    assert told == ["warned", "late"]
    assert (lease.warned, lease.ends_in_s) == (True, 60)


def test_by_hand_in_a_plain_thread_it_has_happened_when_the_call_returns(lease):
    lease.control = hands = Hands()
    lease.extend(60)
    lease.extend(timedelta(minutes=2))
    lease.release()
    assert hands.asked == [60, 120, 0]


async def test_by_hand_in_an_async_handler_it_is_awaited(lease):
    lease.control = hands = Hands()
    await lease.extend(60)
    await lease.release()
    assert hands.asked == [60, 0]


async def test_a_failure_by_hand_reaches_the_handler(lease):
    lease.control = Hands(LeaseLost("taken"))
    with pytest.raises(LeaseLost, match="taken"):
        await lease.extend(60)
    with pytest.raises(LeaseLost, match="taken"):
        await asyncio.to_thread(lease.release)


@pytest.mark.parametrize("by", [0, -1, 43_201, 1.5, float("nan")])
def test_a_length_that_no_service_takes_is_refused(lease, by):
    lease.control = Hands()
    with pytest.raises(ValueError, match="expected whole seconds, 1 to 43,200"):
        lease.extend(by)


def test_without_a_keeper_nothing_can_be_changed(lease):
    with pytest.raises(RuntimeError, match="no keeper holds it"):
        lease.extend(60)


async def test_what_is_settled_costs_no_turn_of_the_loop():
    turned = []
    asyncio.get_running_loop().call_soon(turned.append, 1)
    await Settling()
    assert not turned
