"""A redrive that is killed loses nothing and doubles nothing, wherever it was, and counts each message once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.dead_letters_kit import Queues, bodies_in, fill, orders_and_dead_letters, sealed
from veil.client.api import ApiError, Failure
from veil.journal.storage import Storage
from veil.pipeline.dead_letters.queue import DeadLetterQueue, DeadLettersRefused
from veil.pipeline.dead_letters.runs import (
    RedriveProgress,
    RedriveRun,
    calls_of,
    load_progress,
    place_of,
    redrive,
    save_progress,
    save_run,
    unfinished,
)
from veil.pipeline.dead_letters.selection import Selection
from veil.pipeline.lifecycles.lock import TablesBusy
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def queues(veil_server: VeilServer) -> Iterator[Queues]:
    """`orders` and its dead letters."""
    with orders_and_dead_letters(veil_server) as queues:
        yield queues


def killed(tables: Storage, run: RedriveRun, queue: DeadLetterQueue, instant: str, call: int) -> None:
    command = [sys.executable, "-m", "tests.pipeline.redrive_child", tables.uri, run.id, queue.endpoint]
    ran = subprocess.run([*command, instant, str(call)], env=os.environ, check=False)
    assert ran.returncode == -signal.SIGKILL


def test_killed_three_times_it_comes_to_exactly_what_was_selected(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    dead, orders = queues
    bodies = [f"order {n}" for n in range(1_000)]
    fill(dead, bodies, veil__source_queue="orders")
    run = sealed(spark, dead, tables_place, a_call=100)

    for instant, call in (("before", 3), ("done", 2), ("noted", 3)):
        killed(tables_place, run, dead, instant, call)
        found = bodies_in(orders) + bodies_in(dead)
        assert sorted(found) == sorted(bodies), f"killed {instant} call {call}"
    assert [each.id for each, _ in unfinished(tables_place)] == [run.id]

    progress = redrive(run, tables_place, dead)

    assert sorted(bodies_in(orders)) == sorted(bodies)
    assert bodies_in(dead) == []
    assert (progress.moved, progress.gone, progress.left) == (1_000, 0, {})
    assert progress.finished
    assert list(unfinished(tables_place)) == []


def test_a_server_that_is_killed_has_moved_a_call_whole_or_not_at_all(
    spark: SparkSession, tables_place: Storage, tmp_path: Path
):
    stored = ("--store", "sqlite", "--data", str(tmp_path / "data"))
    bodies = [f"order {n}" for n in range(600)]
    with VeilServer(*stored) as server, orders_and_dead_letters(server) as (dead, _):
        fill(dead, bodies, veil__source_queue="orders")
        run = sealed(spark, dead, tables_place, a_call=100)

        def told(progress: RedriveProgress) -> None:
            if progress.moved == 300:
                os.kill(server.pid, signal.SIGKILL)

        with pytest.raises(ApiError) as failed:
            redrive(run, tables_place, dead, told=told, retry_s=0.2)
        assert failed.value.failure is Failure.UNREACHABLE

    with VeilServer(*stored) as server, orders_and_dead_letters(server) as (dead, orders):
        assert sorted(bodies_in(orders) + bodies_in(dead)) == sorted(bodies)
        progress = redrive(run, tables_place, dead)

        assert sorted(bodies_in(orders)) == sorted(bodies)
        assert (progress.moved, progress.gone, bodies_in(dead)) == (600, 0, [])


def test_a_run_whose_progress_is_damaged_does_not_stand_in_the_way_of_others(tables_place: Storage):
    run = RedriveRun("one", "2026-01-01", "orders-dead", 1, (), 1, {})
    save_run(place_of(tables_place, run.id), run)
    assert [each for each, _ in unfinished(tables_place)] == [run]

    place_of(tables_place, run.id).write("progress.json", b"{")

    assert list(unfinished(tables_place)) == []
    with pytest.raises(DeadLettersRefused, match=r"progress\.json is not readable: .*; remove it"):
        load_progress(place_of(tables_place, run.id))


def test_progress_that_counted_calls_is_still_read(tables_place: Storage):
    before = b'{"calls":2,"begun":false,"moved":17,"gone":1,"left":{"X":2},"examples":[],"finished":false}'
    tables_place.write("progress.json", before)

    assert load_progress(tables_place) == RedriveProgress(moved=17, gone=1, left={"X": 2})


def test_two_do_not_go_on_with_the_same_run(spark: SparkSession, queues: Queues, tables_place: Storage):
    dead, _ = queues
    fill(dead, ["one"], veil__source_queue="orders")
    run = sealed(spark, dead, tables_place)

    def told(progress: RedriveProgress) -> None:
        with pytest.raises(TablesBusy):
            redrive(run, tables_place, dead)

    assert redrive(run, tables_place, dead, told=told).moved == 1


def test_a_finished_run_does_nothing_when_it_is_gone_on_with(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    dead, orders = queues
    fill(dead, ["one"], veil__source_queue="orders")
    run = sealed(spark, dead, tables_place)
    done = redrive(run, tables_place, dead)

    fill(dead, ["another"], veil__source_queue="orders")

    assert redrive(run, tables_place, dead) == done
    assert bodies_in(orders) == ["one"]


def test_calls_are_bounded_by_their_size_and_the_same_each_time(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    dead, orders = queues
    fill(dead, [str(n) for n in range(20)], veil__source_queue="orders")
    run = sealed(spark, dead, tables_place, Selection(body="concat(body, repeat('x', 700000))"))

    place = place_of(tables_place, run.id)
    calls = list(calls_of(run, place, 1_000))
    assert [len(call) for call in calls] == [5, 5, 5, 5]
    assert calls == list(calls_of(run, place, 1_000))
    assert [len(call) for call in calls_of(run, place, 4, after=7)] == [4, 4, 4, 1]

    assert redrive(run, tables_place, dead).moved == 20
    assert {len(body) for body in bodies_in(orders)} == {700_001, 700_002}


def test_a_run_that_is_resumed_keeps_the_rate_it_was_begun_with(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    dead, _ = queues
    fill(dead, [f"order {n}" for n in range(30)], veil__source_queue="orders")
    sealed(spark, dead, tables_place, rate_s=40)
    ((run, _),) = unfinished(tables_place)
    assert (run.rate_s, run.a_call) == (40, 10)

    begun_s = time.monotonic()
    assert redrive(run, tables_place, dead).moved == 30
    assert time.monotonic() - begun_s >= 0.49  # the second and the third call wait a quarter of a second each


def test_a_run_that_is_resumed_at_a_lower_rate_goes_in_smaller_calls_and_counts_each_message_once(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    """Killed in a call of twenty that the server had carried out."""
    dead, orders = queues
    bodies = [f"order {n}" for n in range(45)]
    fill(dead, bodies, veil__source_queue="orders")
    run = sealed(spark, dead, tables_place, a_call=20)
    killed(tables_place, run, dead, "done", 2)
    assert len(bodies_in(orders)) == 40
    told: list[int] = []

    progress = redrive(
        run, tables_place, dead, rate_s=32, told=lambda progress: told.append(progress.settled)
    )

    assert told == [28, 36, 44, 45]
    assert (progress.moved, progress.gone, progress.left) == (45, 0, {})
    assert sorted(bodies_in(orders)) == sorted(bodies)


def test_a_run_that_is_resumed_at_a_higher_rate_goes_in_larger_calls(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    dead, _ = queues
    fill(dead, [f"order {n}" for n in range(45)], veil__source_queue="orders")
    run = sealed(spark, dead, tables_place, rate_s=4)
    told: list[int] = []

    redrive(run, tables_place, dead, rate_s=160, told=lambda progress: told.append(progress.settled))

    assert told == [40, 45]


def test_what_was_taken_by_somebody_else_after_the_call_that_nobody_noted_counts_as_gone(
    spark: SparkSession, queues: Queues, tables_place: Storage
):
    dead, orders = queues
    fill(dead, [f"order {n}" for n in range(30)], veil__source_queue="orders")
    run = sealed(spark, dead, tables_place, a_call=10)
    killed(tables_place, run, dead, "done", 1)
    for _ in range(2):
        taken = dead.receive(10, bytes_max=1 << 20, seconds=5)
        assert dead.delete([message.receipt for message in taken]) == [None] * 10

    progress = redrive(run, tables_place, dead)

    assert (progress.moved, progress.gone) == (10, 20)
    assert len(bodies_in(orders)) == 10


def test_the_bodies_of_a_run_are_gone_before_it_counts_as_finished(
    spark: SparkSession, queues: Queues, tables_place: Storage, monkeypatch: pytest.MonkeyPatch
):
    """Killed before they are, or between the two, it is gone on with: nobody would look at a finished one again."""
    dead, _ = queues
    fill(dead, ["one"], veil__source_queue="orders")
    run = sealed(spark, dead, tables_place)
    place = place_of(tables_place, run.id)

    def dies(*_: object) -> None:
        raise OSError("no more")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no more"):
        patched.setattr(type(place), "remove_folder", dies)
        redrive(run, tables_place, dead)
    between = load_progress(place)
    assert (between.moved, between.finished) == (1, False)

    assert redrive(run, tables_place, dead).finished
    assert not place.exists("selection")
    save_progress(place, between)

    assert redrive(run, tables_place, dead).finished
