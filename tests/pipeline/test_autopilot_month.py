"""The simulated month of `bench.autopilot`, shortened: the same decisions over some days of virtual time."""

from __future__ import annotations

import numpy as np

from bench.autopilot import QUEUES, START_MS, Simulated, month, taken_back_h
from veil.core.autopilot import DAY_MS


def test_two_days_bring_a_steady_queue_near_the_best_fixed_timeout():
    queue, row, _ = month(QUEUES[0], 2, 7)
    assert 200 <= queue.timeout_s <= 400  # 270 s costs least
    assert row["against_30s"] > 5
    assert sum(row["changes_a_week"]) <= 3


def test_a_wrong_change_is_taken_back_within_an_hour_of_traffic():
    queue, _, _ = month(QUEUES[0], 4, 7)
    assert queue.memory.days
    assert taken_back_h(queue, START_MS + 4 * DAY_MS, 11) <= 1.0


def test_crashes_alone_change_nothing_before_a_day_of_them_was_seen():
    queue = Simulated(QUEUES[0], np.random.default_rng(3), 0.02, timeout_s=300)
    queue.state = queue.state.__class__(seen_s=300)
    for now_ms in range(START_MS, START_MS + DAY_MS // 4, 600_000):
        queue.play(now_ms)
        queue.learn(now_ms + 600_000)
        queue.steer(now_ms + 600_000, due=True)
    assert queue.timeout_s == 300


def test_what_began_under_a_longer_timeout_holds_up_nothing_that_is_known_sooner():
    queue = Simulated(QUEUES[0], np.random.default_rng(3), timeout_s=7_200)
    queue.play(START_MS)
    queue.timeout_s = 20
    queue.play(START_MS + 600_000)
    queue.learn(START_MS + 1_800_000)
    assert [tick.history.present_ms for tick in queue.pending] == [7_200_000]
