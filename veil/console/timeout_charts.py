"""The dilemma of a timeout, drawn: the chance of a duplicate against the delay after a crash, for each timeout there could be.

A chart has no size of its own: everything in it stands at a percentage of its frame, and curves lie in a stretched frame
inside, so that lines and letters keep their size on every screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from veil.console.formatting import length
from veil.core.findings import NO_RENEWAL, Finding

_UNITS: Final = 1000
_NAMED_S: Final = (0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_CANDIDATES_BEYOND: Final = 4


class Place(NamedTuple):
    """One timeout on the curve."""

    timeout_s: float
    recovery_s: float
    chance: float


class LogScale(NamedTuple):
    """Places numbers by their logarithm; what lies outside stands at the edge."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Where the value stands, 0 to 1."""
        if value <= self.low:
            return 0.0
        return min(1.0, math.log(value / self.low) / math.log(self.high / self.low))


def chance(probability: float) -> str:
    """A chance in per cent with two significant digits."""
    percent = probability * 100
    if percent <= 0:
        return "0 %"
    if percent < 0.001:
        return "< 0.001 %"
    if percent >= 9.95:
        return f"{percent:.0f} %"
    text = f"{percent:.{max(0, 1 - math.floor(math.log10(percent)))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def seconds(value: float | None) -> str:
    """A length with as much of it as matters."""
    if value is None or not math.isfinite(value):
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.1f}".removesuffix(".0") + " s"
    return " ".join(length(round(value)).split(" ")[:4])


def dilemma(finding: Finding, target: float, now_s: float | None) -> Markup | None:
    """The curve, with the queue's timeout as it is now and the recommended one on it; None where there is none."""
    places = _places(finding, finding.policy) or _places(finding, NO_RENEWAL)
    if len(places) < 2:
        return None
    present_s = now_s if now_s is not None else finding.present_timeout_s
    marked = [each for each in (present_s, finding.recommended_timeout_s) if each]
    near = [each for each in places if not marked or each.timeout_s <= max(marked) * _CANDIDATES_BEYOND]
    shown = near if len(near) >= 3 else places
    x = _time_scale([each.recovery_s for each in shown])
    y = _chance_scale([each.chance for each in shown], target)
    parts = [*_axes(x, y), _target(y, target), _curve(shown, x, y)]
    parts += [_dot(x, y, place) for place in shown]
    parts += [
        _marked(x, y, shown, timeout_s, kind, row)
        for timeout_s, kind, row in (
            (present_s, "present", 1),
            (finding.recommended_timeout_s, "recommended", 0),
        )
        if timeout_s
    ]
    label = (
        f"Duplicates against the delay after a crash: from {_told(shown[0])} to {_told(shown[-1])}, "
        "over the timeouts that the queue could have."
    )
    return Markup(
        '<div class="curve"><svg role="img" aria-label="{}" width="100%" height="100%">{}</svg></div>'
    ).format(label, Markup("").join(parts))


def spark(finding: Finding, target: float) -> Markup:
    """The curve alone, for a cell of a table."""
    places = _places(finding, finding.policy) or _places(finding, NO_RENEWAL)
    if len(places) < 2:
        return Markup("")
    x, y = (
        _time_scale([each.recovery_s for each in places]),
        _chance_scale([each.chance for each in places], target),
    )
    dots = [
        Markup('<circle class="point {}" r="3" cx="{}" cy="{}"/>').format(
            kind, _percent(x.at(place.recovery_s)), _percent(1 - y.at(place.chance))
        )
        for timeout_s, kind in (
            (finding.present_timeout_s, "present"),
            (finding.recommended_timeout_s, "recommended"),
        )
        if timeout_s and (place := _between(places, timeout_s))
    ]
    return Markup('<svg class="curve-spark" aria-hidden="true">{}{}</svg>').format(
        _curve(places, x, y), Markup("").join(dots)
    )


def place_of(finding: Finding, timeout_s: float | None) -> Place | None:
    """What a timeout would mean, also one between the candidates."""
    places = _places(finding, finding.policy) or _places(finding, NO_RENEWAL)
    return _between(places, timeout_s) if timeout_s and places else None


def _places(finding: Finding, policy: str) -> list[Place]:
    found = [
        Place(float(candidate.timeout_s), meant.recovery_s, meant.duplicate_chance)
        for candidate in finding.candidates
        for meant in candidate.policies
        if meant.policy == policy and meant.recovery_s > 0
    ]
    return sorted(found)


def _time_scale(lengths: Sequence[float]) -> LogScale:
    high = max(lengths) * 1.35
    low = max(min(lengths) / 1.2, high / 1e6, 0.0005)
    if high / low < 10:
        middle = math.sqrt(high * low)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    return LogScale(low, high)


def _chance_scale(chances: Iterable[float], target: float) -> LogScale:
    """In whole decades, down to one below the target."""
    low = 10.0 ** (math.floor(math.log10(min(max(target, 1e-6), 0.1)) + 1e-9) - 1)
    top = max((each for each in chances if each > 0), default=1.0)
    high = 10.0 ** math.ceil(math.log10(max(top, low * 100)) - 1e-9)
    return LogScale(low, min(1.0, high) if high > low else 1.0)


def _axes(x: LogScale, y: LogScale) -> list[Markup]:
    parts = []
    for power in range(round(math.log10(y.low)), round(math.log10(y.high)) + 1):
        height = _percent(1 - y.at(10.0**power))
        parts.append(
            Markup(
                '<line class="grid" x1="0" x2="100%" y1="{}" y2="{}"/>'
                '<text class="end" x="0" y="{}" dx="-7" dy="0.32em">{}</text>'
            ).format(height, height, height, chance(10.0**power))
        )
    last = -1.0
    for tick in _NAMED_S:
        place = x.at(tick)
        # A name takes up to a seventh of the width of a chart on a telephone.
        if not x.low <= tick <= x.high or place - last < 0.16:
            continue
        last = place
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="0" y2="100%"/>'
                '<text class="middle" x="{}" y="100%" dy="17">{}</text>'
            ).format(_percent(place), _percent(place), _percent(place), seconds(tick))
        )
    parts.append(
        Markup('<text class="end axis" x="100%" y="100%" dy="34">expected delay after a crash</text>')
    )
    return parts


def _target(y: LogScale, target: float) -> Markup:
    height = _percent(1 - y.at(target))
    return Markup(
        '<line class="target" x1="0" x2="100%" y1="{}" y2="{}"/>'
        '<text class="start" x="0" y="{}" dx="6" dy="-5">target {}</text>'
    ).format(height, height, height, chance(target))


def _curve(places: Sequence[Place], x: LogScale, y: LogScale) -> Markup:
    points = [
        f"{x.at(place.recovery_s) * _UNITS:.0f} {(1 - y.at(place.chance)) * _UNITS:.0f}" for place in places
    ]
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" width="100%" height="100%">'
        '<path class="line dilemma" d="M{}"/></svg>'
    ).format(_UNITS, _UNITS, "L".join(points))


def _dot(x: LogScale, y: LogScale, place: Place) -> Markup:
    return Markup('<circle class="candidate" r="2.5" cx="{}" cy="{}"><title>{}</title></circle>').format(
        _percent(x.at(place.recovery_s)), _percent(1 - y.at(place.chance)), _told(place)
    )


def _marked(
    x: LogScale, y: LogScale, places: Sequence[Place], timeout_s: float, kind: str, row: int
) -> Markup:
    place = _between(places, timeout_s)
    across = x.at(place.recovery_s)
    left, height = _percent(across), _percent(1 - y.at(place.chance))
    # Names stand above the chart, each in a row of its own, so that they never meet.
    return Markup(
        '<line class="mark {}" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<text class="{} {}" x="{}" y="{}" dx="{}">{} {}</text>'
        '<circle class="point {}" r="5.5" cx="{}" cy="{}"><title>{}</title></circle>'
    ).format(
        kind,
        left,
        left,
        -18 if row else -2,
        height,
        "end" if across > 0.5 else "start",
        kind,
        left,
        -24 if row else -8,
        4 if across > 0.5 else -1,
        kind,
        seconds(timeout_s),
        kind,
        left,
        height,
        _told(place),
    )


def _between(places: Sequence[Place], timeout_s: float) -> Place:
    """Where a timeout stands that may be no candidate: on the line between its neighbours."""
    below = [place for place in places if place.timeout_s <= timeout_s]
    above = [place for place in places if place.timeout_s >= timeout_s]
    if not below or not above or below[-1].timeout_s == above[0].timeout_s:
        return (below[-1:] or above[:1])[0]._replace(timeout_s=timeout_s)
    low, high = below[-1], above[0]
    part = (
        math.log(timeout_s / low.timeout_s) / math.log(high.timeout_s / low.timeout_s)
        if low.timeout_s > 0
        else 0.5
    )
    return Place(
        timeout_s,
        _mixed(low.recovery_s, high.recovery_s, part),
        _mixed(low.chance, high.chance, part),
    )


def _mixed(first: float, second: float, part: float) -> float:
    if first <= 0 or second <= 0:
        return first + (second - first) * part
    return math.exp(math.log(first) + (math.log(second) - math.log(first)) * part)


def _told(place: Place) -> str:
    return (
        f"{seconds(place.timeout_s)}: {chance(place.chance)} duplicates, {seconds(place.recovery_s)} of delay"
    )


def _percent(part: float) -> str:
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"
