"""Which segments of the journal are new, which of them can be read, and their events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from veil.core.clock import Trouble
from veil.core.sequence import COUNTER_BITS
from veil.journal.segments import Segment, SegmentProblem, check_segment, list_segments
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.lives import EVENTS, TEXTS, as_events
from veil.pipeline.lifecycles.store import Manifest

MINUTE_MS: Final = 60_000
_OPENED_AT_ONCE: Final = 16


class NewSegments(NamedTuple):
    """New segments, those that were set aside, and the progress that a run over the new ones makes."""

    segments: tuple[Segment, ...]
    broken: tuple[SegmentProblem, ...]
    progress: dict[str, Intervals]

    def without(self, broken: Iterable[SegmentProblem]) -> NewSegments:
        """The same with more set aside."""
        broken = tuple(broken)
        names = {each.name for each in broken}
        kept = tuple(each for each in self.segments if each.name not in names)
        return self._replace(
            segments=kept, broken=tuple(sorted((*self.broken, *broken), key=attrgetter("name")))
        )

    def progress_made(self) -> dict[str, list[tuple[int, int]]]:
        """The progress with the segments in it."""
        made = dict(self.progress)
        for each in self.segments:
            made[each.journal_id] = added(made.get(each.journal_id, []), each.first, each.last)
        return made


def find_segments(journal: Storage, manifest: Manifest) -> NewSegments:
    """Look for segments that are not in the tables yet; those that cannot be read are set aside, each with the reason."""
    progress = {journal_id: list(rows) for journal_id, rows in manifest.progress.items()}
    taken = dict(progress)
    new: list[Segment] = []
    broken: list[SegmentProblem] = []
    for each in list_segments(journal):
        rows = taken.get(each.journal_id, [])
        if covers(rows, each.first, each.last):
            continue
        if touches(rows, each.first, each.last):
            broken.append(
                SegmentProblem(each.name, "some of its outbox rows, but not all, are in the tables already")
            )
            continue
        taken[each.journal_id] = added(rows, each.first, each.last)
        new.append(each)
    # One that failed before is read to the end before Spark gets to see it.
    suspects = {each.name for each in manifest.broken}
    found = NewSegments(tuple(new), tuple(broken), progress)
    return found.without(broken_ones(journal, new, suspects))


def broken_ones(
    journal: Storage, segments: Sequence[Segment], thorough: set[str] | None = None
) -> list[SegmentProblem]:
    """Those that cannot be read; `thorough` are read to the end (None: all), the others judged by their footers."""

    def problem_of(segment: Segment) -> SegmentProblem | None:
        return check_segment(journal, segment, thorough=thorough is None or segment.name in thorough)

    if not segments:
        return []
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        return [problem for problem in pool.map(problem_of, segments) if problem is not None]


def read_events(journal: Storage, name: str) -> Iterator[Any]:
    """The events of a segment as `lives` takes them, a row group at a time, by the newest schema: what an older one lacks is
    null."""
    with journal.open_input(name) as file:
        there = set(_opened(file).schema_arrow.names)
    with journal.open_input(name) as file:
        parquet = _opened(file, read_dictionary=[each for each in TEXTS if each in there])
        for number in range(parquet.num_row_groups):
            events = as_events(
                parquet.read_row_group(number, [each for each in EVENTS.names if each in there])
            )
            is_trouble = pc.equal(events["seq"], 0)  # of the server, and of no message
            yield events.filter(pc.invert(is_trouble)) if pc.any(is_trouble).as_py() else events


def minutes_of(journal: Storage, name: str) -> tuple[dict[int, int], int, list[Trouble]]:
    """How many events of a segment there are of each minute of sending, the newest instant among them, and the troubles of the
    server that it tells of."""
    with journal.open_input(name) as file:
        table = _opened(file).read(columns=["seq", "at"])
    is_trouble = pc.equal(table["seq"], 0)
    troubles = _troubles_of(journal, name) if pc.any(is_trouble).as_py() else []
    table = table.filter(pc.invert(is_trouble))
    if not table.num_rows:
        return {}, 0, troubles
    found, counts = np.unique((table["seq"].to_numpy() >> COUNTER_BITS) // MINUTE_MS, return_counts=True)
    newest_ms = pc.max(table["at"].cast(pa.int64())).as_py() // 1000
    return dict(zip(found.tolist(), counts.tolist(), strict=True)), newest_ms, troubles


def _troubles_of(journal: Storage, name: str) -> list[Trouble]:
    with journal.open_input(name) as file:
        table = _opened(file).read(columns=["seq", "at", "deadline", "outcome"])
    table = table.filter(pc.equal(table["seq"], 0))
    from_us, to_us = (table[each].cast(pa.int64()).to_pylist() for each in ("deadline", "at"))
    kinds = table["outcome"].to_pylist()
    return [
        Trouble(*each)
        for each in zip((us // 1000 for us in from_us), (us // 1000 for us in to_us), kinds, strict=True)
    ]


def _opened(file: Any, **options: Any) -> Any:
    # Damaged pages are believed unless somebody asks.
    return pq.ParquetFile(file, page_checksum_verification=True, **options)


Intervals = list[tuple[int, int]]  # first and last, rising, with a gap between one and the next


def covers(intervals: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether every number from first to last is in."""
    return any(low <= first and last <= high for low, high in intervals)


def touches(intervals: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether any number from first to last is in."""
    return any(low <= last and first <= high for low, high in intervals)


def added(intervals: Sequence[tuple[int, int]], first: int, last: int) -> Intervals:
    """The intervals with the numbers from first to last in them."""
    joined: Intervals = []
    for low, high in sorted([*intervals, (first, last)]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
