"""Small drawings, made here as SVG: no script, no style of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

_WIDTH, _HEIGHT = 120, 24


def sparkline(series: Mapping[str, Sequence[int]], label: str) -> Markup:
    """A few lines over the same time on one scale; each has a class of its own name."""
    top = max((max(values, default=0) for values in series.values()), default=0)
    lines = [
        Markup('<path class="line {}" d="{}"/>').format(name, _line(values, top))
        for name, values in series.items()
        if any(values)
    ]
    drawn = Markup("").join(lines) or Markup('<path class="line none" d="M0 {}H{}"/>').format(
        _HEIGHT - 1, _WIDTH
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, drawn)


def _line(values: Sequence[int], top: int) -> str:
    step = _WIDTH / max(1, len(values) - 1)
    height, ground = _HEIGHT - 3, _HEIGHT - 1.5
    last = len(values) - 1
    # Where it goes on level nothing need be said: most of these lines are, and they are drawn every second.
    return "M" + "L".join(
        [
            f"{place * step:.1f} {ground - height * value / top:.1f}"
            for place, value in enumerate(values)
            if place in (0, last) or value != values[place - 1] or value != values[place + 1]
        ]
    )


def in_pairs(values: Sequence[int]) -> list[int]:
    """Half as many points, two added up into one."""
    return [sum(values[place : place + 2]) for place in range(0, len(values), 2)]


# ---- activity charts

_ACTIVITY_WIDTH, _ACTIVITY_HEIGHT, _BASE = 600, 110, 100


class Chart(NamedTuple):
    """One event's drawing, and its figures in words."""

    event: str
    words: str
    total: int
    highest: int
    drawing: Markup


def activity_chart(event: str, words: str, counts: Sequence[int], span_s: int) -> Chart:
    """Bars, the oldest first, to a scale of its own; each says its figure when it is pointed at."""
    top = _round_up(max(counts, default=0))
    step = _ACTIVITY_WIDTH / len(counts)
    bars = Markup("").join(
        Markup('<rect class="bar {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
            event,
            f"{place * step:.2f}",
            f"{_BASE - _BASE * count / top:.2f}",
            f"{max(1.0, step - 0.8):.2f}",
            f"{_BASE * count / top:.2f}",
            f"{count:,} in {span_s} s, {_ago((len(counts) - place) * span_s)} ago",
        )
        for place, count in enumerate(counts)
        if count
    )
    lines = Markup("").join(
        Markup('<path class="grid" d="M0 {}H{}"/>').format(y, _ACTIVITY_WIDTH)
        for y in (0.5, _BASE / 2, _BASE)
    )
    total = sum(counts)
    label = f"{words}: {total:,} in all, at most {max(counts, default=0):,} in {span_s} s"
    drawing = Markup(
        '<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
    ).format(_ACTIVITY_WIDTH, _ACTIVITY_HEIGHT, label, lines, bars)
    return Chart(event, words, total, top, drawing)


def _round_up(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50 …: the top of the scale."""
    size = 1
    while True:
        for factor in (1, 2, 5):
            if value <= factor * size:
                return factor * size
        size *= 10


def _ago(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min"
