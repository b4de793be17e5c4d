"""Following a journal is the same as running over it now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pipeline.journal_kit import (
    START_MS,
    JournalEvent,
    S,
    a_message,
    journal_of,
    numbered,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.tables_kit import all_rows, difference
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import CHECKPOINT, LifecyclesRun, follow_lifecycles, run_lifecycles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS


def story(number: int) -> list[JournalEvent]:
    told = journal_of(a_message(T, counter=number).received(T + S).deleted(T + (number + 2) * S))
    return numbered(told, first_row=3 * number + 1)


def follow_once(spark: SparkSession, journal: Storage, tables: Storage) -> list[LifecyclesRun]:
    runs: list[LifecyclesRun] = []
    query = follow_lifecycles(spark, journal, tables, every_s=None, on_run=runs.append)
    assert query.awaitTermination(100)
    return runs


def test_following_and_running_by_hand_may_be_mixed(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, story(0))
    assert [run.events for run in follow_once(spark, journal_place, tables_place)] == [3]

    write_segment_of(journal_place, story(1))
    assert run_lifecycles(spark, journal_place, tables_place).events == 3

    # A segment that cannot be read does not end the stream, and what was done by hand is not done again.
    write_segment_of(journal_place, story(2))
    broken = write_segment_of(journal_place, story(3))
    journal_place.write(broken, b"PAR1")
    (run,) = follow_once(spark, journal_place, tables_place)
    assert (run.segments, run.events, [each.name for each in run.broken]) == (1, 3, [broken])
    assert follow_once(spark, journal_place, tables_place) == []

    # Without its checkpoint it begins anew, and finds nothing to do.
    tables_place.remove_folder(CHECKPOINT)
    assert [run.events for run in follow_once(spark, journal_place, tables_place)] == [0]
    expected = model_tables([*story(0), *story(1), *story(2)])
    assert difference(all_rows(tables_place), expected) == ""
