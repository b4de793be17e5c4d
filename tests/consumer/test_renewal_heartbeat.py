"""`Heartbeat` does what the AWS framework documents, vector by vector, and better where that goes wrong."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from random import Random

import pytest

from tests.consumer.renewal_stories import play
from tests.consumer.simulated_queue import URL, SimulatedQueue, run_virtual
from veil.client.api import Failure
from veil.consumer.renewal import Heartbeat, RenewalRefused
from veil.consumer.renewal.keeper import LeaseKeeper

# name, timeout, threshold, interval, P, events, when deleted
DELETED = [
    ("A1", 30, 5, 1, 24, [], 24),
    ("A2", 30, 5, 1, 45, [(25, 5, 30, 55)], 45),
    ("A3", 30, 5, 1, 100, [(25, 5, 30, 55), (50, 5, 30, 80), (75, 5, 30, 105)], 100),
    ("A4", 10, 3, 2, 30, [(8, 2, 10, 18), (16, 2, 10, 26), (24, 2, 10, 34)], 30),
    ("A5", 60, 20, 7, 180, [(42, 18, 60, 102), (84, 18, 60, 144), (126, 18, 60, 186), (168, 18, 60, 228)], 180),
    ("A6", 300, 60, 30, 1000,
     [(240, 60, 300, 540), (480, 60, 300, 780), (720, 60, 300, 1020), (960, 60, 300, 1260)], 1000),
    ("A7", 6, 5, 4, 24, [(t, 2, 6, t + 6) for t in (4, 8, 12, 16, 20)], 24),
    ("A8", 3, 2, 1, 8, [(t, 2, 3, t + 3) for t in range(1, 8)], 8),
    ("A9", 30, 29, 1, 5, [(t, 29, 30, t + 30) for t in range(1, 5)], 5),
    ("A12", 30, 5, 0.001, 80, [(25, 5, 30, 55), (50, 5, 30, 80), (75, 5, 30, 105)], 80),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "v", "h", "i", "p", "events", "deleted"), DELETED, ids=[v[0] for v in DELETED]
)
def test_the_schedule_is_the_documented_one(name, v, h, i, p, events, deleted):
    story = play(Heartbeat(v, h, i), visibility_s=v, handler_s=p)
    assert story.events == events
    assert (story.deleted_at_s, story.taken) == (deleted, False)


@pytest.mark.parametrize(
    ("joins", "events"),
    [(0.6, [(26, 4.6, 30, 56), (51, 5, 30, 81)]), (0.999, [(26, 4.999, 30, 56), (51, 5, 30, 81)])],
    ids=["A10", "A11"],
)
def test_a_message_that_joins_between_two_beats_keeps_to_them(joins, events):
    story = play(Heartbeat(), visibility_s=30, handler_s=60, loop_since_s=joins)
    assert story.events == events
    assert story.deleted_at_s == joins + 60


def test_a12_an_interval_of_a_millisecond_costs_no_more_wake_ups_than_one_of_a_second():
    """The original reads its seconds as milliseconds and wakes up 80,000 times; here sleeping is not looking."""

    async def wake_ups(interval_s: float) -> int:
        loop = asyncio.get_running_loop()
        queue = SimulatedQueue(loop.time)
        keeper = LeaseKeeper(
            lambda: queue, Heartbeat(30, 5, interval_s), monotonic=loop.time, random=Random(1)
        )
        count, due = 0, keeper._ledger.due

        def counted(now_s: float):
            nonlocal count
            count += 1
            return due(now_s)

        keeper._ledger.due = counted
        await keeper.start()
        keeper.hold(queue.lease(1, 30))
        await asyncio.sleep(80)
        await keeper.close()
        return count

    assert run_virtual(wake_ups(0.001)) == run_virtual(wake_ups(1)) < 100


def test_the_units_are_in_the_types():
    assert Heartbeat(interval=timedelta(seconds=1)).interval_s == Heartbeat(interval=1).interval_s == 1.0


def test_a13_a_throttled_renewal_is_tried_again_while_the_message_is_still_hidden():
    """The original believes its own request, tries again 25 s later, and lets others have the message from 30 to 50."""
    story = play(Heartbeat(), visibility_s=30, handler_s=80, throttled=[(24.5, 28)])
    assert story.failures[0] == (25, Failure.THROTTLED)
    assert len(story.failures) >= 3
    assert 28 < story.events[0][0] < 30
    assert (story.deleted_at_s, story.taken) == (80, False)


def test_a14_a_loop_that_was_stopped_renews_late_when_nobody_has_taken_the_message():
    story = play(Heartbeat(), visibility_s=30, handler_s=70, stalls=[(24.9, 32)], patient=True)
    assert story.events == [(32, -2, 30, 62), (57, 5, 30, 87)]
    assert (story.deleted_at_s, story.late) == (70, 1)


def test_a14_and_tells_the_handler_when_somebody_has():
    story = play(Heartbeat(), visibility_s=30, handler_s=70, stalls=[(24.9, 32)])
    assert (story.events, story.lost_at_s) == ([], 32)


def test_a15_stopping_the_consumer_does_not_stop_the_renewal():
    """The original's loop dies with the poller, so that draining handlers lose their messages at 30."""
    # Here the poller knows nothing of the keeper: it goes on until `close`, which the runner calls after draining.
    story = play(Heartbeat(), visibility_s=30, handler_s=80)
    assert [at for at, *_ in story.events] == [25, 50, 75]
    assert story.deleted_at_s == 80


@pytest.mark.parametrize(
    ("v", "h", "i", "said"),
    [
        (5, 5, 1, "threshold=5 s: expected more than 0 s and less than timeout=5 s"),
        (30, 30, 1, "threshold=30 s"),
        (30, 5, 5, "interval=5 s: expected more than 0 s and less than threshold=5 s"),
        (30, 5, 0, "interval=0 s"),
        (0, 5, 1, "timeout=0 s"),
        (43_201, 5, 1, "timeout=43201 s"),
        (30, -1, 1, "threshold=-1 s"),
        (30.5, 5, 1, "timeout=30.5 s: expected whole seconds"),
    ],
)
def test_a16_what_cannot_work_is_refused(v, h, i, said):
    with pytest.raises(RenewalRefused) as refused:
        Heartbeat(v, h, i)
    assert said in str(refused.value)


def test_a17_at_twelve_hours_it_asks_for_what_is_left_once_and_says_so():
    """The original asks for more than the rest, fails every 25 s from then on, and gives up 20 s that it could have had."""
    story = play(Heartbeat(), visibility_s=30, handler_s=13 * 3600)
    assert story.events[-2:] == [(43150, 5, 30, 43180), (43175, 5, 24, 43199)]
    assert story.failures == []
    assert story.capped_at_s == 43175
    assert story.lost_at_s == story.visible_at_s == 43199


def test_a18_a_window_of_twelve_hours_is_not_renewed_and_not_called_lost_before_it_ends():
    story = play(Heartbeat(43_200), visibility_s=43_200, handler_s=13 * 3600)
    assert (story.events, story.failures) == ([], [])
    assert story.lost_at_s == story.visible_at_s == 43_200
    assert story.capped_at_s is not None and story.capped_at_s < 43_200
    assert story.warned_at_s == 43_139


def fifo_group(*, first_fails: bool) -> tuple[list[list[tuple[float, int]]], list[float]]:
    """Three messages of one group, 20 s each, one after the other; their renewals, and when each was visible or deleted."""

    async def whole():
        loop = asyncio.get_running_loop()
        queue = SimulatedQueue(loop.time)
        keeper = LeaseKeeper(lambda: queue, Heartbeat(), monotonic=loop.time, random=Random(1))
        await keeper.start()
        leases = [queue.lease(number, 30) for number in range(3)]
        for lease in leases:
            keeper.hold(lease)
        ends: list[float] = []
        for lease in leases:
            if not (first_fails and ends):
                await asyncio.sleep(20)
            await keeper.let_go(lease)
            if first_fails:  # the rest of the group is given back in order, at once
                await queue.extend(URL, [(lease.receipt, 0)])
                ends.append(queue.expiry_s(lease))
            else:
                queue.handled(lease)
                ends.append(loop.time())
        await asyncio.sleep(60)
        await keeper.close()
        return [
            [(each.at_s, each.visibility_s) for each in queue.extensions(lease)] for lease in leases
        ], ends

    return run_virtual(whole())


def test_a19_a_group_is_renewed_as_a_whole():
    renewals, ends = fifo_group(first_fails=False)
    assert renewals == [[], [(25, 30)], [(25, 30), (50, 30)]]
    assert ends == [20, 40, 60]


def test_a20_after_a_failure_the_rest_of_the_group_is_visible_at_once_and_nothing_hides_it_again():
    """In the original all three stay hidden until 30."""
    renewals, ends = fifo_group(first_fails=True)
    assert renewals == [[(20, 0)]] * 3
    assert ends == [20, 20, 20]


def test_a21_twenty_five_messages_are_renewed_in_three_calls():
    async def whole():
        loop = asyncio.get_running_loop()
        queue = SimulatedQueue(loop.time)
        keeper = LeaseKeeper(lambda: queue, Heartbeat(), monotonic=loop.time, random=Random(1))
        await keeper.start()
        for number in range(25):
            keeper.hold(queue.lease(number, 30))
        await asyncio.sleep(30)
        await keeper.close()
        return queue.calls

    assert run_virtual(whole()) == [(25, 10), (25, 10), (25, 5)]


def test_a22_a_step_of_the_wall_clock_changes_nothing(monkeypatch):
    """The original sees 100 s more than there are, and lets others have the message for 95 s."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 100)
    story = play(Heartbeat(), visibility_s=30, handler_s=200)
    assert [at for at, *_ in story.events] == [25, 50, 75, 100, 125, 150, 175]
    assert not story.taken
