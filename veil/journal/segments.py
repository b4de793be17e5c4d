"""The segments of a journal as its readers find them: which there are, and whether one can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from veil.journal.schema import COLUMNS, POSITION_BITS, VERSION, VERSION_KEY
from veil.journal.storage import Storage

T = TypeVar("T")

_NAME: Final = re.compile(
    r"day=(?P<day>\d{4}-\d{2}-\d{2})/(?P<id>[A-Za-z0-9_]+)-(?P<first>\d{16,})-(?P<last>\d{16,})\.parquet\Z"
)
_ROWS_AT_ONCE: Final = 65_536


class Segment(NamedTuple):
    """One file of the journal: the events of the outbox rows `first` to `last` of a journal id."""

    name: str  # in its place
    journal_id: str
    first: int
    last: int
    day: str  # YYYY-MM-DD, engine time of its first row
    size: int


class SegmentProblem(msgspec.Struct, frozen=True):
    """A segment that cannot be used, and why."""

    name: str
    reason: str


class Gap(NamedTuple):
    """Outbox rows of a journal id that no segment holds."""

    journal_id: str
    first: int
    last: int


def list_segments(place: Storage, *, since_day: str | None = None) -> list[Segment]:
    """The segments by day, then journal id and row; from a day on if one is given. Nothing is opened."""
    segments: list[Segment] = []
    for folder in place.entries():
        if not folder.is_folder or not folder.name.startswith("day="):
            continue
        if since_day is not None and folder.name < f"day={since_day}":
            continue
        for entry in place.entries(folder.name):
            match = _NAME.match(entry.name)
            if match is not None and not entry.is_folder:
                segments.append(
                    Segment(
                        entry.name, match["id"], int(match["first"]), int(match["last"]), match["day"], entry.size
                    )
                )  # fmt: skip
    return sorted(segments, key=lambda each: (each.day, each.journal_id, each.first))


def check_segment(place: Storage, segment: Segment, *, thorough: bool = False) -> SegmentProblem | None:
    """What is wrong with a segment, or None: it can be read, its version is known and its columns are there.

    Looks at the footer only; `thorough` reads every page and its checksum too. A segment of an older version is well: a
    column that it lacks reads as null. Problems of the place itself (no network, no permission) are raised as OSError.
    """
    import pyarrow as pa
    from pyarrow import parquet as pq

    try:
        with place.open_input(segment.name) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            reason = _footer_problem(parquet)
            if reason is None and thorough:
                reason = _content_problem(parquet, segment)
    except FileNotFoundError:
        reason = "it is gone"
    except pa.ArrowInvalid as problem:
        reason = f"it is not a whole Parquet file ({_first_line(problem)})"
    except OSError as problem:
        # Damage inside the file is told as an OSError without a number; trouble of the file system has one.
        if problem.errno is not None or not segment.size:
            raise
        reason = f"it is damaged ({_first_line(problem)})"
    except pa.ArrowException as problem:
        reason = f"it is damaged ({_first_line(problem)})"
    return None if reason is None else SegmentProblem(segment.name, reason)


def event_count(place: Storage, segment: Segment) -> int:
    """How many events a segment holds, by its footer."""
    from pyarrow import parquet as pq

    with place.open_input(segment.name) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def gaps(segments: Iterable[Segment]) -> list[Gap]:
    """Rows missing between the segments of each journal id; what retention removed at the front does not count."""
    found: list[Gap] = []
    expected: dict[str, int] = {}
    for each in sorted(segments, key=lambda each: (each.journal_id, each.first)):
        next_row = expected.get(each.journal_id, each.first)
        if each.first > next_row:
            found.append(Gap(each.journal_id, next_row, each.first - 1))
        expected[each.journal_id] = max(next_row, each.last + 1)
    return found


def _footer_problem(parquet: Any) -> str | None:
    from veil.journal.segment_writer import TYPES

    metadata = parquet.metadata.metadata or {}
    text = metadata.get(VERSION_KEY.encode(), b"").decode(errors="replace")
    if not text.isdecimal():
        return "it is not a segment of a journal: its metadata name no version"
    version = int(text)
    if version > VERSION:
        return (
            f"its version is {version}, newer than {VERSION}, the newest that this Veil reads: upgrade Veil"
        )
    schema = parquet.schema_arrow
    for column in COLUMNS:
        place = schema.get_field_index(column.name)
        if place < 0:
            if column.nullable and column.since > version:
                continue
            return f"column {column.name} is missing"
        if schema.field(place).type != TYPES[column.kind]:
            return f"column {column.name} is {schema.field(place).type}, expected {TYPES[column.kind]}"
    return None


def _content_problem(parquet: Any, segment: Segment) -> str | None:
    from pyarrow import compute as pc

    last = -1
    for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE):
        positions = batch.column("position")
        if not len(positions):
            continue
        rising = pc.all(pc.less(positions[:-1], positions[1:]), min_count=0).as_py()
        if positions[0].as_py() <= last or not rising:
            return "its events are not in order"
        first, last = positions[0].as_py(), positions[-1].as_py()
        if first >> POSITION_BITS < segment.first or last >> POSITION_BITS > segment.last:
            return f"it holds events of rows outside {segment.first} to {segment.last}"
    return None


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0].rstrip(".")


# ---- footers

_KEPT_MAX: Final = 50_000


class Group(NamedTuple):
    """A row group: how many events, and between which keys."""

    events: int
    seq_min: int
    seq_max: int


class Footer(NamedTuple):
    """The row groups of a segment, and the instant of its last event (engine milliseconds)."""

    groups: tuple[Group, ...]
    last_ms: int

    @property
    def events(self) -> int:
        return sum(group.events for group in self.groups)

    def groups_with(self, seqs: set[int]) -> list[int]:
        """The numbers of the row groups that can hold one of the keys."""
        return [
            number
            for number, group in enumerate(self.groups)
            if any(group.seq_min <= seq <= group.seq_max for seq in seqs)
        ]


class SegmentIndex:
    """The footers of one place's segments; each is read once, since a segment never changes."""

    def __init__(self, place: Storage) -> None:
        self.place = place
        # Of its own: where the place hangs, threads that others need would hang with it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="veil-journal")
        self.opened = 0  # footers that had to be read
        self._kept: dict[str, Footer] = {}

    async def look(self, work: Callable[..., T], *given: Any) -> T:
        """What a function finds in the segments; only within one may the methods below be called."""
        from asyncio import get_running_loop  # which jobs that only list segments need not import

        return await get_running_loop().run_in_executor(self._thread, work, self, *given)

    def is_known(self, segment: Segment) -> bool:
        """Whether the footer was read before."""
        return segment.name in self._kept

    def footer(self, segment: Segment) -> Footer:
        """The segment's footer; raises ValueError with the reason where the segment cannot be read, and OSError."""
        kept = self._kept.get(segment.name)
        if kept is None:
            self.opened += 1
            kept = self._read(segment)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[segment.name] = kept
        return kept

    def _read(self, segment: Segment) -> Footer:
        import pyarrow as pa
        from pyarrow import parquet as pq

        try:
            with self.place.open_input(segment.name) as file:
                metadata = pq.ParquetFile(file).metadata
                places = {metadata.schema.column(each).name: each for each in range(metadata.num_columns)}
                groups, last_ms = [], 0
                for number in range(metadata.num_row_groups):
                    group = metadata.row_group(number)
                    seqs = group.column(places["seq"]).statistics
                    lowest, highest = (
                        (seqs.min, seqs.max) if seqs is not None and seqs.has_min_max else (0, 1 << 63)
                    )
                    groups.append(Group(group.num_rows, lowest, highest))
                    last_ms = max(last_ms, _last_ms(group.column(places["at"]).statistics))
                return Footer(tuple(groups), last_ms)
        except (pa.ArrowException, KeyError, FileNotFoundError):
            problem = check_segment(self.place, segment)
            raise ValueError("it cannot be read" if problem is None else problem.reason) from None


def _last_ms(statistics: Any) -> int:
    if statistics is None or not statistics.has_min_max or not isinstance(statistics.max, datetime):
        return 1 << 62  # unknown: as late as can be, so that it is looked into
    return int(statistics.max.timestamp()) * 1000 + 999
