"""Runs over a growing journal: however it comes in, the tables are the same, and only what is touched is written."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.journal_kit import (
    HOUR_MS,
    START_MS,
    JournalEvent,
    S,
    a_message,
    cut,
    journal_of,
    numbered,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.random_lives import random_journal
from tests.pipeline.tables_kit import all_rows, difference, rows_of
from veil.journal.place import Place
from veil.journal.segments import list_segments
from veil.pipeline.journal_reading import hours_by_spark, hours_of, read_events
from veil.pipeline.lifecycles import run_lifecycles
from veil.pipeline.manifest import NAME, load_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS


def written(place: Place, stories: list[JournalEvent], first_row: int) -> int:
    write_segment_of(place, numbered(stories, first_row=first_row))
    return first_row + len(stories)


@pytest.mark.parametrize("seed", [11, 12])
def test_any_split_and_order_of_the_segments_over_several_runs_gives_the_same_tables(
    spark: SparkSession, journal_place: Place, tables_place: Place, seed: int
) -> None:
    rng = random.Random(seed)
    events = numbered(random_journal(rng, 120))
    pieces = cut(events, 9, rng)
    rng.shuffle(pieces)
    while pieces:
        for piece in [pieces.pop() for _ in range(min(len(pieces), rng.randrange(1, 5)))]:
            write_segment_of(journal_place, piece)
        run_lifecycles(spark, journal_place, tables_place)

    assert difference(all_rows(spark, tables_place), model_tables(events)) == ""
    assert load_manifest(tables_place).progress == {"j1": [(1, len(events))]}


def test_a_second_run_changes_nothing(spark: SparkSession, journal_place: Place, tables_place: Place) -> None:
    write_segment_of(journal_place, journal_of(a_message(T).received(T + S).deleted(T + 2 * S)))
    first = run_lifecycles(spark, journal_place, tables_place)
    files, manifest = tables_place.entries(recursive=True), tables_place.read(NAME)

    second = run_lifecycles(spark, journal_place, tables_place)

    assert (first.changed, second.changed, second.events, second.segments) == (True, False, 0, 0)
    assert (tables_place.entries(recursive=True), tables_place.read(NAME)) == (files, manifest)


def test_a_run_writes_only_the_hours_that_its_events_belong_to(
    spark: SparkSession, journal_place: Place, tables_place: Place
) -> None:
    quiet = [
        a_message(T + hour * HOUR_MS).received(T + hour * HOUR_MS).deleted(T + hour * HOUR_MS + S)
        for hour in range(3)
    ]
    row = written(journal_place, journal_of(*quiet), 1)
    run_lifecycles(spark, journal_place, tables_place)
    before = load_manifest(tables_place).hours
    late = a_message(T + HOUR_MS, counter=0)
    late.events.clear()
    written(journal_place, late.delete_refused(T + 9 * HOUR_MS, delivery=1).events, row)

    run = run_lifecycles(spark, journal_place, tables_place)

    after = load_manifest(tables_place).hours
    assert run.partitions == 1
    assert [before[part] == after[part] for part in sorted(before)] == [True, False, True]
    # The day adds up over the hours that were not touched too.
    (day,) = rows_of(spark, tables_place, "queue_days")
    assert (day["sent"], day["leases"], day["deleted"], day["hour"]) == (3, 3, 3, T)


def test_an_open_lease_expires_when_time_has_passed_without_any_event_of_its_own(
    spark: SparkSession, journal_place: Place, tables_place: Place
) -> None:
    """Every crash ends so."""
    row = written(journal_place, journal_of(a_message(T).received(T + S)), 1)
    run_lifecycles(spark, journal_place, tables_place)
    assert [lease["how"] for lease in rows_of(spark, tables_place, "leases")] == ["open"]
    row = written(journal_place, a_message(T + 2 * HOUR_MS, queue="other").events, row)

    run = run_lifecycles(spark, journal_place, tables_place)

    (lease,) = rows_of(spark, tables_place, "leases")
    assert (lease["how"], lease["ended_at"], lease["held_ms"]) == ("expired", T + 31 * S, 30 * S)
    assert run.partitions == 2
    # Once it is judged for good, time does not touch its hour again.
    written(journal_place, a_message(T + 3 * HOUR_MS, queue="other").events, row)
    assert run_lifecycles(spark, journal_place, tables_place).partitions == 1


def test_the_hours_of_new_events_are_the_same_whether_spark_or_the_driver_looks(
    spark: SparkSession, journal_place: Place
) -> None:
    write_segment_of(journal_place, numbered(random_journal(random.Random(5), 50)))
    segments = list_segments(journal_place)

    found = hours_of(spark, journal_place, segments)

    assert found == hours_by_spark(read_events(spark, journal_place, segments))
    assert len(found.events) > 5


def test_journals_of_a_restored_store_follow_each_other(
    spark: SparkSession, journal_place: Place, tables_place: Place
) -> None:
    story = a_message(T).received(T + S).deleted(T + 5 * S)
    write_segment_of(journal_place, numbered(story.events[:2]), journal_id="before")
    write_segment_of(journal_place, numbered(story.events[2:]), journal_id="after")

    run_lifecycles(spark, journal_place, tables_place)

    (lease,) = rows_of(spark, tables_place, "leases")
    assert lease["how"] == "deleted"
    assert load_manifest(tables_place).progress == {"before": [(1, 2)], "after": [(1, 1)]}
