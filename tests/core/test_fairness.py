"""Which groups of a fair queue are noisy."""

from __future__ import annotations

import pytest

from veil.core.sequence import noisy_groups


@pytest.mark.parametrize(
    ("count", "total", "noisy"),
    [
        (29, 29, False),
        (30, 30, True),
        (30, 300, False),
        (30, 299, True),
        (31, 300, True),
        (120_000, 120_000, True),
    ],
)
def test_a_group_is_noisy_from_thirty_in_flight_if_that_is_more_than_a_tenth(count, total, noisy):
    assert noisy_groups({"g": count}, total) == (["g"] if noisy else [])


def test_the_one_with_the_fewest_in_flight_stands_in_front_and_ties_go_by_name():
    assert noisy_groups({"c": 40, "b": 40, "a": 50, "d": 35, "e": 3}, 168) == ["d", "b", "c", "a"]


def test_nobody_is_noisy_when_nothing_is_in_flight():
    assert noisy_groups({}, 0) == []
