"""How messages are spread over tasks: small hours share a task, large ones have several.

Planned from how many rows each hour has, so that neither two thousand quiet hours nor a single busy one makes tasks that
are too small or too large, and so that an hour becomes as few files as its size allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ROWS_A_TASK_MAX: Final = 600_000  # sorted in memory by a task that has a gigabyte
ROWS_A_TASK_MIN: Final = 200_000
TASKS: Final = 32  # aimed at in between


class Slice(NamedTuple):
    """Hours from `first` up to the next slice's, in `tasks` tasks from number `base` on."""

    first: int
    base: int
    tasks: int


class Spread(NamedTuple):
    """Slices by hour; the first begins with whatever comes first."""

    slices: tuple[Slice, ...]

    @property
    def tasks(self) -> int:
        """How many there are in all."""
        return self.slices[-1].base + self.slices[-1].tasks

    def sql(self, part: str, seq: str) -> str:
        """The number of a row's task: a tree of comparisons, since a list of thousands would be walked for each row."""
        if self.tasks == 1:
            # Not a constant, which Spark would fold away together with its knowledge of what is sorted by it.
            return f"pmod(hash({seq}), 1)"
        return _tree(self.slices, part, seq)


def spread_out(rows: Mapping[int, int]) -> Spread:
    """The spread for so many rows in each part (hour)."""
    target = min(ROWS_A_TASK_MAX, max(ROWS_A_TASK_MIN, sum(rows.values()) // TASKS))
    slices: list[Slice] = []
    base = filled = 0
    for part in sorted(rows):
        count = rows[part]
        fits = slices and slices[-1].tasks == 1 and filled + count <= target
        if fits:
            filled += count
            continue
        tasks = max(1, -(-count // target))
        slices.append(Slice(part, base, tasks))
        base, filled = base + tasks, count
    return Spread(tuple(slices) or (Slice(0, 0, 1),))


def _tree(slices: tuple[Slice, ...], part: str, seq: str) -> str:
    if len(slices) == 1:
        (only,) = slices
        return f"({only.base} + pmod(hash({seq}), {only.tasks}))" if only.tasks > 1 else str(only.base)
    middle = len(slices) // 2
    left, right = _tree(slices[:middle], part, seq), _tree(slices[middle:], part, seq)
    return f"(case when {part} < {slices[middle].first} then {left} else {right} end)"
