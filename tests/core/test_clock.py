"""The clock that tests own."""

from __future__ import annotations

import pytest

from veil.core.clock import LET_IN_MS, LeaseTime, ManualClock, Trouble, TroubleKind, grace_ms


def test_time_stands_still_until_it_is_moved():
    clock = ManualClock(start_ms=1_000)
    assert clock.now_ms() == clock.now_ms() == 1_000
    clock.advance(1)
    clock.advance(seconds=0.5)
    assert clock.now_ms() == 1_501


def test_timers_run_at_their_own_instants_in_order():
    clock, heard = ManualClock(start_ms=0), []
    for due_ms in (30, 10, 20, 10):
        clock.call_at(due_ms, lambda due_ms=due_ms: heard.append((due_ms, clock.now_ms())))
    clock.advance(20)
    assert heard == [(10, 10), (10, 10), (20, 20)]
    clock.advance(10)
    assert heard[-1] == (30, 30)
    assert clock.now_ms() == 30


def test_a_timer_set_by_a_timer_runs_within_the_same_advance():
    clock, heard = ManualClock(start_ms=0), []
    clock.call_at(10, lambda: clock.call_at(15, lambda: heard.append(clock.now_ms())))
    clock.advance(20)
    assert heard == [15]


def test_a_timer_that_is_already_due_waits_for_the_next_advance():
    clock, heard = ManualClock(start_ms=100), []
    clock.call_at(50, lambda: heard.append(clock.now_ms()))
    assert heard == []
    clock.advance(0)
    assert heard == [100]


def test_a_cancelled_timer_does_not_run_and_cancelling_is_harmless_later():
    clock, heard = ManualClock(start_ms=0), []
    cancelled = clock.call_at(10, lambda: heard.append("cancelled"))
    ran = clock.call_at(10, lambda: heard.append("ran"))
    cancelled.cancel()
    clock.advance(10)
    ran.cancel()
    clock.advance(10)
    assert heard == ["ran"]


def test_a_step_of_the_wall_clock_leaves_engine_time_alone():
    clock, heard = ManualClock(start_ms=1_000), []
    clock.call_at(2_000, lambda: heard.append(1))
    clock.step_wall(3_600_000)
    assert (clock.now_ms(), clock.wall_ms(), heard) == (1_000, 3_601_000, [])
    clock.step_wall(-7_200_000)
    clock.advance(1_000)
    assert (clock.now_ms(), clock.wall_ms(), heard) == (2_000, 2_000 - 3_600_000, [1])


# ---- the time that counts for leases


def a_lease_time() -> tuple[ManualClock, LeaseTime, list[Trouble]]:
    clock, seen = ManualClock(), list[Trouble]()
    lease_time = LeaseTime(clock)
    lease_time.on_trouble = seen.append
    return clock, lease_time, seen


def test_a_process_that_stood_still_was_in_trouble():
    clock, lease_time, seen = a_lease_time()
    lease_time.start()
    clock.advance(seconds=60)
    assert seen == []
    stopped_ms = clock.now_ms()
    clock._now_ms += 5_000  # nothing ran: not even the timers

    found = lease_time.trouble_at(clock.now_ms())

    assert found == Trouble(stopped_ms, clock.now_ms(), "paused")
    clock.advance(seconds=10)
    assert seen == [found]
    assert lease_time.trouble_at(clock.now_ms()) == found


def test_a_process_that_runs_late_again_and_again_is_in_trouble_for_all_of_the_time():
    clock, lease_time, seen = a_lease_time()
    lease_time.start()
    began_ms = clock.now_ms()
    for _ in range(5):
        clock._now_ms += 350
        clock.advance(0)
        lease_time.trouble_at(clock.now_ms())
    late_ms = clock.now_ms()
    clock.advance(seconds=10)
    assert seen == [Trouble(began_ms, late_ms, "paused")]


def test_nothing_is_noticed_before_the_start_or_where_it_is_off():
    clock, lease_time, seen = a_lease_time()
    lease_time.trouble_at(clock.now_ms())
    clock.advance(seconds=60)
    lease_time.start()
    assert lease_time.trouble_at(clock.now_ms()) is None
    stopped_ms = clock.now_ms()
    lease_time.stop()
    clock.advance(seconds=60)
    lease_time.stop()
    assert lease_time.trouble_at(clock.now_ms()) == Trouble(stopped_ms, clock.now_ms(), "restart")

    off = LeaseTime(clock, is_on=False)
    off.resume(Trouble(0, clock.now_ms(), "disk"), 0)
    off.waits("x", TroubleKind.DISK)
    off.start()
    clock.advance(seconds=60)
    assert off.trouble_at(clock.now_ms()) is None
    assert seen == []


def test_the_oldest_wait_counts():
    clock, lease_time, seen = a_lease_time()
    lease_time.waits("a", TroubleKind.DATABASE)
    began_ms = clock.now_ms()
    clock.advance(50)
    assert not lease_time.is_in_doubt(clock.now_ms(), clock.now_ms())
    clock.advance(100)
    assert lease_time.is_in_doubt(clock.now_ms(), clock.now_ms())
    assert not lease_time.is_in_doubt(began_ms, clock.now_ms())
    assert lease_time.trouble_at(clock.now_ms()) is None
    for _ in range(10):
        clock.advance(400)
        lease_time.waits("b", TroubleKind.DATABASE)
        clock.advance(100)
        lease_time.answered("b")
    assert lease_time.trouble_at(clock.now_ms()) == Trouble(began_ms, clock.now_ms(), "database")
    assert seen == []
    lease_time.answered("a")
    assert seen == [Trouble(began_ms, clock.now_ms(), "database")]


def test_what_fails_at_once_is_in_trouble_until_something_is_done():
    clock, lease_time, seen = a_lease_time()
    began_ms = clock.now_ms()
    for number in range(20):
        lease_time.waits(number, TroubleKind.DATABASE)
        clock.advance(5)
        lease_time.failed(number)
        lease_time.answered(number)
        clock.advance(seconds=1)
    assert lease_time.trouble_at(clock.now_ms()) == Trouble(began_ms, clock.now_ms(), TroubleKind.DATABASE)
    lease_time.done()
    assert seen == [Trouble(began_ms, clock.now_ms(), TroubleKind.DATABASE)]
    lease_time.done()
    assert len(seen) == 1


def test_a_wait_is_measured_by_itself_and_excuses_everybody_since_the_last_that_was_taken():
    clock, lease_time, seen = a_lease_time()
    taken_ms = clock.now_ms()
    clock.advance(seconds=1)
    with lease_time.waiting(TroubleKind.DATABASE, taken_ms):
        clock.advance(400)
    assert seen == []
    assert lease_time.is_in_doubt(taken_ms + 1, clock.now_ms())
    assert not lease_time.is_in_doubt(taken_ms, clock.now_ms())

    with pytest.raises(KeyError), lease_time.waiting(TroubleKind.DATABASE, taken_ms):
        raise KeyError
    clock.advance(600)
    trouble = Trouble(taken_ms, clock.now_ms(), TroubleKind.DATABASE)
    assert lease_time.trouble_at(clock.now_ms()) == trouble
    lease_time.done()
    assert seen == [trouble]


def test_whoever_waited_for_a_process_that_stood_still_for_a_moment_has_their_turn():
    clock, lease_time, seen = a_lease_time()
    lease_time.start()
    deadline_ms = clock.now_ms() + 1
    clock._now_ms += 400

    assert lease_time.trouble_at(clock.now_ms()) is None
    clock.advance(LET_IN_MS - 1)
    assert lease_time.is_in_doubt(deadline_ms, clock.now_ms())
    assert not lease_time.is_in_doubt(deadline_ms + 400, clock.now_ms())
    assert lease_time.trouble_at(clock.now_ms()) is None
    clock.advance(1)
    assert not lease_time.is_in_doubt(deadline_ms, clock.now_ms())
    assert seen == []


@pytest.mark.parametrize(
    ("visibility_s", "grace_s"), [(0, 2), (2, 2), (5, 2.5), (30, 15), (120, 60), (43_200, 60)]
)
def test_the_grace_is_half_of_the_visibility_timeout_within_bounds(visibility_s, grace_s):
    assert grace_ms(visibility_s) == grace_s * 1000


def test_to_ask_again_with_the_moved_deadline_changes_nothing():
    trouble = Trouble(1_000, 9_000, "disk")
    for deadline_ms in range(500, 30_000, 250):
        moved_ms = trouble.deadline_ms(deadline_ms, 0, 30)
        assert moved_ms >= deadline_ms
        assert trouble.deadline_ms(moved_ms, 0, 30) == moved_ms


def test_a_lease_whose_grace_is_cut_off_by_the_next_trouble_gets_another():
    first, second = Trouble(1_000, 9_000, "disk"), Trouble(9_500, 20_000, "restart")
    assert second.after(first).deadline_ms(2_000, 0, 30) == 35_000
    assert Trouble(100_000, 101_000, "disk").after(first).deadline_ms(2_000, 0, 30) == 2_000


def test_what_others_saw_of_a_trouble_counts_with_what_was_seen_here():
    """The last of several tries to reach the database began late; others know since when it was away."""
    _, lease_time, _ = a_lease_time()
    lease_time.note(Trouble(18_000, 19_500, "database"))
    lease_time.learn(Trouble(11_000, 19_400, "database"))
    assert lease_time.last == Trouble(11_000, 19_500, "database")
    lease_time.learn(Trouble(100, 200, "disk"))
    assert lease_time.last == Trouble(11_000, 19_500, "database")
    lease_time.learn(Trouble(90_000, 91_000, "disk"))
    assert lease_time.last == Trouble(90_000, 91_000, "disk")


def test_in_a_night_of_stalls_the_messages_of_a_dead_holder_come_back():
    trouble, deadline_ms = Trouble(0, 1_500, "disk"), 1_000
    for stall in range(1, 1_000):
        began_ms = 10_000 * stall
        deadline_ms = trouble.deadline_ms(deadline_ms, 0, 60)
        if deadline_ms <= began_ms:
            break
        trouble = Trouble(began_ms, began_ms + 1_500, "disk").after(trouble)
    assert 300_000 < deadline_ms < 500_000


@pytest.mark.parametrize("received_at_ms", [0, 19_900_000], ids=["long ago", "lately"])
def test_in_a_night_of_troubles_whoever_renews_between_them_keeps_the_grace(received_at_ms):
    trouble = Trouble(0, 1_500, "database")
    for failover in range(1, 1_000):
        began_ms = 20_000 * failover
        trouble = Trouble(began_ms, began_ms + 1_500, "database").after(trouble)
    renewed_until_ms = (
        began_ms + 1_600
    )  # just after it is over: too early for a holder who asks again after a rest
    assert trouble.deadline_ms(renewed_until_ms, received_at_ms, 10) == began_ms + 1_500 + 5_000
    # With a grace longer than the gaps a dead holder's message would never come back: it ends for who was received long ago.
    is_long_ago = received_at_ms == 0
    until_ms = renewed_until_ms if is_long_ago else began_ms + 1_500 + 30_000
    assert trouble.deadline_ms(renewed_until_ms, received_at_ms, 60) == until_ms


def test_a_trouble_that_goes_on_after_a_moment_stays_as_far_from_the_one_before():
    first, second = Trouble(0, 1_500, "disk"), Trouble(20_000, 21_000, "disk")
    again = Trouble(22_000, 23_000, "paused").after(second.after(first))
    assert again == Trouble(20_000, 23_000, "paused", healthy_ms=19_500, gap_ms=18_500)
