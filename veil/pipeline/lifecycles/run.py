"""`veil pipeline lifecycles`: work what is new in the journal into the tables, once or while the journal grows.

The tables depend on the events alone: not on how many runs there were, in which order segments came, nor on what died on the
way. A run reads the new segments and the hours (of sending) that their messages belong to. Where the new events are few, it
takes the rows of their messages out of those hours and makes these again; where they are many, it writes the hours again.
Messages with leases that are still open are looked at too whenever the last known instant has moved on: a holder that
crashed sends no event, time alone ends its lease.

To follow a journal is to run again and again in one session. A run finds by the manifest what is not in the tables yet, so
runs by hand may come in between, and whatever kills one leaves nothing that the next would have to know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from veil.journal.segments import SegmentProblem
from veil.journal.storage import Storage, read_mark
from veil.pipeline.lifecycles.generation import BYTES_HERE_MAX, Generation, OnStep
from veil.pipeline.lifecycles.journal import broken_ones, find_segments
from veil.pipeline.lifecycles.lock import TablesBusy, only_run
from veil.pipeline.lifecycles.store import (
    Manifest,
    TablesRefused,
    load_manifest,
    remove_orphans,
    save_manifest,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SparkWhenNeeded = Callable[[], "SparkSession"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LifecyclesRun:
    """What a run did."""

    segments: int  # new ones that are in the tables now
    events: int
    partitions: int  # hours of sending that were written anew
    broken: tuple[SegmentProblem, ...]  # set aside; later runs try them again
    generation: int  # of the tables, after the run
    newest: datetime | None  # the last known instant: what is open is judged by it
    seconds: float

    @property
    def changed(self) -> bool:
        return self.segments > 0


def run_lifecycles(
    spark: SparkSession | SparkWhenNeeded,
    journal: Storage,
    tables: Storage,
    *,
    bytes_here_max: int = BYTES_HERE_MAX,
    on_step: OnStep = lambda step: None,
) -> LifecyclesRun:
    """Work what is new in the journal into the tables: on Spark, or up to so many bytes of new segments in this process.

    `spark` is a session, or a function that is called for one when it is needed.
    Raises TablesBusy while another run does that, and TablesRefused where the tables are not this journal's or not
    readable. A segment that cannot be read is set aside and named in the answer. `on_step` hears how far the run is.
    """
    begun_s = time.monotonic()

    def session(size: int) -> SparkSession | None:
        if size <= bytes_here_max:
            return None
        return spark() if callable(spark) else spark

    with only_run(tables) as check_alone:
        before = load_manifest(tables)
        store_id = _same_store(journal, tables, before)
        remove_orphans(tables, before)
        on_step("begun")
        found = find_segments(journal, before)
        after, events, partitions = before, 0, 0
        while found.segments:
            run = Generation(session, journal, tables, before, found, on_step)
            try:
                after = run.made()
            except Exception:
                # Footers were well; now the pages are looked at. If all of them are too, it was something else.
                worse = broken_ones(journal, found.segments)
                if not worse:
                    raise
                found = found.without(worse)
                continue
            events, partitions = run.events, len(run.touched)
            break
        after = msgspec.structs.replace(after, broken=list(found.broken), store_id=store_id)
        if after != before:
            check_alone()
            for file in {*before.files_kept()} - {*after.files_kept()}:
                tables.remove(file)
            on_step("before the manifest")
            save_manifest(tables, after)
            on_step("after the manifest")
    return LifecyclesRun(
        segments=len(found.segments),
        events=events,
        partitions=partitions,
        broken=found.broken,
        generation=after.generation,
        newest=None if after.newest_ms is None else datetime.fromtimestamp(after.newest_ms / 1000, UTC),
        seconds=time.monotonic() - begun_s,
    )


def _same_store(journal: Storage, tables: Storage, manifest: Manifest) -> str | None:
    mark = read_mark(journal)
    if mark is None:
        return manifest.store_id
    if manifest.store_id not in (None, mark[0]):
        # Order keys say which message; two stores give out the same ones.
        raise TablesRefused(
            f"the tables at {tables.uri} belong to another store than the journal at {journal.uri}: "
            "choose another place with --tables"
        )
    return mark[0]


EVERY_S: Final = 5.0


def follow_lifecycles(
    spark: SparkWhenNeeded,
    journal: Storage,
    tables: Storage,
    *,
    every_s: float = EVERY_S,
    bytes_here_max: int = BYTES_HERE_MAX,
    on_run: Callable[[LifecyclesRun], None] = lambda run: None,
    on_busy: Callable[[TablesBusy], None] = lambda busy: None,
    ended: threading.Event | None = None,
) -> None:
    """Run, look again every few seconds, and run when something is new, until `ended` is set; `on_run` hears of each run
    that found something.

    While another run holds the tables this one waits (`on_busy`); what else a run raises ends it.
    """
    ended = ended or threading.Event()
    broken: tuple[SegmentProblem, ...] = ()
    while not ended.is_set():
        try:
            run = run_lifecycles(spark, journal, tables, bytes_here_max=bytes_here_max)
        except TablesBusy as busy:
            on_busy(busy)
        else:
            if run.changed or run.broken != broken:
                on_run(run)
            broken = run.broken
        ended.wait(every_s)
