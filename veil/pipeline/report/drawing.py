"""The ground that charts are drawn on: scales, ticks and paths.

A chart has no size of its own. Everything in it stands at a percentage of its frame, and curves lie in a stretched frame
inside, so that lines and letters keep their size from a telephone to a wide screen and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from veil.pipeline import words
from veil.pipeline.report.markup import Child, Markup, el

UNITS: Final = 1000  # of the stretched frame, each way

# Lengths that an axis of time may name, in seconds.
_NAMED: Final = (
    0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400,
)  # fmt: skip
_BETWEEN: Final = (
    0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2, 5, 20, 30, 120, 300, 1200, 1800, 7200, 3 * 3600, 12 * 3600, 2 * 86_400,
)  # fmt: skip
_TICKS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class LogScale:
    """Places numbers between `low` and `high` by their logarithm; what lies outside stands at the edge."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Where the value stands, 0 to 1."""
        if value <= self.low:
            return 0.0
        return min(1.0, math.log(value / self.low) / math.log(self.high / self.low))


def time_scale(lengths: Iterable[float]) -> LogScale:
    """A scale that holds all these lengths with a little air, and at least a decade."""
    known = [each for each in lengths if each > 0 and math.isfinite(each)]
    high = max(known, default=60.0) * 1.35
    low = max(min(known, default=1.0) / 1.2, high / 1e6, 0.0005)
    if high / low < 10:
        middle = math.sqrt(high * low)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    return LogScale(low, high)


def time_ticks(scale: LogScale) -> list[float]:
    """A few round lengths on the scale."""
    inside = [each for each in _NAMED if scale.low <= each <= scale.high]
    if len(inside) <= 3:
        inside = sorted([*inside, *(each for each in _BETWEEN if scale.low <= each <= scale.high)])
    thin = math.ceil(len(inside) / _TICKS_MAX)
    kept: list[float] = []
    for each in inside[::thin] if thin else []:
        # A name takes up to a seventh of the width of a chart on a telephone.
        if not kept or scale.at(each) - scale.at(kept[-1]) > 0.16:
            kept.append(each)
    return kept


def chance_scale(chances: Iterable[float], target: float) -> LogScale:
    """A scale of chances in whole decades, which reaches a decade below the target."""
    low = 10 ** (math.floor(math.log10(min(max(target, 1e-6), 0.1)) + 1e-9) - 1)
    top = max((each for each in chances if each > 0), default=1.0)
    high = 10 ** math.ceil(math.log10(max(top, low * 100)) - 1e-9)
    return LogScale(low, min(1.0, high) if high > low else 1.0)


def chance_ticks(scale: LogScale) -> list[float]:
    """Each decade of the scale."""
    first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
    return [10.0**power for power in range(first, last + 1)]


def percent(part: float) -> str:
    """A place in the frame."""
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"


def line(points: Sequence[tuple[float, float]], *, step: bool = False) -> str:
    """A path through the points (0 to 1, y upwards) in the stretched frame; `step`: level until the next point."""
    path = []
    for number, (x, y) in enumerate(points):
        where = f"{x * UNITS:.0f}"
        height = f"{(1 - y) * UNITS:.0f}"
        path.append(
            f"M{where} {height}" if number == 0 else f"H{where}V{height}" if step else f"L{where} {height}"
        )
    return "".join(path)


def band(points: Sequence[tuple[float, float, float]]) -> str:
    """The outline of a band in steps: (x, low, high) each."""
    if not points:
        return ""
    upper = line([(x, high) for x, _, high in points], step=True)
    back = [f"V{(1 - points[-1][1]) * UNITS:.0f}"]
    for (x, _, _), (_, low, _) in zip(reversed(points), reversed([points[0], *points[:-1]]), strict=True):
        back.append(f"H{x * UNITS:.0f}V{(1 - low) * UNITS:.0f}")
    return upper + "".join(back) + "Z"


def stretched(*children: Child) -> Markup:
    """A frame whose contents stretch with the chart."""
    return el(
        "svg",
        *children,
        viewBox=f"0 0 {UNITS} {UNITS}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )


def chart(kind: str, label: str, *children: Child) -> Markup:
    """A chart with what it shows in words, for those who cannot see it."""
    drawn = el("svg", *children, role="img", aria_label=label, width="100%", height="100%")
    return el("div", drawn, class_=f"plot {kind}")


def axes(x: LogScale, y: LogScale, x_title: str) -> Markup:
    """Grid and names of a chart of chances over lengths of time."""
    parts: list[Child] = []
    for tick in chance_ticks(y):
        height = percent(1 - y.at(tick))
        parts.append(el("line", x1="0", x2="100%", y1=height, y2=height, class_="grid"))
        parts.append(el("text", words.chance(tick), x="0", y=height, dx="-7", dy="0.32em", class_="tick end"))
    for tick in time_ticks(x):
        place = percent(x.at(tick))
        parts.append(el("line", x1=place, x2=place, y1="100%", y2="0", class_="grid"))
        parts.append(el("text", words.length(tick), x=place, y="100%", dy="17", class_="tick middle"))
    parts.append(el("text", x_title, x="100%", y="100%", dy="33", class_="axis end"))
    return Markup("".join(part for part in parts if part))


def flag(x: float, row: int, name: str, class_: str) -> Markup:
    """A marked vertical line whose name stands above the chart; rows keep two names apart."""
    place, side = percent(x), "end" if x > 0.5 else "start"
    top = -8 - 16 * row
    return Markup(
        el("line", x1=place, x2=place, y1=str(top + 6 if row else 0), y2="100%", class_=f"mark {class_}")
        + el("text", name, x=place, y=str(top), dx="4" if side == "end" else "-1", class_=f"{side} {class_}")
    )
