"""The clock that tests own."""

from __future__ import annotations

from veil.core.clock import ManualClock


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
