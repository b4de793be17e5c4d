"""Following a journal is the same as running over it now and then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.pipeline.journal_kit import (
    no_spark,
    story,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.tables_kit import all_rows, difference
from tests.waiting import until
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.lock import TablesBusy, only_run
from veil.pipeline.lifecycles.run import LifecyclesRun, follow_lifecycles, run_lifecycles


def test_following_and_running_by_hand_may_be_mixed(journal_place: Storage, tables_place: Storage) -> None:
    runs: list[LifecyclesRun] = []
    busy: list[TablesBusy] = []
    ended, done = threading.Event(), threading.Semaphore(0)

    def told(run: LifecyclesRun) -> None:
        runs.append(run)
        done.release()

    follower = threading.Thread(
        target=follow_lifecycles,
        args=(no_spark, journal_place, tables_place),
        kwargs={"every_s": 0.01, "on_run": told, "on_busy": busy.append, "ended": ended},
    )
    write_segment_of(journal_place, story(0))
    follower.start()
    try:
        assert done.acquire(timeout=60)
        # While somebody else has the tables it waits, and does what was left to do when they are free.
        with held(tables_place):
            write_segment_of(journal_place, story(1))
            until(lambda: busy)
        assert done.acquire(timeout=60)
        # A segment that cannot be read does not end it, and is told once.
        with held(tables_place):  # or it could read it before it is broken
            broken = write_segment_of(journal_place, story(3))
            journal_place.write(broken, b"PAR1")
        assert done.acquire(timeout=60)
        write_segment_of(journal_place, story(2))
        assert done.acquire(timeout=60)
    finally:
        ended.set()
        follower.join()

    assert [run.events for run in runs] == [3, 3, 0, 3]
    assert [[each.name for each in run.broken] for run in runs] == [[], [], [broken], [broken]]
    assert run_lifecycles(no_spark, journal_place, tables_place).events == 0
    expected = model_tables([*story(0), *story(1), *story(2)])
    assert difference(all_rows(tables_place), expected) == ""


@contextmanager
def held(tables: Storage) -> Iterator[None]:
    while True:
        try:
            with only_run(tables):
                yield
                return
        except TablesBusy:
            continue
