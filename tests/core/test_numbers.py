"""Numbers that somebody else wrote: plain digits within a bound, or none."""

from __future__ import annotations

import pytest

from veil.core.text import seq_number, whole_number


@pytest.mark.parametrize(
    "text", ["", " 1", "+1", "-1", "1_000", "²", "٣", "1e3", "0x1", "1" * 19, "9" * 5_000, None]
)
def test_what_is_not_plain_digits_within_the_bound_is_no_number(text: str | None):
    assert whole_number(text) is None


def test_plain_digits_are_a_number():
    assert (whole_number("0"), whole_number("007"), whole_number("9" * 18)) == (0, 7, 10**18 - 1)


def test_a_key_fits_the_stores():
    assert seq_number(str((1 << 63) - 1)) == (1 << 63) - 1
    assert [seq_number(text) for text in ("0", str(1 << 63), "9" * 19, "x")] == [None] * 4
