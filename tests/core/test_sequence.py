"""Order keys: rising, unique, and as old as their send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from veil.core.sequence import (
    SequenceSource,
    expired_below,
    expires_at_ms,
    first_seq_of,
    instant_of,
    seq_with_counter,
    sequence_text,
    wake_at_ms,
)


def test_keys_rise_also_when_time_stands_still_or_goes_back():
    source = SequenceSource()
    keys = [source.next(now_ms) for now_ms in (5, 5, 5, 6, 4, 7)]

    assert keys == sorted(set(keys))


def test_a_key_carries_its_instant():
    assert instant_of(SequenceSource().next(1_234)) == 1_234
    assert instant_of(first_seq_of(1_234)) == 1_234
    assert instant_of(first_seq_of(1_234) - 1) == 1_233


def test_a_source_goes_on_after_the_last_key_it_is_told():
    last = SequenceSource().next(9_000)

    assert SequenceSource(last).next(8_000) == last + 1
    assert SequenceSource(last).next(9_001) == first_seq_of(9_001)


def test_a_burst_runs_ahead_of_time_rather_than_repeat_a_key():
    source = SequenceSource(first_seq_of(6) - 1)  # the last key of millisecond 5

    assert instant_of(source.next(5)) == 6


@given(st.integers(0, 10_000_000), st.integers(0, 10_000_000), st.integers(60, 1_209_600))
def test_a_key_is_below_the_bound_exactly_when_its_retention_is_over(sent_ms, later_ms, retention_s):
    seq, now_ms = first_seq_of(sent_ms) + 3, sent_ms + later_ms

    assert (seq < expired_below(now_ms, retention_s)) == (expires_at_ms(seq, retention_s) <= now_ms)


def test_the_bound_falls_on_the_millisecond():
    seq = first_seq_of(1_000_000)

    assert seq >= expired_below(1_059_999, 60)
    assert seq < expired_below(1_060_000, 60)
    assert expires_at_ms(seq, 60) == 1_060_000


def test_nothing_has_expired_before_there_was_time_for_it():
    assert expired_below(59_999, 60) == 0


def test_the_text_of_a_key_is_twenty_digits_that_compare_like_numbers():
    small, large = sequence_text(9), sequence_text(10**18)

    assert len(small) == len(large) == 20
    assert small < large


def test_the_layout_of_a_key_is_what_stands_on_disks():
    assert first_seq_of(1) == 1 << 20
    assert wake_at_ms(first_seq_of(1_000), 70_000, 60) == 61_000  # its retention ends first
    assert wake_at_ms(first_seq_of(1_000), 50_000, 60) == 50_000
    assert wake_at_ms(first_seq_of(1_000), None, 60) is None
    assert seq_with_counter(1, (1 << 20) + 5) == (1 << 20) | 5
