"""The rules of a hold, called as functions."""

from __future__ import annotations

import pytest

from tests.core.test_lease import FREE, NOW_MS, OPEN
from veil.core.errors import HoldNameRefused
from veil.core.lease import NUMBER_MAX, HoldTally, MemberState, check_name, check_number, judge_member


@pytest.mark.parametrize(
    ("held", "delivery", "expected"),
    [
        (None, 3, MemberState.LOST),
        (OPEN, 3, MemberState.OPEN),
        (OPEN, 2, MemberState.LOST),
        (
            OPEN._replace(delivery=1_003),
            3,
            MemberState.OPEN,
        ),  # after a restore: the number of the lease counts
        (OPEN._replace(holder=2), 3, MemberState.LOST),  # an older receipt has it
        (OPEN._replace(due_at_ms=NOW_MS), 3, MemberState.LAPSED),
        (OPEN._replace(due_at_ms=NOW_MS), 2, MemberState.LOST),
        (FREE, 3, MemberState.LAPSED),
        (FREE, 2, MemberState.LOST),
        (FREE, 4, MemberState.LOST),
    ],
)
def test_a_member_is_held_lapsed_or_lost(held, delivery, expected):
    assert judge_member(held, delivery, NOW_MS) is expected


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 80])
def test_a_stream_has_a_plain_name(name):
    check_name("Stream", name)


@pytest.mark.parametrize("name", ["", "x" * 81, "a b", "a/b", "ä", "a\n"])
def test_any_other_name_is_refused_with_what_was_expected(name):
    with pytest.raises(HoldNameRefused, match=r"^Stream=.*: expected 1 to 80 of"):
        check_name("Stream", name)


def test_batches_and_parts_are_whole_numbers_that_a_store_can_keep():
    check_number("Batch", 0)
    check_number("Batch", NUMBER_MAX)
    for number in (-1, NUMBER_MAX + 1):
        with pytest.raises(HoldNameRefused, match=f"^Batch={number}: expected a whole number from 0 to"):
            check_number("Batch", number)


def test_tallies_add_up():
    assert HoldTally(1, 2).plus(HoldTally(3, 4)) == (4, 6)
