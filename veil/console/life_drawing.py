"""The timeline of a message: a line for each stay in a queue, a bar for each lease with its renewals, deadline and end.

Each row is a drawing of its own on one common scale, with its words above it, so that it reads on a telephone as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from veil.console.templates import utc
from veil.core.attempt import AttemptOutcome
from veil.journal.attempts import LeaseLife, Life, Stay
from veil.words import length, plural

# ---- the scale

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


# ---- the drawing

_ROWS_MAX: Final = 60
# Of each kind in one row: more would lie on each other.
_CUTS_MAX: Final = 50
_TICKS_MAX: Final = 200
_LATE_TOLD_MAX: Final = 5

CAME: Final = {
    "sent": "sent",
    "dead_lettered": "dead-lettered",
    "redriven": "redriven",
    "unknown": "first seen",
}
WENT: Final = {
    "deleted": "deleted",
    "expired": "expired: its retention ended",
    "purged": "purged with the queue's content",
    "redriven": "redriven",
    "dead_lettered": "to the dead letters",
}
HOW: Final = {
    "open": "held now",
    "deleted": "deleted in time",
    "released": "released",
    "given_back": "over",
    "undone": "undone: the answer was never sent",
    "lapsed": "lapsed",
    "expired": "ended with the message's retention",
    "purged": "purged",
    "redriven": "redriven",
}


class LifeMark(NamedTuple):
    """One sign of a drawing, at a place, or from there to another; life_marks.html draws it."""

    shape: str  # line, bar, tick, dot, cut or text
    kind: str  # its class
    begin: float
    end: float = 0.0
    title: str = ""


class LifeRow(NamedTuple):
    """One row of the drawing and what stands above it."""

    kind: str  # stay or lease
    title: str
    words: str
    how: str  # a class: how it ended
    marks: list[LifeMark]
    came: str = ""  # how a stay began, and when
    came_at_ms: int = 0


class Drawing(NamedTuple):
    """The rows, the axis under them, and how many rows were left out."""

    rows: list[LifeRow]
    axis: list[LifeMark]
    cuts: list[str]
    left_out: int
    label: str


def draw(life: Life, now_ms: int) -> Drawing:
    end_ms = life.until_ms(now_ms)
    scale = LifeScale(life.begins_ms, end_ms, _busy(life, now_ms))
    rows: list[LifeRow] = []
    for stay in life.stays:
        if len(rows) < _ROWS_MAX:
            rows.append(_stay_row(stay, scale, now_ms))
        room = _ROWS_MAX - len(rows)
        rows += [_lease_row(lease, scale, now_ms) for lease in stay.leases[:room]]
    left_out = len(life.stays) + len(life.leases) - len(rows)
    cuts = [_length(cut.length_ms) for cut in scale.cuts[:_CUTS_MAX]]
    if len(scale.cuts) > _CUTS_MAX:
        cuts.append(f"and {len(scale.cuts) - _CUTS_MAX:,} more")
    label = f"A life of {_length(end_ms - life.begins_ms)} with {plural(len(life.leases), 'attempt')}"
    return Drawing(rows, _axis(scale, now_ms), cuts, left_out, label)


def _busy(life: Life, now_ms: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for stay in life.stays:
        if stay.delayed_until_ms is not None:
            spans.append((stay.since_ms, stay.delayed_until_ms))
    for lease in life.leases:
        # What was granted and not used, or not yet, may be cut short like any wait.
        ended_ms = min(lease.deadline_ms, now_ms) if lease.ended_at_ms is None else lease.ended_at_ms
        late_ms = [event.at_ms for event in lease.late]
        spans.append((lease.received_at_ms, max([ended_ms, *late_ms])))
    return spans


def _stay_row(stay: Stay, scale: LifeScale, now_ms: int) -> LifeRow:
    end_ms = now_ms if stay.until_ms is None else stay.until_ms
    begin, end = scale.at(stay.since_ms), scale.at(end_ms)
    marks = [LifeMark("line", "rail", begin, end), *_cuts(scale, begin, end)]
    if stay.delayed_until_ms is not None:
        title = f"delayed until {utc(stay.delayed_until_ms)}"
        marks.append(LifeMark("bar", "delay", begin, scale.at(stay.delayed_until_ms), title))
    came = CAME.get(stay.came, stay.came)
    marks.append(LifeMark("dot", f"came-{stay.came}", begin, title=f"{came} {utc(stay.since_ms)}"))
    words = []
    if stay.delayed_until_ms is not None:
        words.append(f"delayed {_length(stay.delayed_until_ms - stay.since_ms)}")
    if stay.went is not None and stay.until_ms is not None:
        title = f"{WENT[stay.went]} {utc(stay.until_ms)}"
        marks.append(LifeMark("dot", f"went-{stay.went}", end, title=title))
        words.append(f"{WENT[stay.went]} after {_length(stay.until_ms - stay.since_ms)}")
    else:
        words.append("here now")
    how = stay.went or "here"
    return LifeRow("stay", stay.queue.name, " · ".join(words), how, marks, came, stay.since_ms)


def _lease_row(lease: LeaseLife, scale: LifeScale, now_ms: int) -> LifeRow:
    start = scale.at(lease.received_at_ms)
    end_ms = now_ms if lease.ended_at_ms is None else lease.ended_at_ms
    end, deadline = scale.at(end_ms), scale.at(lease.deadline_ms)
    marks = [LifeMark("line", "ground", 0.0, 1.0)]
    if deadline > end:
        marks.append(LifeMark("bar", "granted", start, deadline, f"granted until {utc(lease.deadline_ms)}"))
    words = lease_words(lease)
    how = "failed" if lease.outcome is AttemptOutcome.FAILED else lease.how
    marks.append(LifeMark("bar", f"held {how}", start, end, words))
    for event in lease.late[-_TICKS_MAX:]:
        late = scale.at(event.at_ms)
        if late > end:
            marks.append(LifeMark("line", "overrun", end, late))
        marks.append(LifeMark("dot", "late", late, title=f"{_late_words(event.kind)} {utc(event.at_ms)}"))
    if lease.renewals:
        first = scale.at(lease.first_deadline_ms)
        marks.append(LifeMark("tick", "first", first, title="the first deadline, passed by renewal"))
    for each in lease.renewals[-_TICKS_MAX:]:
        title = f"renewed {utc(each.at_ms)} until {utc(each.deadline_ms)}"
        marks.append(LifeMark("tick", "renewal", scale.at(each.at_ms), title=title))
    marks += _cuts(scale, end, deadline)
    title = f"visibility deadline {utc(lease.deadline_ms)}"
    marks.append(LifeMark("tick", "deadline", deadline, title=title))
    return LifeRow("lease", f"Attempt {lease.delivery}", words, how, marks)


def _cuts(scale: LifeScale, begin: float, end: float) -> list[LifeMark]:
    return [_cut(cut) for cut in scale.cuts if begin <= cut.begin < end][:_CUTS_MAX]


def lease_words(lease: LeaseLife) -> str:
    parts = []
    if lease.held_ms is not None:
        parts.append(f"held {_length(lease.held_ms)}")
    if lease.renewals:
        parts.append(f"renewed {plural(len(lease.renewals), 'time')}")
    parts.append(_outcome_words(lease))
    for event in lease.late[-_LATE_TOLD_MAX:]:
        late_ms = event.at_ms - (lease.ended_at_ms or lease.deadline_ms)
        parts.append(f"{_late_words(event.kind)} {_length(max(0, late_ms))} later")
    return " · ".join(parts)


def _outcome_words(lease: LeaseLife) -> str:
    """What came of the attempt, and the error that ended it."""
    how = HOW.get(lease.how, lease.how)
    if lease.outcome is AttemptOutcome.COMPLETED and lease.how == "deleted":
        return how
    if lease.outcome in (AttemptOutcome.OPEN, AttemptOutcome.REMOVED, AttemptOutcome.UNDONE):
        return how
    words = lease.outcome.label
    if lease.how in ("lapsed", "deleted"):
        words = f"{lease.how} · {words}"
    if lease.reported is not None and lease.reported.error_type:
        words += f": {lease.reported.error_type}"
    if lease.how == "given_back" and lease.ended_at_ms is not None:
        words += f" · visible again after {_length(max(0, lease.deadline_ms - lease.ended_at_ms))}"
    return words


def _late_words(kind: str) -> str:
    return {
        "deleted": "deleted by its lapsed receipt",
        "delete_refused": "its delete came too late",
        "extension_refused": "its extension came too late",
        "holder_late": "its holder was still at work",
    }.get(kind, kind)


def _axis(scale: LifeScale, now_ms: int) -> list[LifeMark]:
    marks = [LifeMark("line", "rail", 0.0, 1.0)]
    texts = [(0.0, "start", "0 s"), (1.0, "end", f"+{_length(scale.end_ms - scale.begin_ms)}")]
    if scale.begin_ms < now_ms < scale.end_ms:
        place = scale.at(now_ms)
        marks.append(LifeMark("tick", "now", place, title=f"now {utc(now_ms)}"))
        if 0.12 < place < 0.8:
            texts.append((place, "middle", "now"))
    marks += [_cut(cut) for cut in scale.cuts]
    return marks + [LifeMark("text", side, place, title=text) for place, side, text in texts]


def _cut(cut: Cut) -> LifeMark:
    return LifeMark("cut", "cut", cut.begin, cut.end, f"{_length(cut.length_ms)}, drawn shorter")


def _length(length_ms: int) -> str:
    return length(length_ms / 1000)
