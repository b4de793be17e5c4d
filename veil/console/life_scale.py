"""Time across a drawing: true to scale where something happens, cut short where a message only waits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

# A wait longer than this part of all that happens is cut to it: a message that rests for a week shall not press the
# seconds of its leases into one line.
_WAIT_MAX: Final = 0.35
_WAIT_SHOWN: Final = 0.12


class Cut(NamedTuple):
    """A wait that is drawn shorter than it was, from one place to another."""

    begin: float
    end: float
    length_ms: int


class LifeScale:
    """Places instants between 0 and 1."""

    def __init__(self, begin_ms: int, end_ms: int, busy: Iterable[tuple[int, int]]) -> None:
        self.begin_ms, self.end_ms = begin_ms, max(end_ms, begin_ms + 1)
        edges, idle = _edges(self.begin_ms, self.end_ms, busy)
        lengths = [after - before for before, after in pairwise(edges)]
        moved = sum(length for length, is_idle in zip(lengths, idle, strict=True) if not is_idle)
        shown = [
            moved * _WAIT_SHOWN if is_idle and moved and length > moved * _WAIT_MAX else float(length)
            for length, is_idle in zip(lengths, idle, strict=True)
        ]
        whole = sum(shown) or 1.0
        self._edges = edges
        self._places = [0.0]
        for part in shown:
            self._places.append(min(1.0, self._places[-1] + part / whole))
        self.cuts = [
            Cut(self._places[number], self._places[number + 1], length)
            for number, (length, part) in enumerate(zip(lengths, shown, strict=True))
            if part < length
        ]

    def at(self, instant_ms: int) -> float:
        """Where the instant stands; what lies outside stands at the edge."""
        if instant_ms <= self.begin_ms:
            return 0.0
        if instant_ms >= self.end_ms:
            return 1.0
        number = bisect_right(self._edges, instant_ms) - 1
        begin_ms, end_ms = self._edges[number], self._edges[number + 1]
        begin, end = self._places[number], self._places[number + 1]
        return begin + (end - begin) * (instant_ms - begin_ms) / (end_ms - begin_ms)


def _edges(begin_ms: int, end_ms: int, busy: Iterable[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    """The instants between which something happens or nothing does, and which of the spans are idle."""
    edges, idle = [begin_ms], list[bool]()
    for start_ms, stop_ms in sorted(busy):
        start_ms, stop_ms = max(start_ms, edges[-1]), min(stop_ms, end_ms)
        if stop_ms <= start_ms:
            continue
        if start_ms > edges[-1]:
            edges.append(start_ms)
            idle.append(True)
        edges.append(stop_ms)
        idle.append(False)
    if end_ms > edges[-1]:
        edges.append(end_ms)
        idle.append(True)
    return edges, idle
