"""The survival curve, on cases small enough to work out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veil.pipeline.lifecycles.tables import bucket_of, lower_ms, upper_ms
from veil.pipeline.timeouts.history import History, bucket_of_s, middle_s
from veil.pipeline.timeouts.recommendation import sort_lapses
from veil.pipeline.timeouts.survival import estimate


def edge_s(length_ms: float) -> float:
    return upper_ms(bucket_of(length_ms)) / 1000


def test_without_censoring_it_is_the_share_that_took_longer():
    curve = estimate({bucket_of(1_000): 50, bucket_of(2_000): 30, bucket_of(8_000): 20}, {})

    assert curve.at(0.5)[0] == 1.0
    assert curve.at(edge_s(1_000))[0] == pytest.approx(0.5)
    assert curve.at(edge_s(2_000))[0] == pytest.approx(0.2)
    assert curve.at(5.0)[0] == pytest.approx(0.2)  # flat where nothing ended
    assert curve.at(100.0)[0] == 0.0


def test_leases_cut_off_at_a_deadline_count_as_at_risk_until_then_and_not_after():
    """Kaplan and Meier by hand: 40 of 100 end at 1 s, 30 are cut off at 5 s, 15 of the other 30 end at 10 s."""
    curve = estimate({bucket_of(1_000): 40, bucket_of(10_000): 15, bucket_of(60_000): 15}, {}, [(5.0, 30)])

    assert curve.at(edge_s(1_000))[0] == pytest.approx(0.6)
    assert curve.at(edge_s(10_000))[0] == pytest.approx(0.6 * 0.5)
    assert curve.at(edge_s(60_000))[0] == 0.0


def test_the_interval_is_greenwoods_on_the_log_log_scale():
    curve = estimate({bucket_of(1_000): 40, bucket_of(10_000): 15, bucket_of(60_000): 15}, {}, [(5.0, 30)])

    chance, low, high = curve.at(edge_s(10_000))
    greenwood = 40 / (100 * 60) + 15 / (30 * 15)
    spread = 1.959964 * math.sqrt(greenwood) / math.log(chance)
    assert (low, high) == pytest.approx((chance ** math.exp(-spread), chance ** math.exp(spread)), rel=1e-9)


def test_the_curve_and_its_interval_are_those_of_the_textbooks():
    """The remissions under 6-mercaptopurine of Freireich et al. (1963), with the log-log intervals that R's `survfit` gives."""
    ended = {6: 3, 7: 1, 10: 1, 13: 1, 16: 1, 22: 1, 23: 1}
    cut_off = [
        (6, 1),
        (9, 1),
        (10, 1),
        (11, 1),
        (17, 1),
        (19, 1),
        (20, 1),
        (25, 1),
        (32, 2),
        (34, 1),
        (35, 1),
    ]
    curve = estimate({bucket_of(at_s * 1_000): count for at_s, count in ended.items()}, {}, cut_off)

    for at_s, expected in {
        6: (0.8571, 0.6197, 0.9516),
        7: (0.8067, 0.5631, 0.9228),
        10: (0.7529, 0.5032, 0.8894),
        13: (0.6902, 0.4316, 0.8491),
        16: (0.6275, 0.3675, 0.8049),
        22: (0.5378, 0.2678, 0.7468),
        23: (0.4482, 0.1881, 0.6801),
    }.items():
        assert curve.at(edge_s(at_s * 1_000)) == pytest.approx(expected, abs=0.0001)


def test_what_ends_in_the_bucket_of_the_deadline_was_at_risk_with_those_cut_off():
    """30 s lies near the upper end of its bucket: to let the cut off leave half-way would count 100 of 1,000 too many."""
    curve = estimate({bucket_of(29_500): 100}, {}, [(30.0, 900)])

    assert bucket_of(29_500) == bucket_of(30_000)
    assert curve.at(30.0)[0] == pytest.approx(0.9)


def test_completions_of_that_bucket_are_not_moved_beyond_the_deadline_where_nothing_is_seen_there():
    curve = estimate({bucket_of(10_000): 500, bucket_of(29_500): 100}, {}, [(30.0, 400)])

    assert curve.end_s == 30.0
    assert curve.at(30.0)[0] == pytest.approx(0.4)
    assert curve.at(3_000.0)[0] == pytest.approx(0.4)  # nothing is known, so it is not taken to fall


def test_where_nothing_is_left_of_the_curve_the_upper_end_is_that_of_none_out_of_so_many():
    curve = estimate({bucket_of(1_000): 500, bucket_of(2_000): 500}, {})

    chance, low, high = curve.at(60.0)
    assert (chance, low) == (0.0, 0.0)
    assert high == pytest.approx(1 - 0.025 ** (1 / 1_000), rel=0.01)


def test_crashes_leave_at_a_steady_rate_of_the_work():
    """Every lease works 10 s; of 1,000 that begin, 100 crash: the rate is such that 90 % survive 10 s."""
    curve = estimate({bucket_of(10_000): 900}, {}, crashed=100)

    at_s = (lower_ms(bucket_of(10_000)) + upper_ms(bucket_of(10_000))) / 2000
    assert math.exp(-curve.crashes_per_s * at_s) == pytest.approx(0.9, rel=1e-6)
    assert curve.at(9.0)[0] == 1.0
    assert curve.at(60.0)[0] == 0.0
    assert curve.at_risk[0] == pytest.approx(1_000)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("completed", [{}, {bucket_of(2_000): 100}])
def test_leases_without_a_window_tell_nothing_of_when_others_crashed(completed: dict[int, int]):
    """A receive with a visibility of 0 lapses at once."""
    curve = estimate(completed, {}, at_work=[(0.0, 5)], crashed=3.0)
    for values in (curve.chance, curve.low, curve.high, curve.at_risk, curve.worked_s):
        assert np.isfinite(values).all()
    assert (curve.crashes_per_s > 0) == bool(completed)


def test_quantiles_stop_where_the_curve_does():
    curve = estimate({bucket_of(1_000): 95}, {}, [(30.0, 5)])

    assert curve.quantile_s(0.5) == pytest.approx(1.0, rel=0.05)
    assert curve.quantile_s(0.99) is None


def test_nothing_observed_is_a_curve_that_knows_nothing():
    curve = estimate({}, {})

    assert curve.at(10.0) == (1.0, 0.0, 1.0)
    assert curve.quantile_s(0.5) is None


def test_a_deadline_on_the_edge_of_a_bucket_comes_before_all_that_is_in_it():
    curve = estimate({bucket_of(1_000): 500, bucket_of(4_096): 250}, {}, [(4.096, 250)])

    assert lower_ms(bucket_of(4_096)) == 4_096
    assert curve.at(4.096)[0] == pytest.approx(0.5)
    assert curve.at(edge_s(4_096))[0] == 0.0


def test_leases_that_lapsed_lie_where_they_did_and_not_where_others_were_released():
    history = History(leases=30)
    history.windows[10_000] = 30
    history.lapses.update({bucket_of_s(10): 15, bucket_of_s(50): 5})  # five had been extended
    history.censored[bucket_of_s(90)] = 10

    sorted_ = sort_lapses(history)

    assert sorted_.at_work == [(10.0, 15.0), (middle_s(bucket_of_s(50)), 5.0)]
    assert sorted_.elsewhere == {bucket_of_s(90): 10}
