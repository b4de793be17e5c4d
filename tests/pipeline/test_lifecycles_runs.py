"""Runs over a growing journal: however it comes in, the tables are the same, and only what is touched is written."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

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
from veil.journal.segments import list_segments
from veil.journal.storage import Storage
from veil.pipeline.lifecycles import journal as journal_reading
from veil.pipeline.lifecycles import run as lifecycles
from veil.pipeline.lifecycles.generation import FILES_MAX, part_hours
from veil.pipeline.lifecycles.journal import hours_by_spark, hours_of, read_events
from veil.pipeline.lifecycles.lives import lives_schema
from veil.pipeline.lifecycles.run import is_brief, run_lifecycles
from veil.pipeline.lifecycles.store import NAME, Hour, Manifest, load_manifest, save_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS
CALLS_MAX = 1_500
ARROW = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
}


def written(place: Storage, stories: list[JournalEvent], first_row: int) -> int:
    write_segment_of(place, numbered(stories, first_row=first_row))
    return first_row + len(stories)


def test_a_run_says_little_to_the_jvm(
    spark: SparkSession, journal_place: Storage, tables_place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With columns put together in Python, and told where they were written, it was 14,700 calls: seconds."""
    written(journal_place, journal_of(a_message(T).received(T).deleted(T + S)), 1)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    client = gateway._gateway_client
    send, calls = client.send_command, list[str]()

    def counted(command: str, *given: object, **named: object) -> object:
        calls.append(command)
        return send(command, *given, **named)

    monkeypatch.setattr(client, "send_command", counted)
    assert run_lifecycles(spark, journal_place, tables_place).events == 3

    assert 0 < len(calls) < CALLS_MAX


@pytest.mark.parametrize(
    ("seed", "few"), [(11, (True,)), pytest.param(12, (True, False), marks=pytest.mark.soak)]
)
def test_any_split_and_order_of_the_segments_over_several_runs_gives_the_same_tables(
    spark: SparkSession,
    journal_place: Storage,
    tables_place: Storage,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    few: tuple[bool, ...],
) -> None:
    """Whether a run takes the touched messages out of their hours, as for few events, or writes the hours anew."""
    rng = random.Random(seed)
    events = numbered(random_journal(rng, 120))
    pieces = cut(events, 9, rng)
    rng.shuffle(pieces)
    while pieces:
        for piece in [pieces.pop() for _ in range(min(len(pieces), rng.randrange(1, 5)))]:
            write_segment_of(journal_place, piece)
        monkeypatch.setattr(journal_reading, "BYTES_ON_DRIVER_MAX", 2**25 if rng.choice(few) else 0)
        run_lifecycles(spark, journal_place, tables_place)

    assert difference(all_rows(tables_place), model_tables(events)) == ""
    assert load_manifest(tables_place).progress == {"j1": [(1, len(events))]}


def test_a_second_run_changes_nothing(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, journal_of(a_message(T).received(T + S).deleted(T + 2 * S)))
    first = run_lifecycles(spark, journal_place, tables_place)
    files, manifest = tables_place.entries(recursive=True), tables_place.read(NAME)

    second = run_lifecycles(spark, journal_place, tables_place)

    assert (first.changed, second.changed, second.events, second.segments) == (True, False, 0, 0)
    assert (tables_place.entries(recursive=True), tables_place.read(NAME)) == (files, manifest)


def test_a_run_writes_only_the_hours_that_its_events_belong_to(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
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
    (day,) = rows_of(tables_place, "queue_days")
    assert (day["sent"], day["leases"], day["deleted"], day["hour"]) == (3, 3, 3, T)


def test_messages_that_nothing_new_is_told_of_stay_in_the_files_they_are_in(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    told = [a_message(T + number).received(T + S).deleted(T + 2 * S + number) for number in range(3)]
    row = written(journal_place, journal_of(*told), 1)
    run_lifecycles(spark, journal_place, tables_place)
    (before,) = load_manifest(tables_place).hours.values()
    other = a_message(T + 9 * S)
    row = written(journal_place, other.events, row)
    run_lifecycles(spark, journal_place, tables_place)

    (after,) = load_manifest(tables_place).hours.values()
    assert (before.leases[0] in after.leases, before.messages[0] in after.messages) == (True, True)

    # One of them is told of again: the others are copied, and no file has it twice.
    late = a_message(T + 1)
    late.events.clear()
    written(journal_place, late.delete_refused(T + 8 * HOUR_MS, delivery=1).events, row)
    run_lifecycles(spark, journal_place, tables_place)

    (again,) = load_manifest(tables_place).hours.values()
    assert before.leases[0] not in again.leases
    assert sorted(each["seq"] for each in rows_of(tables_place, "messages")) == [
        each.seq for each in (*told, other)
    ]
    assert not any("picked" in entry.name for entry in tables_place.entries(recursive=True))


def test_an_hour_is_put_together_when_it_has_come_to_many_files(
    spark: SparkSession, tables_place: Storage
) -> None:
    part, rows = 5, []
    schema = pa.schema([(field.name, ARROW[field.dataType.simpleString()]) for field in lives_schema()])
    for number in range(FILES_MAX + 1):
        seq = (part * HOUR_MS + number) << 20
        name = f"generation-1/{number}.parquet"
        row = {field.name: None for field in schema} | {"seq": seq, "delivery": 1, "how": "deleted"}
        with tables_place.writing(name) as file:
            pq.write_table(pa.Table.from_pylist([row], schema), file)
        rows.append((seq, name))
    hour = Hour(leases=tuple(name for _, name in rows))

    parted = part_hours(
        tables_place, "generation-2", {part: hour}, np.array([rows[3][0]]), time_has_passed=False
    )

    (together,) = parted.kept[part]["leases"]
    kept = pq.read_table(Path(tables_place.uri) / together, partitioning=None)
    assert kept["seq"].to_pylist() == [seq for number, (seq, _) in enumerate(rows) if number != 3]
    (picked,) = parted.picked
    assert pq.read_table(Path(tables_place.uri) / picked)["seq"].to_pylist() == [rows[3][0]]
    assert parted.rows == {part: 1}


def test_an_open_lease_expires_when_time_has_passed_without_any_event_of_its_own(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    """Every crash ends so."""
    row = written(journal_place, journal_of(a_message(T).received(T + S)), 1)
    run_lifecycles(spark, journal_place, tables_place)
    assert [lease["how"] for lease in rows_of(tables_place, "leases")] == ["open"]
    row = written(journal_place, a_message(T + 2 * HOUR_MS, queue="other").events, row)

    run = run_lifecycles(spark, journal_place, tables_place)

    (lease,) = rows_of(tables_place, "leases")
    assert (lease["how"], lease["ended_at"], lease["held_ms"]) == ("expired", T + 31 * S, 30 * S)
    assert run.partitions == 2
    # Once it is judged for good, time does not touch its hour again.
    written(journal_place, a_message(T + 3 * HOUR_MS, queue="other").events, row)
    assert run_lifecycles(spark, journal_place, tables_place).partitions == 1


def test_a_run_with_little_to_do_is_brief_and_so_is_one_over_the_little_that_is_new(
    journal_place: Storage, tables_place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = journal_of(*(a_message(T + number) for number in range(50)))
    names = [write_segment_of(journal_place, events[:49]), write_segment_of(journal_place, events[49:])]
    large, small = (each.size for each in list_segments(journal_place))
    assert [each.name for each in list_segments(journal_place)] == names
    assert is_brief(journal_place, tables_place)

    monkeypatch.setattr(lifecycles, "BYTES_ON_DRIVER_MAX", (large + small) // 2)

    assert not is_brief(journal_place, tables_place)
    save_manifest(tables_place, Manifest(progress={"j1": [(1, 49)]}))
    assert is_brief(journal_place, tables_place)


def test_the_hours_of_new_events_are_the_same_whether_spark_or_the_driver_looks(
    spark: SparkSession, journal_place: Storage
) -> None:
    write_segment_of(journal_place, numbered(random_journal(random.Random(5), 50)))
    segments = list_segments(journal_place)

    found = hours_of(spark, journal_place, segments)

    assert found._replace(seqs=None) == hours_by_spark(read_events(spark, journal_place, segments))
    assert len(found.events) > 5


def test_journals_of_a_restored_store_follow_each_other(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    story = a_message(T).received(T + S).deleted(T + 5 * S)
    write_segment_of(journal_place, numbered(story.events[:2]), journal_id="before")
    write_segment_of(journal_place, numbered(story.events[2:]), journal_id="after")

    run_lifecycles(spark, journal_place, tables_place)

    (lease,) = rows_of(tables_place, "leases")
    assert lease["how"] == "deleted"
    assert load_manifest(tables_place).progress == {"before": [(1, 2)], "after": [(1, 1)]}
