"""Charts of timeouts, for the report and the console: how long the work takes, and duplicates against the delay after a crash.

A chart has no size of its own. Everything in it stands at a percentage of its frame, and curves lie in a stretched frame
inside, so that lines and letters keep their size from a telephone to a wide screen and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from veil import words
from veil.core.findings import Candidate, CurvePoint, Finding

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

    def decades(self) -> list[float]:
        return [10.0**power for power in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]


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


class TimeoutMark(NamedTuple):
    """The present or the recommended timeout: a line with its name above the chart, down to its curve where it stands on one."""

    kind: str
    timeout_s: float
    across: float
    up: float | None = None
    title: str = ""


def _plot_template() -> Template:
    environment = Environment(
        loader=PackageLoader("veil"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"chance": words.chance, "length_of": words.length, "visible": words.visible}
    environment.globals |= {"percent": percent, "time_ticks": time_ticks, "stretched": stretched}
    return environment.get_template("plot.html")


_PLOT: Final = _plot_template()  # compiled at the start: that takes longer than a page may take


def _drawn(
    class_: str, label: str, x_title: str, x: LogScale, y: LogScale, target: float, *,
    paths: Sequence[tuple[str, str]], marks: Sequence[TimeoutMark], dots: Sequence[TimeoutPoint] = (),
) -> Markup:  # fmt: skip
    """A chart of chances over lengths of time; the label says what it shows, for those who cannot see it."""
    drawn = _PLOT.render(
        class_=class_, label=label, x_title=x_title, x=x, y=y, target=target, paths=paths, marks=marks, dots=dots
    )  # fmt: skip
    return Markup(drawn)  # noqa: S704 - by the template, which escapes


def survival_chart(finding: Finding, target: float) -> Markup | None:
    """The chance that work takes longer than a time, with its confidence band, and the two timeouts."""
    curve = [point for point in finding.curve if point.after_s > 0]
    if not curve:
        return None
    timeouts = {"present": finding.present_timeout_s, "recommended": finding.recommended_timeout_s}
    marked = {kind: timeout_s for kind, timeout_s in timeouts.items() if timeout_s}
    # The long level stretch before the first tenth of a per cent has finished says nothing.
    begins = next((point.after_s for point in curve if point.survival < 0.999), curve[0].after_s)
    x = time_scale([begins, curve[-1].after_s, *marked.values()])
    y = chance_scale([1.0], target)
    last = curve[-1]
    label = (
        f"Survival curve of {finding.queue}: the chance that the work takes longer than a time falls from 100 % to "
        f"{words.chance(last.survival)} after {words.length(last.after_s)}."
    )
    paths = [(band(_band_points(curve, x, y)), "band"), (line(_curve_points(curve, x, y), step=True), "line")]
    marks = [TimeoutMark(kind, timeout_s, x.at(timeout_s)) for kind, timeout_s in marked.items()]
    return _drawn("plot curve", label, "time since the receive", x, y, target, paths=paths, marks=marks)


def survival_sparkline(finding: Finding, target: float) -> Markup | None:
    """The survival curve without anything around it, for a cell of a table."""
    curve = [point for point in finding.curve if point.after_s > 0]
    if not curve:
        return None
    x, y = time_scale([curve[0].after_s, curve[-1].after_s]), chance_scale([1.0], target)
    return stretched((line(_curve_points(curve, x, y), step=True), "line"))


def _curve_points(curve: Sequence[CurvePoint], x: LogScale, y: LogScale) -> list[tuple[float, float]]:
    """The curve without points that lie at the edge or would not be told apart from the one before."""
    kept = [(0.0, 1.0)]
    for point in curve:
        across, up = x.at(point.after_s), y.at(point.survival)
        if across > 0 and (abs(across - kept[-1][0]) > 0.001 or abs(up - kept[-1][1]) > 0.001):
            kept.append((across, up))
    return kept


def _band_points(curve: Sequence[CurvePoint], x: LogScale, y: LogScale) -> list[tuple[float, float, float]]:
    before = [point for point in curve if x.at(point.after_s) <= 0]
    start = (0.0, y.at(before[-1].low), y.at(before[-1].high)) if before else (0.0, 1.0, 1.0)
    inside = curve[len(before) :]
    return [start, *((x.at(point.after_s), y.at(point.low), y.at(point.high)) for point in inside)]


def dilemma_chart(
    finding: Finding, target: float, policies: Mapping[str, str], class_: str, present_s: float | None = None
) -> Markup | None:
    """Each candidate as the chance of a duplicate against the delay after a crash: a curve for each of the renewal policies,
    given with the class of its line, the one that the queue has at present first."""
    present_s = finding.present_timeout_s if present_s is None else present_s
    shown = finding.worth_showing(present_s)
    curves = {policy: timeout_points(shown, policy) for policy in policies}
    every = [point for points in curves.values() for point in points]
    if len(every) < 2:
        return None
    x = time_scale(point.recovery_s for point in every)
    y = chance_scale([point.chance for point in every], target)
    first = next(points for points in curves.values() if points)
    paths = [(timeout_curve(points, x, y), policies[policy]) for policy, points in curves.items()]
    marks = []
    for kind, points, timeout_s in (
        ("present", first, present_s),
        ("recommended", curves.get(finding.policy) or first, finding.recommended_timeout_s),
    ):
        if timeout_s:
            point = point_at(points, timeout_s)
            marks.append(TimeoutMark(kind, timeout_s, x.at(point.recovery_s), y.at(point.chance), str(point)))
    label = (
        f"Dilemma curve of {finding.queue}: from {first[0]} to {first[-1]}, over the timeouts it could have."
    )
    return _drawn(
        class_, label, "expected delay after a crash", x, y, target, paths=paths, marks=marks, dots=first
    )
