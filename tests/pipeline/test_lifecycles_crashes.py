"""A run may die anywhere; the next one makes the same tables, and cleans up after it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.journal_kit import (
    HOUR_MS,
    START_MS,
    JournalEvent,
    S,
    a_message,
    journal_of,
    no_spark,
    numbered,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.tables_kit import all_rows, difference, rows_of
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.lock import KEPT_S, TablesBusy, held_by_file, only_run
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.pipeline.lifecycles.store import GENERATION, load_manifest, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS
STEPS = ("begun", "looked through", "tables written", "before the manifest", "after the manifest")
EARLY = journal_of(  # the first is open at its end
    a_message(T).received(T + HOUR_MS), a_message(T + HOUR_MS).received(T + HOUR_MS).deleted(T + HOUR_MS + S)
)
LATER = numbered(
    journal_of(a_message(T + 2 * HOUR_MS, counter=7).received(T + 2 * HOUR_MS + S)), first_row=len(EARLY) + 1
)


class Died(BaseException):
    """Not an Exception: nothing in a run gets to handle it."""


def generations(place: Storage) -> set[str]:
    return {entry.name for entry in place.entries() if entry.name.startswith(GENERATION)}


def test_a_run_that_died_at_any_step_is_made_good_by_the_next(
    journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, EARLY)
    heard: list[str] = []
    for step in STEPS:

        def die(now: str, step: str = step) -> None:
            heard.append(now)
            if now == step:
                raise Died

        with pytest.raises(Died):
            run_lifecycles(no_spark, journal_place, tables_place, on_step=die)
        committed = step == "after the manifest"
        assert load_manifest(tables_place).generation == (1 if committed else 0)
        assert (rows_of(tables_place, "messages") != []) == committed
    assert set(heard) == set(STEPS)
    tables_place.write("_manifest.json.01234567.tmp", b"{")  # as of one that was killed while it wrote

    run = run_lifecycles(no_spark, journal_place, tables_place)

    assert not run.changed
    assert difference(all_rows(tables_place), model_tables(EARLY)) == ""
    assert len(generations(tables_place)) == 1  # what the dead ones wrote is gone
    assert not tables_place.exists("_manifest.json.01234567.tmp")


@pytest.mark.soak
def test_a_second_generation_may_die_before_its_manifest_and_the_first_stands(
    journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, EARLY)
    run_lifecycles(no_spark, journal_place, tables_place)
    write_segment_of(journal_place, LATER)

    def die(step: str) -> None:
        if step == "before the manifest":
            raise Died

    with pytest.raises(Died):
        run_lifecycles(no_spark, journal_place, tables_place, on_step=die)
    assert difference(all_rows(tables_place), model_tables(EARLY)) == ""
    run_lifecycles(no_spark, journal_place, tables_place)
    assert difference(all_rows(tables_place), model_tables([*EARLY, *LATER])) == ""


@pytest.mark.soak
def test_whoever_began_to_read_before_a_run_reads_on_through_it(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, EARLY)
    run_lifecycles(no_spark, journal_place, tables_place)
    reader = read_table(spark, tables_place, "leases").select("how")
    write_segment_of(journal_place, LATER)
    run_lifecycles(no_spark, journal_place, tables_place)

    assert sorted(row.how for row in reader.collect()) == ["deleted", "open"]
    assert load_manifest(tables_place).replaced


def test_replaced_files_stay_for_a_quarter_of_an_hour_however_many_runs_there_are(
    journal_place: Storage, tables_place: Storage
) -> None:
    held = a_message(T).received(T + S)
    told: list[JournalEvent] = []

    def run(events: list[JournalEvent]) -> None:
        told.extend(numbered(events, first_row=len(told) + 1))
        write_segment_of(journal_place, told[-len(events) :])
        run_lifecycles(no_spark, journal_place, tables_place)

    run(held.events)
    first = {*load_manifest(tables_place).files()}
    minutes = range(1, 15)
    for minute in minutes:  # each renewal makes the rows of its message anew
        held.events.clear()
        run(held.extended(T + minute * 60 * S).events)
        assert all(tables_place.exists(file) for file in first), minute
    manifest = load_manifest(tables_place)
    assert len(manifest.replaced) == len(minutes)
    assert first.isdisjoint(manifest.files())

    held.events.clear()
    run(held.deleted(T + 16 * 60 * S).events)
    assert not any(tables_place.exists(file) for file in first)
    manifest = load_manifest(tables_place)
    assert all(tables_place.exists(file) for file in manifest.files_kept())
    named = {entry.name for entry in tables_place.entries(recursive=True) if entry.name.endswith(".parquet")}
    assert named == {*manifest.files_kept()}
    assert difference(all_rows(tables_place), model_tables(told)) == ""


def test_two_runs_at_once_are_refused_and_the_other_is_named(
    journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, EARLY)
    with only_run(tables_place), pytest.raises(TablesBusy, match=f"process {os.getpid()} on "):
        run_lifecycles(no_spark, journal_place, tables_place)
    assert run_lifecycles(no_spark, journal_place, tables_place).changed


def _hold_and_die(place: Storage, held: multiprocessing.synchronize.Event) -> None:
    with only_run(place):
        held.set()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_holds_nothing_up(tables_place: Storage) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold_and_die, args=(tables_place, held))
    process.start()
    process.join()

    assert held.is_set()
    with only_run(tables_place):
        pass


def test_a_lock_by_file_is_taken_over_once_its_owner_fell_silent(tables_place: Storage) -> None:
    now_s = 1000.0

    def lock() -> object:
        return held_by_file(tables_place, now_s=lambda: now_s, rest=lambda s: None)

    dead = lock()
    dead.__enter__()  # type: ignore[attr-defined]
    with pytest.raises(TablesBusy), lock():  # type: ignore[attr-defined]
        pass
    now_s += KEPT_S + 1
    with lock() as check:  # type: ignore[attr-defined]
        check()
    dead.__exit__(None, None, None)  # type: ignore[attr-defined]


def test_a_run_that_lost_its_lock_by_file_learns_it_before_the_commit(tables_place: Storage) -> None:
    with held_by_file(tables_place, rest=lambda s: None) as check:
        check()
        tables_place.write("_lock.json", b'{"token": "another", "process": 1, "host": "elsewhere"}')
        with pytest.raises(TablesBusy, match="on elsewhere"):
            check()
