"""The two curves of a queue: how long the work takes, and what each timeout would mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from veil.core.findings import NO_RENEWAL, Candidate, CurvePoint, Finding
from veil.pipeline import words
from veil.pipeline.report.drawing import (
    LogScale,
    axes,
    band,
    chance_scale,
    chart,
    flag,
    line,
    percent,
    stretched,
    time_scale,
)
from veil.pipeline.report.markup import Child, Markup, el, join
from veil.pipeline.report.verdict import policy_words, with_policy, worth_showing


def survival_chart(finding: Finding, target: float) -> Markup | None:
    """The chance that work takes longer than a time, with its confidence band, and the two timeouts."""
    curve = [point for point in finding.curve if point.after_s > 0]
    if not curve:
        return None
    timeouts = [each for each in (finding.present_timeout_s, finding.recommended_timeout_s) if each]
    # The long level stretch before the first tenth of a per cent has finished says nothing.
    begins = next((point.after_s for point in curve if point.survival < 0.999), curve[0].after_s)
    x = time_scale([begins, curve[-1].after_s, *timeouts])
    y = chance_scale([1.0], target)
    last = curve[-1]
    label = (
        f"Survival curve of {finding.queue}: the chance that the work takes longer than a time falls from 100 % to "
        f"{words.chance(last.survival)} after {words.length(last.after_s)}."
    )
    return chart(
        "curve",
        label,
        axes(x, y, "time since the receive"),
        _target_line(y, target),
        stretched(
            el("path", d=band(_band_points(curve, x, y)), class_="band"),
            el("path", d=line(_curve_points(curve, x, y), step=True), class_="line"),
        ),
        *_flags(finding, x),
    )


def _curve_points(curve: Sequence[CurvePoint], x: LogScale, y: LogScale) -> list[tuple[float, float]]:
    return _thinned([(0.0, 1.0), *((x.at(point.after_s), y.at(point.survival)) for point in curve)])


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without points that lie at the edge or would not be told apart from the one before."""
    kept = points[:1]
    for point in points[1:]:
        if point[0] > 0 and (abs(point[0] - kept[-1][0]) > 0.001 or abs(point[1] - kept[-1][1]) > 0.001):
            kept.append(point)
    return kept


def _band_points(curve: Sequence[CurvePoint], x: LogScale, y: LogScale) -> list[tuple[float, float, float]]:
    before = [point for point in curve if x.at(point.after_s) <= 0]
    start = (0.0, y.at(before[-1].low), y.at(before[-1].high)) if before else (0.0, 1.0, 1.0)
    inside = curve[len(before) :]
    return [start, *((x.at(point.after_s), y.at(point.low), y.at(point.high)) for point in inside)]


def _target_line(y: LogScale, target: float) -> Markup:
    height = percent(1 - y.at(target))
    return join(
        [
            el("line", x1="0", x2="100%", y1=height, y2=height, class_="target"),
            el(
                "text",
                f"target {words.chance(target)}",
                x="0",
                y=height,
                dx="6",
                dy="-5",
                class_="start note",
            ),
        ]
    )


def _flags(finding: Finding, x: LogScale) -> list[Child]:
    flags: list[Child] = []
    if finding.present_timeout_s:
        name = f"present {words.length(finding.present_timeout_s)}"
        flags.append(flag(x.at(finding.present_timeout_s), 1, name, "present"))
    if finding.recommended_timeout_s:
        name = f"recommended {words.length(finding.recommended_timeout_s)}"
        flags.append(flag(x.at(finding.recommended_timeout_s), 0, name, "recommended"))
    return flags


def dilemma_chart(finding: Finding, target: float) -> Markup | None:
    """Each candidate as the chance of a duplicate against the delay after a crash, a line for each renewal policy."""
    shown = worth_showing(finding)
    lines = {policy: _places(shown, policy) for policy in policies_of(finding)}
    every = [place for places in lines.values() for place in places]
    if not every:
        return None
    x = time_scale(recovery for _, recovery, _ in every)
    y = chance_scale([chance for _, _, chance in every], target)
    drawn: list[Child] = []
    dots: list[Child] = []
    for number, (policy, places) in enumerate(lines.items()):
        path = line([(x.at(recovery), y.at(chance)) for _, recovery, chance in places])
        drawn.append(el("path", d=path, class_=f"line policy{min(number, 4)}"))
        if policy == NO_RENEWAL:
            dots += [_dot(x, y, place) for place in places]
    label = (
        f"Dilemma curve of {finding.queue}: from {_told(every[0])} to {_told(lines[next(iter(lines))][-1])}, "
        "over the timeouts it could have."
    )
    marks = [
        _marked(x, y, lines.get(NO_RENEWAL, []), finding.present_timeout_s, "present"),
        _marked(x, y, lines.get(finding.policy, []), finding.recommended_timeout_s, "recommended"),
    ]
    return chart(
        "curve",
        label,
        axes(x, y, "expected delay after a crash"),
        _target_line(y, target),
        stretched(*drawn),
        *dots,
        *marks,
    )


def policies_of(finding: Finding) -> list[str]:
    """The policies that the candidates were judged under, no renewal first."""
    seen = dict.fromkeys(each.policy for candidate in finding.candidates for each in candidate.policies)
    return sorted(seen, key=lambda policy: policy != NO_RENEWAL)


def dilemma_legend(finding: Finding) -> Markup | None:
    """Which line is which, where there is more than one."""
    policies = policies_of(finding)
    if len(policies) < 2:
        return None
    entries = []
    for number, policy in enumerate(policies):
        swatch = el("line", x1="0", x2="100%", y1="50%", y2="50%", class_=f"line policy{min(number, 4)}")
        drawn = el("svg", swatch, width="22", height="8", aria_hidden="true")
        entries.append(el("li", drawn, policy_words(policy)))
    return el("ul", *entries, class_="legend")


Place = tuple[float, float, float]  # timeout, recovery delay, chance of a duplicate


def _places(candidates: Sequence[Candidate], policy: str) -> list[Place]:
    found = ((candidate.timeout_s, with_policy(candidate, policy)) for candidate in candidates)
    return [
        (float(timeout_s), meant.recovery_s, meant.duplicate_chance)
        for timeout_s, meant in sorted(found, key=lambda each: each[0])
        if meant is not None and meant.recovery_s > 0
    ]


def _told(place: Place) -> str:
    timeout_s, recovery_s, chance = place
    return (
        f"{words.length(timeout_s)}: {words.chance(chance)} duplicates, {words.length(recovery_s)} of delay"
    )


def _dot(x: LogScale, y: LogScale, place: Place) -> Markup:
    _, recovery_s, chance = place
    centre = {"cx": percent(x.at(recovery_s)), "cy": percent(1 - y.at(chance))}
    return el("circle", el("title", _told(place)), r="2.5", class_="dot", **centre)


def _marked(
    x: LogScale, y: LogScale, places: Sequence[Place], timeout_s: float | None, class_: str
) -> Markup | None:
    if not timeout_s or not places:
        return None
    place = _between(places, timeout_s)
    across, up = x.at(place[1]), y.at(place[2])
    # Names stand above the chart, in the rows that they have in the other curve, so that they never meet.
    name = f"{class_} {words.length(timeout_s)}"
    side = "end" if across > 0.5 else "start"
    row = -24 if class_ == "present" else -8
    left, height = percent(across), percent(1 - up)
    return join(
        [
            el(
                "line",
                x1=left,
                x2=left,
                y1=str(row + 6 if row < -8 else 0),
                y2=height,
                class_=f"mark {class_}",
            ),
            el(
                "text", name, x=left, y=str(row), dx="4" if side == "end" else "-1", class_=f"{side} {class_}"
            ),
            el("circle", el("title", _told(place)), cx=left, cy=height, r="5.5", class_=f"point {class_}"),
        ]
    )


def _between(places: Sequence[Place], timeout_s: float) -> Place:
    """Where a timeout stands that may be no candidate: on the line between its neighbours."""
    below = [place for place in places if place[0] <= timeout_s]
    above = [place for place in places if place[0] >= timeout_s]
    if not below or not above or below[-1][0] == above[0][0]:
        _, recovery_s, chance = (below[-1:] or above[:1])[0]
        return timeout_s, recovery_s, chance
    (low, low_delay, low_chance), (high, high_delay, high_chance) = below[-1], above[0]
    part = math.log(timeout_s / low) / math.log(high / low) if low > 0 else 0.5

    def mixed(first: float, second: float) -> float:
        if first <= 0 or second <= 0:
            return first + (second - first) * part
        return math.exp(math.log(first) + (math.log(second) - math.log(first)) * part)

    return timeout_s, mixed(low_delay, high_delay), mixed(low_chance, high_chance)


def sparkline(finding: Finding, target: float) -> Markup | None:
    """The survival curve without anything around it, for a cell of a table."""
    curve = [point for point in finding.curve if point.after_s > 0]
    if not curve:
        return None
    x, y = time_scale([curve[0].after_s, curve[-1].after_s]), chance_scale([1.0], target)
    path = el("path", d=line(_curve_points(curve, x, y), step=True), class_="line")
    return el(
        "div", el("svg", stretched(path), width="100%", height="100%", aria_hidden="true"), class_="spark"
    )
