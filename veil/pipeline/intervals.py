"""Whole numbers as a short list of intervals: which outbox rows of a journal have been worked in."""

from __future__ import annotations

from collections.abc import Sequence

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
