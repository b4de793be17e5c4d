"""Charts of timeouts: scales, paths, and the curve of duplicates against delay that the report and the console both draw.

A chart has no size of its own. Everything in it stands at a percentage of its frame, and curves lie in a stretched frame
inside, so that lines and letters keep their size from a telephone to a wide screen and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from veil import words
from veil.core.findings import Candidate

UNITS: Final = 1000  # of the stretched frame, each way

# Lengths that an axis of time may name, in seconds, and those that it names where these are too few.
_NAMED_S: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
_BETWEEN_S: Final = (
    0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2, 5, 20, 30, 120, 300, 1200, 1800, 7200, 3 * 3600, 12 * 3600, 2 * 86_400,
)  # fmt: skip
_TICKS_MAX: Final = 6
_TICK_WIDTH: Final = 0.16  # a name takes up to a seventh of the width of a chart on a telephone


class LogScale(NamedTuple):
    """Maps numbers between `low` and `high` by their logarithm; what lies outside stands at the edge."""

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
    inside = [each for each in _NAMED_S if scale.low <= each <= scale.high]
    if len(inside) <= 3:
        inside = sorted([*inside, *(each for each in _BETWEEN_S if scale.low <= each <= scale.high)])
    kept: list[float] = []
    for each in inside[:: max(1, math.ceil(len(inside) / _TICKS_MAX))]:
        if not kept or scale.at(each) - scale.at(kept[-1]) > _TICK_WIDTH:
            kept.append(each)
    return kept


def chance_scale(chances: Iterable[float], target: float) -> LogScale:
    """A scale of chances in whole decades, which reaches a decade below the target."""
    low = 10.0 ** (math.floor(math.log10(min(max(target, 1e-6), 0.1)) + 1e-9) - 1)
    top = max((each for each in chances if each > 0), default=1.0)
    high = 10.0 ** math.ceil(math.log10(max(top, low * 100)) - 1e-9)
    return LogScale(low, min(1.0, high) if high > low else 1.0)


def percent(part: float) -> str:
    """A position in the frame."""
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"


def line(points: Sequence[tuple[float, float]], *, step: bool = False) -> str:
    """A path through the points (0 to 1, y upwards) in the stretched frame; `step`: level until the next point."""
    path = []
    for number, (x, y) in enumerate(points):
        left, top = f"{x * UNITS:.0f}", f"{(1 - y) * UNITS:.0f}"
        path.append(f"M{left} {top}" if number == 0 else f"H{left}V{top}" if step else f"L{left} {top}")
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


def stretched(*paths: tuple[str, str]) -> Markup:
    """A frame whose paths (data and class) stretch with the chart."""
    drawn = Markup("").join(Markup('<path d="{}" class="{}"/>').format(*path) for path in paths)
    return Markup(
        '<svg viewBox="0 0 {0} {0}" preserveAspectRatio="none" width="100%" height="100%">{1}</svg>'
    ).format(UNITS, drawn)


def frame(class_: str, label: str, *parts: Markup) -> Markup:
    """A chart with what it shows in words, for those who cannot see it."""
    return Markup(
        '<div class="{}"><svg role="img" aria-label="{}" width="100%" height="100%">{}</svg></div>'
    ).format(class_, words.visible(label), Markup("").join(parts))


def axes(x: LogScale, y: LogScale, x_title: str) -> Markup:
    """Grid and names of a chart of chances over lengths of time."""
    parts = []
    for power in range(round(math.log10(y.low)), round(math.log10(y.high)) + 1):
        parts.append(
            Markup(
                '<line x1="0" x2="100%" y1="{0}" y2="{0}" class="grid"/>'
                '<text x="0" y="{0}" dx="-7" dy="0.32em" class="tick end">{1}</text>'
            ).format(percent(1 - y.at(10.0**power)), words.chance(10.0**power))
        )
    for tick in time_ticks(x):
        parts.append(
            Markup(
                '<line x1="{0}" x2="{0}" y1="100%" y2="0" class="grid"/>'
                '<text x="{0}" y="100%" dy="17" class="tick middle">{1}</text>'
            ).format(percent(x.at(tick)), words.length(tick))
        )
    parts.append(Markup('<text x="100%" y="100%" dy="33" class="axis end">{}</text>').format(x_title))
    return Markup("").join(parts)


def target_line(y: LogScale, target: float) -> Markup:
    """The chance of a duplicate that is aimed at."""
    return Markup(
        '<line x1="0" x2="100%" y1="{0}" y2="{0}" class="target"/>'
        '<text x="0" y="{0}" dx="6" dy="-5" class="start note">target {1}</text>'
    ).format(percent(1 - y.at(target)), words.chance(target))


def flag(x: float, name: str, class_: str, *, row: int, down_to: str = "100%") -> Markup:
    """A marked vertical line whose name stands above the chart; rows keep two names apart."""
    side = "end" if x > 0.5 else "start"
    top = -8 - 16 * row
    return Markup(
        '<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" class="mark {3}"/>'
        '<text x="{0}" y="{4}" dx="{5}" class="{6} {3}">{7}</text>'
    ).format(percent(x), top + 6 if row else 0, down_to, class_, top, 4 if side == "end" else -1, side, name)


class TimeoutPoint(NamedTuple):
    """What one timeout means: how long a crash hides a message, and the chance of a duplicate."""

    timeout_s: float
    recovery_s: float
    chance: float

    def __str__(self) -> str:
        meant = f"{words.chance(self.chance)} duplicates, {words.length(self.recovery_s)} of delay"
        return f"{words.length(self.timeout_s)}: {meant}"


def timeout_points(candidates: Iterable[Candidate], policy: str) -> list[TimeoutPoint]:
    """The candidates under one renewal policy, the shortest first."""
    return sorted(
        TimeoutPoint(float(candidate.timeout_s), meant.recovery_s, meant.duplicate_chance)
        for candidate in candidates
        for meant in candidate.policies
        if meant.policy == policy and meant.recovery_s > 0
    )


def point_at(points: Sequence[TimeoutPoint], timeout_s: float) -> TimeoutPoint:
    """Where a timeout stands that may be no candidate: on the line between its neighbours."""
    below = [each for each in points if each.timeout_s <= timeout_s]
    above = [each for each in points if each.timeout_s >= timeout_s]
    if not below or not above or below[-1].timeout_s == above[0].timeout_s:
        return (below[-1:] or above[:1])[0]._replace(timeout_s=timeout_s)
    low, high = below[-1], above[0]
    part = 0.5
    if low.timeout_s > 0:
        part = math.log(timeout_s / low.timeout_s) / math.log(high.timeout_s / low.timeout_s)

    def mixed(first: float, second: float) -> float:
        if first <= 0 or second <= 0:
            return first + (second - first) * part
        return math.exp(math.log(first) + (math.log(second) - math.log(first)) * part)

    return TimeoutPoint(timeout_s, mixed(low.recovery_s, high.recovery_s), mixed(low.chance, high.chance))


def timeout_curve(points: Sequence[TimeoutPoint], x: LogScale, y: LogScale) -> str:
    """The path through the points, for a stretched frame."""
    return line([(x.at(point.recovery_s), y.at(point.chance)) for point in points])


def timeout_dot(x: LogScale, y: LogScale, point: TimeoutPoint) -> Markup:
    """One candidate on its curve."""
    return Markup('<circle cx="{}" cy="{}" r="2.5" class="dot candidate"><title>{}</title></circle>').format(
        percent(x.at(point.recovery_s)), percent(1 - y.at(point.chance)), str(point)
    )


def timeout_mark(x: LogScale, y: LogScale, point: TimeoutPoint, kind: str) -> Markup:
    """The present or the recommended timeout on its curve, with its name above the chart."""
    across, height = x.at(point.recovery_s), percent(1 - y.at(point.chance))
    name = f"{kind} {words.length(point.timeout_s)}"
    return flag(across, name, kind, row=int(kind == "present"), down_to=height) + Markup(
        '<circle cx="{}" cy="{}" r="5.5" class="point {}"><title>{}</title></circle>'
    ).format(percent(across), height, kind, str(point))
