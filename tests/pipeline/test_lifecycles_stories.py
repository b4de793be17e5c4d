"""What the tables say of single messages, story by story."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet as pq

from tests.pipeline.journal_kit import (
    HOUR_MS,
    START_MS,
    MessageStory,
    S,
    a_message,
    journal_of,
    no_spark,
    numbered,
    seq_of,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import Row
from tests.pipeline.tables_kit import rows_of
from veil.journal.attempts import tell
from veil.journal.lives import COLUMNS as LIFE_COLUMNS
from veil.journal.lives import from_row
from veil.journal.schema import COLUMNS
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import run_lifecycles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS
STORIES: dict[str, MessageStory] = {
    "done": a_message(T, counter=1).received(T + 2 * S).deleted(T + 12 * S),
    "renewed": a_message(T, counter=2)
    .received(T)
    .extended(T + 20 * S)
    .extended(T + 40 * S)
    .deleted(T + 60 * S),
    "crashed": a_message(T, counter=3).received(T).received(T + 35 * S).deleted(T + 36 * S),
    "late": a_message(T, counter=4)
    .received(T)
    .received(T + 31 * S)
    .deleted(T + 33 * S)
    .delete_refused(T + 50 * S, delivery=1, gone=True),
    "late but alone": a_message(T, counter=5).received(T).deleted(T + 45 * S),
    "spent": a_message(T, counter=6).received(T).received(T + 40 * S).dead_lettered(T + 80 * S, "dead"),
    "open": a_message(T, counter=7).received(T + 2 * HOUR_MS - 5 * S),
    "silent": a_message(T, counter=8).received(T),
    "released": a_message(T, counter=9).received(T).released(T + 3 * S),
    "never left": a_message(T, counter=10).received(T).undone(T + 1).received(T + 5 * S).deleted(T + 6 * S),
    "purged while held": a_message(T, counter=11).received(T).purged(T + 4 * S),
    "released at once": a_message(T, counter=12).received(T).released(T),
    "revived": a_message(T, counter=13)
    .received(T, visibility=10 * S)
    .received(T + 20 * S, visibility=10 * S)
    .extended(T + 40 * S, delivery=1)
    .deleted(T + 50 * S, delivery=1),
    "committed": a_message(T, counter=14, queue="transactions", delay=172_800 * S)
    .delayed(T + 2 * S, delay=60 * S)
    .delayed(T + 3 * S, delay=1 * S)
    .received(T + 9 * S)
    .deleted(T + 10 * S),
    "in trouble": a_message(T, counter=15, queue="troubled")
    .received(T)
    .tell("graced", T + 50 * S, delivery=1, deadline=T + 65 * S)
    .deleted(T + 60 * S),
    "the clock": a_message(T + 2 * HOUR_MS, counter=99, queue="clock"),
}


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    home = tmp_path_factory.mktemp("stories")
    journal, tables = Storage.at(home / "journal"), Storage.at(home / "tables")
    write_segment_of(journal, journal_of(*STORIES.values()))
    run_lifecycles(no_spark, journal, tables)
    return {name: rows_of(tables, name) for name in ("leases", "messages", "queue_hours")}


def leases(tables: dict[str, list[Row]], story: str) -> list[Row]:
    rows = [row for row in tables["leases"] if row["seq"] == STORIES[story].seq]
    return sorted(rows, key=lambda row: row["delivery"])


def message(tables: dict[str, list[Row]], story: str) -> Row:
    (row,) = (row for row in tables["messages"] if row["seq"] == STORIES[story].seq)
    return row


@pytest.mark.parametrize(
    ("story", "hows", "outcome"),
    [
        ("done", ["deleted"], "deleted"),
        ("renewed", ["deleted"], "deleted"),
        ("crashed", ["superseded", "deleted"], "deleted"),
        ("late", ["superseded", "deleted"], "deleted"),
        ("late but alone", ["deleted"], "deleted"),
        ("spent", ["superseded", "dead_lettered"], "dead_lettered"),
        ("open", ["open"], "open"),
        ("silent", ["expired"], "open"),
        ("released", ["released"], "open"),
        ("never left", ["undone", "deleted"], "deleted"),
        ("purged while held", ["removed"], "purged"),
        ("released at once", ["released"], "open"),
        ("revived", ["deleted", "expired"], "deleted"),
        ("committed", ["deleted"], "deleted"),
    ],
)
def test_how_leases_ended_and_what_became_of_the_message(
    tables: dict[str, list[Row]], story: str, hows: list[str], outcome: str
) -> None:
    assert [row["how"] for row in leases(tables, story)] == hows
    assert message(tables, story)["outcome"] == outcome


def test_a_lease_that_ended_in_its_delete_tells_the_processing_time(tables: dict[str, list[Row]]) -> None:
    (lease,) = leases(tables, "done")
    assert (lease["held_ms"], lease["processing_ms"], lease["censored"]) == (10 * S, 10 * S, False)
    told = message(tables, "done")
    assert (told["wait_ms"], told["end_to_end_ms"], told["wasted_ms"]) == (2 * S, 12 * S, 0)


def test_a_message_is_available_when_its_delay_ended_as_it_was_set_last(tables: dict[str, list[Row]]) -> None:
    told = message(tables, "committed")
    assert (told["wait_ms"], told["end_to_end_ms"], told["extensions"]) == (5 * S, 10 * S, 0)
    assert told["available_at"] == T + 4 * S


def test_extensions_move_the_deadline_and_are_counted(tables: dict[str, list[Row]]) -> None:
    (lease,) = leases(tables, "renewed")
    assert (lease["first_deadline"], lease["deadline"]) == (T + 30 * S, T + 70 * S)
    assert (lease["extensions"], lease["last_extended_at"], lease["overrun"]) == (2, T + 40 * S, False)


def test_a_crash_is_censored_at_the_deadline_and_tells_how_long_recovery_took(
    tables: dict[str, list[Row]],
) -> None:
    crashed, _ = leases(tables, "crashed")
    assert (crashed["processing_ms"], crashed["censored"]) == (30 * S, True)
    assert (crashed["overrun"], crashed["recovery_ms"]) == (False, 35 * S)
    assert (message(tables, "crashed")["duplicates"], message(tables, "crashed")["wasted_ms"]) == (0, 30 * S)


def test_a_refused_late_delete_is_an_overrun_a_duplicate_and_a_whole_observation(
    tables: dict[str, list[Row]],
) -> None:
    late, _ = leases(tables, "late")
    assert (late["processing_ms"], late["censored"], late["overrun"]) == (50 * S, False, True)
    assert late["recovery_ms"] is None
    assert message(tables, "late")["duplicates"] == 1


def test_a_late_delete_that_nobody_preceded_is_no_duplicate(tables: dict[str, list[Row]]) -> None:
    (lease,) = leases(tables, "late but alone")
    assert (lease["overrun"], message(tables, "late but alone")["duplicates"]) == (True, 0)


def test_a_holder_that_the_servers_trouble_kept_waiting_overran_nothing(tables: dict[str, list[Row]]) -> None:
    (lease,) = leases(tables, "in trouble")
    assert (lease["how"], lease["overrun"], lease["deadline"]) == ("deleted", False, T + 65 * S)
    (hour,) = (row for row in tables["queue_hours"] if row["queue"] == "troubled")
    assert (hour["overrun"], hour["duplicates"]) == (0, 0)


def test_an_open_lease_is_measured_up_to_the_last_known_instant(tables: dict[str, list[Row]]) -> None:
    (lease,) = leases(tables, "open")
    assert (lease["ended_at"], lease["held_ms"], lease["censored"]) == (None, 5 * S, True)


def test_dead_letters_are_told_on_the_message(tables: dict[str, list[Row]]) -> None:
    told = message(tables, "spent")
    assert (told["dead_lettered_at"], told["dead_letter_queue"], told["queue"]) == (
        T + 80 * S,
        "dead",
        "orders",
    )


def test_a_holder_that_came_back_after_another_receive_overran(tables: dict[str, list[Row]]) -> None:
    assert [row["overrun"] for row in leases(tables, "revived")] == [True, False]
    assert message(tables, "revived")["duplicates"] == 1


def test_the_hour_adds_everything_up_under_the_hour_of_the_send(tables: dict[str, list[Row]]) -> None:
    (hour,) = (row for row in tables["queue_hours"] if row["queue"] == "orders")
    assert hour["hour"] == T
    assert hour["sent"] == 13
    assert hour["leases"] == sum(hour[how] for how in ("deleted", "released", "expired", "superseded",
                                                         "dead_lettered", "undone", "removed", "open"))  # fmt: skip
    assert hour["leases"] == 18
    assert (hour["duplicates"], hour["extensions"]) == (2, 3)
    assert (hour["window_ms"], hour["window_at"]) == (30 * S, T + 2 * HOUR_MS - 5 * S)
    # "crashed" and "spent": nobody told that their holders were silent.
    assert sum(count for _, count in hour["recovery_unknown"]) == 2
    assert hour["recovery"] == []


def test_seq_tells_the_millisecond_of_the_send() -> None:
    assert seq_of(T, 5) >> 20 == T


def test_a_journal_from_before_outcomes_is_read_as_it_is_and_its_rows_say_so(
    journal_place: Storage, tables_place: Storage
) -> None:
    stories = [
        a_message(T, counter=1).received(T).deleted(T + 5 * S),
        # A holder that failed and backed off: all that such a journal has is a deadline that moved, here and there.
        a_message(T, counter=2).received(T).extended(T + 2 * S, visibility=5 * S).received(T + 9 * S),
        a_message(T, counter=3).received(T).released(T + 2 * S),
        a_message(T, counter=4).received(T).received(T + 40 * S).delete_refused(T + 50 * S, delivery=1),
    ]
    events = journal_of(*stories)
    later = [column.name for column in COLUMNS if column.since > 1]
    name = write_segment_of(journal_place, events, version=1, without=later)
    run_lifecycles(no_spark, journal_place, tables_place)

    def told() -> dict[tuple[int, int], tuple[str, int]]:
        return {
            (row["seq"] & 7, row["delivery"]): (row["outcome"], row["rule"])
            for row in rows_of(tables_place, "leases")
        }

    old = {
        (1, 1): ("completed", 1),
        (2, 1): ("unknown", 1),
        (2, 2): ("unknown", 1),
        (3, 1): ("given_back", 1),
        (4, 1): ("overran", 1),
        (4, 2): ("open", 1),
    }
    assert told() == old
    # The same events, read for one message: from the very same file.
    with journal_place.open_input(name) as file:
        rows = [dict.fromkeys(LIFE_COLUMNS) | row for row in pq.ParquetFile(file).read().to_pylist()]
    life = tell([from_row(row) for row in rows if row["seq"] & 7 == 2], events[-1].at)
    assert life is not None
    assert [lease.outcome.value for stay in life.stays for lease in stay.leases] == ["unknown", "unknown"]

    # What is told since Veil was upgraded is judged by what it tells.
    further = stories[1].events[-1]
    last = [
        replace(
            further, kind="given_back", at=T + 20 * S, deadline=T + 25 * S, outcome="failed", error_type="E"
        )
    ]
    write_segment_of(journal_place, numbered(last, first_row=len(events) + 1))
    run_lifecycles(no_spark, journal_place, tables_place)
    assert told() == old | {(2, 2): ("failed", 2)}
