"""The small rules under the runs: intervals, buckets, and how messages are spread over tasks."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from veil.pipeline.lifecycles.generation import ROWS_A_TASK_MAX, ROWS_A_TASK_MIN, spread_out
from veil.pipeline.lifecycles.journal import added, covers, touches
from veil.pipeline.lifecycles.scales import (
    BUCKET_MAX,
    DAYS,
    LEVELS,
    MONTHS,
    begin_ms_sql,
    bucket_of,
    bucket_sql,
    day_of,
    instant_of,
    lower_ms,
    month_of,
    part_sql,
    upper_ms,
)
from veil.pipeline.spark.session import SparkSettings, chosen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def test_spark_puts_every_length_into_the_bucket_that_python_does_and_nothing_into_none(
    spark: SparkSession,
) -> None:
    lengths = [None, 0, 1, 2, 3, 999, 1_000, 4_095, 4_096, 60_000, 43_200_000, 1 << 40]
    rows = spark.createDataFrame([(each,) for each in lengths], "ms bigint")

    found = rows.selectExpr("ms", bucket_sql("ms")).collect()

    assert {row[0]: row[1] for row in found} == {
        each: None if each is None else bucket_of(each) for each in lengths
    }
    assert all(lower_ms(b) <= each < upper_ms(b) for each in lengths[2:-1] for b in [bucket_of(each)])
    assert bucket_of(1 << 40) == BUCKET_MAX


def test_spark_puts_every_hour_into_the_day_and_month_that_python_does(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    hours = [*range(0, 24 * 366 * 5, 23), *range(500_000, 510_000, 71)]
    rows = spark.createDataFrame([(each,) for each in hours], "hour int")
    parts = [F.expr(part_sql(level, "hour")).alias(level) for level in LEVELS]
    begins = [F.expr(begin_ms_sql(level, level)).alias(f"{level}_ms") for level in LEVELS]

    found = rows.select("hour", *parts).select("*", *begins).collect()

    for row in found:
        at = datetime.fromtimestamp(row["hour"] * 3600, UTC)
        day = day_of(row["hour"])
        assert (row[DAYS], row[MONTHS]) == (day, month_of(day))
        assert row[MONTHS] == (at.year - 1970) * 12 + at.month - 1
        assert instant_of(day) == at.replace(hour=0)
        assert row["queue_days_ms"] == instant_of(day).timestamp() * 1000
        assert row["queue_months_ms"] == at.replace(day=1, hour=0).timestamp() * 1000


def test_a_session_for_brief_work_has_the_quick_compiler_alone_unless_somebody_chose(tmp_path: Path) -> None:
    name = "spark.driver.extraJavaOptions"

    assert name not in chosen(SparkSettings(), tmp_path)
    assert chosen(SparkSettings(brief=True), tmp_path)[name] == "-XX:TieredStopAtLevel=1"
    assert chosen(SparkSettings(brief=True, conf={name: "-Da=b"}), tmp_path)[name] == "-Da=b"


def test_quiet_hours_share_a_task_and_a_busy_one_has_several() -> None:
    quiet = spread_out(dict.fromkeys(range(2000), 100))
    assert quiet.tasks <= 2000 * 100 // ROWS_A_TASK_MIN + 1
    busy = spread_out({1: 10, 2: 100 * ROWS_A_TASK_MAX, 3: 10})
    assert [each.tasks for each in busy.slices] == [1, 100, 1]
    assert spread_out({}).tasks == 1


def test_every_row_gets_a_task_that_exists_and_hours_keep_to_theirs(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = dict.fromkeys(range(100, 140), ROWS_A_TASK_MIN // 3) | {120: ROWS_A_TASK_MIN * 40}
    spread = spread_out(rows)
    found = (
        spark.range(4000)
        .selectExpr("id as seq", "cast(95 + id % 50 as int) as part")
        .select("part", F.expr(spread.sql("part", "seq")).alias("task"))
        .groupBy("part")
        .agg(F.min("task").alias("low"), F.max("task").alias("high"), F.count_distinct("task").alias("tasks"))
        .collect()
    )
    assert all(0 <= row.low <= row.high < spread.tasks for row in found)
    several = {row.part for row in found if row.tasks > 1}
    assert several == {120}
