"""The small rules under the runs: intervals, buckets, and how messages are spread over tasks."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from veil.pipeline.lifecycles.columns import INSTANT
from veil.pipeline.lifecycles.generation import _EVENTS_A_SLICE_MAX, _EVENTS_A_SLICE_MIN, slices_of
from veil.pipeline.lifecycles.journal import added, covers, touches
from veil.pipeline.lifecycles.store import Hour
from veil.pipeline.lifecycles.sums import _begun, buckets_of
from veil.pipeline.lifecycles.tables import (
    BUCKET_MAX,
    bucket_of,
    day_of,
    instant_of,
    lower_ms,
    month_of,
    upper_ms,
)
from veil.pipeline.spark.session import SparkSettings, chosen


def test_intervals_join_where_they_meet() -> None:
    found: list[tuple[int, int]] = []
    for first, last in [(1, 3), (7, 9), (4, 5), (6, 6)]:
        found = added(found, first, last)
    assert found == [(1, 9)]
    assert added([(1, 2)], 5, 6) == [(1, 2), (5, 6)]


def test_covering_and_touching_are_told_apart() -> None:
    known = [(1, 5), (8, 9)]
    assert covers(known, 2, 5) and not covers(known, 5, 8)
    assert touches(known, 5, 8) and not touches(known, 6, 7)


def test_intervals_agree_with_sets() -> None:
    rng = random.Random(3)
    for _ in range(200):
        intervals, numbers = [], set[int]()
        for _ in range(rng.randrange(8)):
            first = rng.randrange(30)
            last = first + rng.randrange(4)
            intervals = added(intervals, first, last)
            numbers |= set(range(first, last + 1))
        asked = range(first := rng.randrange(30), first + rng.randrange(1, 5))
        assert covers(intervals, asked[0], asked[-1]) == numbers.issuperset(asked)
        assert touches(intervals, asked[0], asked[-1]) == (not numbers.isdisjoint(asked))


def test_whole_columns_fall_into_the_buckets_that_single_lengths_do() -> None:
    lengths = [0, 1, 2, 3, 999, 1_000, 4_095, 4_096, 60_000, 43_200_000, 1 << 40]

    assert buckets_of(np.array(lengths)).tolist() == [bucket_of(each) for each in lengths]
    assert all(lower_ms(b) <= each < upper_ms(b) for each in lengths[1:-1] for b in [bucket_of(each)])
    assert bucket_of(1 << 40) == BUCKET_MAX


def test_every_hour_is_in_the_day_and_month_that_the_calendar_says() -> None:
    instants = []
    for hour in (*range(0, 24 * 366 * 5, 23), *range(500_000, 510_000, 71)):
        at = datetime.fromtimestamp(hour * 3600, UTC)
        day = day_of(hour)
        assert month_of(day) == (at.year - 1970) * 12 + at.month - 1
        assert instant_of(day) == at.replace(hour=0)
        instants.append(at)
    hours = pa.table({"hour": pa.array(instants, INSTANT)})
    assert _begun(hours, "day")["hour"].to_pylist() == [at.replace(hour=0) for at in instants]
    assert _begun(hours, "month")["hour"].to_pylist() == [at.replace(day=1, hour=0) for at in instants]


def test_a_spark_of_ours_has_the_quick_compiler_alone_unless_somebody_chose(tmp_path: Path) -> None:
    for name in ("spark.driver.extraJavaOptions", "spark.executor.defaultJavaOptions"):
        assert chosen(SparkSettings(), tmp_path)[name] == "-XX:TieredStopAtLevel=1"
        assert chosen(SparkSettings(conf={name: "-Da=b"}), tmp_path)[name] == "-Da=b"


def test_quiet_hours_share_a_slice_and_a_busy_one_is_cut_between_minutes() -> None:
    quiet = slices_of(range(2_000), {hour * 60 + 7: 100 for hour in range(2_000)}, {})
    assert len(quiet) <= 2_000 * 100 // _EVENTS_A_SLICE_MIN + 1
    assert all(each.is_whole for each in quiet)

    busy = slices_of([1, 2, 3], {70: 10, **dict.fromkeys(range(120, 180), 1000000), 190: 10}, {})
    assert len(busy) == 62
    assert [each.is_whole for each in busy] == [True, *[False] * 60, True]
    assert all(one.end == other.first for one, other in itertools.pairwise(busy))


def test_stored_rows_count_when_hours_are_cut() -> None:
    hour = Hour(rows=60 * _EVENTS_A_SLICE_MAX)
    cut = slices_of([5], {300: 1}, {5: hour})
    assert len(cut) == 60
    assert all(each.hours == {5: hour} and not each.is_whole for each in cut)


def test_an_hour_of_which_little_is_new_stays_whole() -> None:
    hour, little = Hour(rows=3 * _EVENTS_A_SLICE_MIN), {300: 1, 310: _EVENTS_A_SLICE_MIN}
    assert [each.is_whole for each in slices_of([5], little, {5: hour})] == [True]
    assert len(slices_of([5], dict.fromkeys(range(300, 360), hour.rows), {5: hour})) > 1
