"""Rows cut into the batches of SendMessageBatch: ten messages, within the limit of bytes, one queue each.

Where rows are cut depends on the rows alone, not on time: the same rows give the same batches again, so that a batch that is
sent once more can be known by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from veil.core.limits import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX
from veil.pipeline.sink.row import Row, is_fifo


@dataclass(slots=True)
class Batch:
    """Rows for one call."""

    queue: str
    rows: list[Row] = field(default_factory=list)
    size: int = 0

    def has_room_for(self, row: Row) -> bool:
        return len(self.rows) < BATCH_ENTRIES_MAX and self.size + row.size <= BATCH_BYTES_MAX

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.size += row.size


Lane = tuple[str, int]


class Cutter:
    """Takes rows in their order and gives lists of batches: those of one list must be sent one after the other.

    The rows of one group of a FIFO queue are always in one lane, in their order. Elsewhere each batch goes by itself.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._open: dict[Lane, Batch] = {}
        self._full: dict[Lane, list[Batch]] = {}

    def add(self, row: Row) -> None:
        """Take a row in."""
        lane = (row.queue, self._lane_of(row))
        batch = self._open.get(lane)
        if batch is not None and not batch.has_room_for(row):
            self._full.setdefault(lane, []).append(batch)
            batch = None
        if batch is None:
            batch = self._open[lane] = Batch(row.queue)
        batch.add(row)

    def full(self) -> list[list[Batch]]:
        """What is ready now; batches with room left wait for more."""
        taken, self._full = self._full, {}
        return _sequences(taken)

    def rest(self) -> list[list[Batch]]:
        """All that is left."""
        for lane, batch in self._open.items():
            self._full.setdefault(lane, []).append(batch)
        self._open = {}
        return self.full()

    def _lane_of(self, row: Row) -> int:
        return crc32((row.draft.group or "").encode()) % self._lanes if is_fifo(row.queue) else 0


def _sequences(lanes: dict[Lane, list[Batch]]) -> list[list[Batch]]:
    found: list[list[Batch]] = []
    for (queue, _), batches in lanes.items():
        if is_fifo(queue):
            found.append(batches)
        else:
            found += [[batch] for batch in batches]
    return found
