"""What renewal changes: the schedules are those of the real policies, and the figures follow from them."""

from __future__ import annotations

import asyncio
import math
from random import Random

import pytest

from tests.consumer.simulated_queue import SimulatedQueue, run_virtual
from veil.cli.pipeline.timeouts import POLICIES, SCHEDULES, played
from veil.consumer.renewal.keeper import LeaseKeeper
from veil.consumer.renewal.policies import RenewalPolicy
from veil.core.findings import NO_RENEWAL
from veil.pipeline.lifecycles.tables import bucket_of
from veil.pipeline.timeouts.recommendation import (
    LADDER_S,
    SENSIBLE_S,
    ScheduledRenewal,
    Timelines,
    candidates,
    evaluate,
    sensible_s,
)
from veil.pipeline.timeouts.survival import Survival, estimate


def kept(policy: RenewalPolicy, timeout_s: int, for_s: float) -> list[ScheduledRenewal]:
    """What the consumer's own keeper does, in virtual time."""

    async def whole() -> list[ScheduledRenewal]:
        loop = asyncio.get_running_loop()
        queue = SimulatedQueue(loop.time)
        keeper = LeaseKeeper(lambda: queue, policy, monotonic=loop.time, random=Random(1))
        await keeper.start()
        lease = queue.lease(1, timeout_s)
        keeper.hold(lease)
        await asyncio.sleep(for_s)
        await keeper.let_go(lease)
        await keeper.close()
        return [
            ScheduledRenewal(each.at_s, each.expiry_s)
            for each in queue.extensions(lease)
            if each.failure is None
        ]

    return run_virtual(whole())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("timeout_s", [3, 10, 30, 120, 900])
def test_a_schedule_is_what_the_keeper_does(name: str, timeout_s: int):
    expected = kept(POLICIES[name](timeout_s), timeout_s, for_s=3_600)

    found = [each for each in played(name, timeout_s) if each.at_s < 3_600]

    assert expected or timeout_s > 300  # Buffered stops after five minutes
    assert [value for each in found for value in each] == pytest.approx(
        [value for each in expected for value in each], abs=0.01
    )


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("timeout_s", [1, 30, 43_200])
def test_no_schedule_goes_beyond_twelve_hours(name: str, timeout_s: int):
    assert max((each.deadline_s for each in played(name, timeout_s)), default=0) <= 43_200


def ten_seconds_each() -> Survival:
    """Nearly: all in the bucket of 10 s."""
    return estimate({bucket_of(10_000): 100_000}, {})


def test_without_renewal_the_wait_after_a_crash_is_what_is_left_of_the_window_on_average():
    (means,) = evaluate(ten_seconds_each(), Timelines(), [60], NO_RENEWAL)

    # A crash is equally likely at every moment of the 10 s.
    assert means.recovery_s == pytest.approx(60 - 5, abs=0.1)
    assert means.duplicate_chance == 0.0
    assert means.calls_per_message == 0.0


def test_a_timeout_shorter_than_the_work_makes_every_message_a_duplicate():
    (means,) = evaluate(ten_seconds_each(), Timelines(), [5], NO_RENEWAL)

    assert means.duplicate_chance == 1.0
    assert means.recovery_s == pytest.approx(2.5, abs=0.01)


def test_renewal_keeps_the_message_hidden_and_costs_calls():
    curve = ten_seconds_each()
    schedule = list(played("buffered", 4))
    in_time = [each for each in schedule if each.at_s < 9]

    (means,) = evaluate(curve, Timelines(SCHEDULES), [4], "buffered")

    assert means.duplicate_chance == 0.0
    assert means.calls_per_message == pytest.approx(
        len([each for each in schedule if each.at_s < 9.5]), abs=1
    )
    # By hand: the deadline in force at each moment, less the moment, over the 10 s.
    step, total, count = 0.01, 0.0, 0
    for at in range(int(9.9 / step)):
        now_s = at * step
        deadline_s = max([4.0, *(each.deadline_s for each in schedule if each.at_s <= now_s)])
        total, count = total + deadline_s - now_s, count + 1
    assert in_time
    assert means.recovery_s == pytest.approx(total / count, abs=0.1)


def test_a_policy_that_stops_early_leaves_longer_work_to_be_done_twice():
    """Buffered renews for five minutes."""
    curve = estimate({bucket_of(10_000): 900, bucket_of(1_200_000): 100}, {})

    of_policy = {each.policy: each for each in candidates(curve, Timelines(SCHEDULES), [30])[0].policies}

    assert of_policy["none"].duplicate_chance == pytest.approx(0.1)
    assert of_policy["buffered"].duplicate_chance == pytest.approx(0.1)
    assert of_policy["heartbeat"].duplicate_chance == 0.0
    assert of_policy["adaptive"].duplicate_chance == 0.0
    assert of_policy["adaptive"].calls_per_message < of_policy["heartbeat"].calls_per_message


def test_timeouts_are_whole_seconds_that_people_would_set_and_end_at_twelve_hours():
    assert [sensible_s(each) for each in (0.02, 1.0, 9.3, 10.01, 61, 301, 50_000)] == [
        1,
        1,
        10,
        15,
        75,
        360,
        43_200,
    ]
    assert max(SENSIBLE_S) == max(LADDER_S) == 43_200
    assert all(sensible_s(each) == each for each in SENSIBLE_S)
    assert not math.isinf(sensible_s(1e12))
