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
    no_spark,
    numbered,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.random_lives import random_journal
from tests.pipeline.tables_kit import all_rows, difference, rows_of
from veil.journal.segments import list_segments
from veil.journal.storage import Storage
from veil.pipeline.lifecycles import generation
from veil.pipeline.lifecycles.generation import FILES_MAX
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.pipeline.lifecycles.store import NAME, load_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS


def written(place: Storage, stories: list[JournalEvent], first_row: int) -> int:
    write_segment_of(place, numbered(stories, first_row=first_row))
    return first_row + len(stories)


@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 30))]
)
def test_any_split_and_order_of_the_segments_over_several_runs_gives_the_same_tables(
    journal_place: Storage, tables_place: Storage, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    events = numbered(random_journal(rng, 200))
    pieces = cut(events, 9, rng)
    rng.shuffle(pieces)
    # Hours that are in one slice, that share one, and that are cut into many.
    monkeypatch.setattr(generation, "_EVENTS_A_SLICE_MIN", rng.choice([1, 20, 100_000]))
    while pieces:
        for piece in [pieces.pop() for _ in range(min(len(pieces), rng.randrange(1, 5)))]:
            write_segment_of(journal_place, piece)
        run_lifecycles(no_spark, journal_place, tables_place)

    assert difference(all_rows(tables_place), model_tables(events)) == ""
    assert load_manifest(tables_place).progress == {"j1": [(1, len(events))]}


def test_spark_makes_the_same_tables_in_several_runs(
    spark: SparkSession, journal_place: Storage, tables_place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    events = numbered(random_journal(rng, 150))
    monkeypatch.setattr(generation, "_EVENTS_A_SLICE_MIN", 60)
    monkeypatch.setattr(generation, "_BYTES_A_SPLIT", 1)
    for piece in cut(events, 2, rng):
        for half in cut(piece, 2, rng):
            write_segment_of(journal_place, half)
        run_lifecycles(spark, journal_place, tables_place, bytes_here_max=0)

    assert difference(all_rows(tables_place), model_tables(events)) == ""
    named = {entry.name for entry in tables_place.entries(recursive=True) if entry.name.endswith(".parquet")}
    manifest = load_manifest(tables_place)
    assert named == {*manifest.files_kept()}


def test_a_second_run_changes_nothing(journal_place: Storage, tables_place: Storage) -> None:
    write_segment_of(journal_place, journal_of(a_message(T).received(T + S).deleted(T + 2 * S)))
    first = run_lifecycles(no_spark, journal_place, tables_place)
    files, manifest = tables_place.entries(recursive=True), tables_place.read(NAME)

    second = run_lifecycles(no_spark, journal_place, tables_place)

    assert (first.changed, second.changed, second.events, second.segments) == (True, False, 0, 0)
    assert (tables_place.entries(recursive=True), tables_place.read(NAME)) == (files, manifest)


def test_a_run_writes_only_the_hours_that_its_events_belong_to(
    journal_place: Storage, tables_place: Storage
) -> None:
    quiet = [
        a_message(T + hour * HOUR_MS).received(T + hour * HOUR_MS).deleted(T + hour * HOUR_MS + S)
        for hour in range(3)
    ]
    row = written(journal_place, journal_of(*quiet), 1)
    run_lifecycles(no_spark, journal_place, tables_place)
    before = load_manifest(tables_place).hours
    late = a_message(T + HOUR_MS, counter=0)
    late.events.clear()
    written(journal_place, late.delete_refused(T + 9 * HOUR_MS, delivery=1).events, row)

    run = run_lifecycles(no_spark, journal_place, tables_place)

    after = load_manifest(tables_place).hours
    assert run.partitions == 1
    assert [before[part] == after[part] for part in sorted(before)] == [True, False, True]
    # The day adds up over the hours that were not touched too.
    (day,) = rows_of(tables_place, "queue_days")
    assert (day["sent"], day["leases"], day["deleted"], day["hour"]) == (3, 3, 3, T)


def test_messages_that_nothing_new_is_told_of_stay_in_the_files_they_are_in(
    journal_place: Storage, tables_place: Storage
) -> None:
    told = [a_message(T + number).received(T + S).deleted(T + 2 * S + number) for number in range(3)]
    row = written(journal_place, journal_of(*told), 1)
    run_lifecycles(no_spark, journal_place, tables_place)
    (before,) = load_manifest(tables_place).hours.values()
    other = a_message(T + 9 * S)
    row = written(journal_place, other.events, row)
    run_lifecycles(no_spark, journal_place, tables_place)

    (after,) = load_manifest(tables_place).hours.values()
    assert (before.leases[0] in after.leases, before.messages[0] in after.messages) == (True, True)

    # One of them is told of again: the others are copied, and no file has it twice.
    late = a_message(T + 1)
    late.events.clear()
    written(journal_place, late.delete_refused(T + 8 * HOUR_MS, delivery=1).events, row)
    run_lifecycles(no_spark, journal_place, tables_place)

    (again,) = load_manifest(tables_place).hours.values()
    assert before.leases[0] not in again.leases
    assert sorted(each["seq"] for each in rows_of(tables_place, "messages")) == [
        each.seq for each in (*told, other)
    ]


def test_what_is_told_of_messages_that_are_still_there_leaves_the_file_of_the_ended_as_it_is(
    journal_place: Storage, tables_place: Storage
) -> None:
    ended = [a_message(T + number).received(T + S).deleted(T + 2 * S) for number in range(3)]
    held = a_message(T + 5).received(T + S)
    row = written(journal_place, journal_of(*ended, held), 1)
    run_lifecycles(no_spark, journal_place, tables_place)
    (before,) = load_manifest(tables_place).hours.values()
    held.events.clear()
    written(journal_place, held.deleted(T + 3 * S).events, row)

    run_lifecycles(no_spark, journal_place, tables_place)

    (after,) = load_manifest(tables_place).hours.values()
    for table in ("leases", "messages"):
        files = [set(getattr(hour, table)) for hour in (before, after)]
        assert [len(each) for each in (*files, files[0] & files[1])] == [2, 2, 1], table
    assert {lease["how"] for lease in rows_of(tables_place, "leases")} == {"deleted"}


def test_an_hour_of_many_files_keeps_the_largest_and_puts_the_small_ones_together(
    journal_place: Storage, tables_place: Storage
) -> None:
    large = [event for number in range(50) for event in a_message(T + number).events]
    row, counts, files = written(journal_place, large, 1), [], list[tuple[str, ...]]()
    for number in range(FILES_MAX + 3):
        run_lifecycles(no_spark, journal_place, tables_place)
        (hour,) = load_manifest(tables_place).hours.values()
        files.append(hour.messages)
        counts.append(len(hour.messages))
        row = written(journal_place, a_message(T + 100 + number).events, row)

    assert counts == [*range(1, FILES_MAX + 2), FILES_MAX + 1, FILES_MAX + 1]
    assert set(files[0]) < set(files[-1])
    assert len(rows_of(tables_place, "messages")) == 50 + FILES_MAX + 2


def test_an_open_lease_expires_when_time_has_passed_without_any_event_of_its_own(
    journal_place: Storage, tables_place: Storage
) -> None:
    """Every crash ends so."""
    row = written(journal_place, journal_of(a_message(T).received(T + S)), 1)
    run_lifecycles(no_spark, journal_place, tables_place)
    assert [lease["how"] for lease in rows_of(tables_place, "leases")] == ["open"]
    row = written(journal_place, a_message(T + 2 * HOUR_MS, queue="other").events, row)

    run = run_lifecycles(no_spark, journal_place, tables_place)

    (lease,) = rows_of(tables_place, "leases")
    assert (lease["how"], lease["ended_at"], lease["held_ms"]) == ("expired", T + 31 * S, 30 * S)
    assert run.partitions == 2
    # Once it is judged for good, time does not touch its hour again.
    written(journal_place, a_message(T + 3 * HOUR_MS, queue="other").events, row)
    assert run_lifecycles(no_spark, journal_place, tables_place).partitions == 1


def test_spark_is_asked_for_when_much_is_new_and_not_before(
    journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, journal_of(a_message(T).received(T).deleted(T + S)))
    (segment,) = list_segments(journal_place)

    with pytest.raises(AssertionError, match="Spark was asked for"):
        run_lifecycles(no_spark, journal_place, tables_place, bytes_here_max=segment.size - 1)
    assert run_lifecycles(no_spark, journal_place, tables_place, bytes_here_max=segment.size).events == 3


def test_journals_of_a_restored_store_follow_each_other(
    journal_place: Storage, tables_place: Storage
) -> None:
    story = a_message(T).received(T + S).deleted(T + 5 * S)
    write_segment_of(journal_place, numbered(story.events[:2]), journal_id="before")
    write_segment_of(journal_place, numbered(story.events[2:]), journal_id="after")

    run_lifecycles(no_spark, journal_place, tables_place)

    (lease,) = rows_of(tables_place, "leases")
    assert lease["how"] == "deleted"
    assert load_manifest(tables_place).progress == {"before": [(1, 2)], "after": [(1, 1)]}
