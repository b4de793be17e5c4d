"""What the footers of segments tell: which part of a segment can hold a message or an instant, without reading it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

from veil.journal.place import Place
from veil.journal.segments import Segment, check_segment

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
    """The footers of one place's segments; each is read once, since a segment never changes. For one thread at a time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.opened = 0  # footers that had to be read
        self._kept: dict[str, Footer] = {}

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
