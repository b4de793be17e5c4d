"""The charts of one queue: how long the work takes, what each timeout would mean, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from markupsafe import Markup

from veil import words
from veil.charts import (
    UNITS,
    LogScale,
    axes,
    band,
    chance_scale,
    flag,
    frame,
    line,
    point_at,
    stretched,
    target_line,
    time_scale,
    timeout_curve,
    timeout_dot,
    timeout_mark,
    timeout_points,
)
from veil.core.findings import NO_RENEWAL, CurvePoint, Finding
from veil.pipeline.report.overview import SERIES, Timeline
from veil.pipeline.report.summary import worth_showing

_TROUBLES_NAMED: Final = 3
_STRIP_NAMES: Final = {each: each for each in SERIES} | {"dead_lettered": "dead letters"}


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
    flags = [
        flag(x.at(timeout_s), f"{kind} {words.length(timeout_s)}", kind, row=row)
        for kind, timeout_s, row in (
            ("present", finding.present_timeout_s, 1),
            ("recommended", finding.recommended_timeout_s, 0),
        )
        if timeout_s
    ]
    drawn = stretched(
        (band(_band_points(curve, x, y)), "band"), (line(_curve_points(curve, x, y), step=True), "line")
    )
    return frame(
        "plot curve", label, axes(x, y, "time since the receive"), target_line(y, target), drawn, *flags
    )


def sparkline(finding: Finding, target: float) -> Markup | None:
    """The survival curve without anything around it, for a cell of a table."""
    curve = [point for point in finding.curve if point.after_s > 0]
    if not curve:
        return None
    x, y = time_scale([curve[0].after_s, curve[-1].after_s]), chance_scale([1.0], target)
    path = line(_curve_points(curve, x, y), step=True)
    return Markup(
        '<div class="spark"><svg width="100%" height="100%" aria-hidden="true">{}</svg></div>'
    ).format(stretched((path, "line")))


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


def policies_of(finding: Finding) -> list[str]:
    """The policies that the candidates were judged under, no renewal first."""
    seen = dict.fromkeys(each.policy for candidate in finding.candidates for each in candidate.policies)
    return sorted(seen, key=lambda policy: policy != NO_RENEWAL)


def dilemma_chart(finding: Finding, target: float) -> Markup | None:
    """Each candidate as the chance of a duplicate against the delay after a crash, a line for each renewal policy."""
    shown = worth_showing(finding)
    curves = {policy: timeout_points(shown, policy) for policy in policies_of(finding)}
    every = [point for points in curves.values() for point in points]
    if not every:
        return None
    x = time_scale(point.recovery_s for point in every)
    y = chance_scale([point.chance for point in every], target)
    paths = enumerate(timeout_curve(points, x, y) for points in curves.values())
    drawn = stretched(*((path, f"line policy{min(at, 4)}") for at, path in paths))
    plain = curves.get(NO_RENEWAL, [])
    marks = [
        timeout_mark(x, y, point_at(points, timeout_s), kind)
        for kind, points, timeout_s in (
            ("present", plain, finding.present_timeout_s),
            ("recommended", curves.get(finding.policy, []), finding.recommended_timeout_s),
        )
        if timeout_s and points
    ]
    last = curves[next(iter(curves))][-1]
    label = f"Dilemma curve of {finding.queue}: from {every[0]} to {last}, over the timeouts it could have."
    dots = [timeout_dot(x, y, point) for point in plain]
    return frame(
        "plot curve",
        label,
        axes(x, y, "expected delay after a crash"),
        target_line(y, target),
        drawn,
        *dots,
        *marks,
    )


class Strip(NamedTuple):
    """The bars of one thing that is counted, on a scale of their own."""

    series: str
    name: str
    total: int
    peak: int
    path: str


class Strips(NamedTuple):
    """A timeline: its strips over the same hours, the names of its axis (place, text, anchor), a remark below, and where the
    server itself was in trouble, in the frame of the bars and in words."""

    rows: list[Strip]
    axis: list[tuple[str, str, str]]
    slot: str
    slot_in_full: str
    remark: str
    shades: str = ""
    troubles: str = ""


def strips(timeline: Timeline) -> Strips:
    """The timeline; what never happened is said below it instead of drawn."""
    rows, never = [], []
    for series in SERIES:
        counts, name = timeline.counts.get(series, ()), _STRIP_NAMES[series]
        if any(counts):
            rows.append(Strip(series, name, sum(counts), max(counts), _bars(counts)))
        else:
            never.append(name)
    counted = "Each event counts in the hour in which its message was sent. " if timeline.by_send else ""
    none = ", ".join(never[:-1]) + (" or " if never[1:] else "") + "".join(never[-1:])
    slots = max(len(counts) for counts in timeline.counts.values())
    remark = f"{counted}{none and f'No {none}.'}"
    axis, (slot, slot_in_full) = _axis(timeline, slots), _slot_names(timeline.slot)
    return Strips(rows, axis, slot, slot_in_full, remark, _shades(timeline, slots), _troubles(timeline))


def _shades(timeline: Timeline, slots: int) -> str:
    begin_ms, whole_ms = timeline.begin.timestamp() * 1000, timeline.slot.total_seconds() * 1000 * slots
    path = []
    for trouble in timeline.troubles:
        left, right = (
            min(max((at_ms - begin_ms) / whole_ms, 0.0), 1.0) * UNITS
            for at_ms in (trouble.from_ms, trouble.to_ms)
        )
        # A second in a week is still there.
        path.append(f"M{left:.1f} 0H{max(right, left + 3):.1f}V{UNITS}H{left:.1f}Z")
    return "".join(path)


def _troubles(timeline: Timeline) -> str:
    if not timeline.troubles:
        return ""
    longest = sorted(timeline.troubles, key=lambda each: -each.length_s)[:_TROUBLES_NAMED]
    instants = [datetime.fromtimestamp(each.from_ms // 1000, UTC) for each in sorted(longest)]
    named = "; ".join(
        f"{words.instant(at)} {words.trouble(each.kind, each.length_s)}"
        for at, each in zip(instants, sorted(longest), strict=True)
    )
    times = words.plural(len(timeline.troubles), "time")
    which = "" if len(longest) == len(timeline.troubles) else "the longest: "
    return f"the server itself was in trouble, {times} ({which}{named}). No lease lapsed by that."


def _bars(counts: Sequence[int]) -> str:
    width, peak = UNITS / len(counts), max(counts)
    gap = width * 0.18 if len(counts) <= 200 else 0
    path = []
    for number, count in enumerate(counts):
        if count > 0:
            # What happened once must be seen beside a thousand.
            height = max(UNITS * count / peak, 60)
            left = number * width + gap / 2
            path.append(f"M{left:.1f} {UNITS}V{UNITS - height:.0f}H{left + width - gap:.1f}V{UNITS}Z")
    return "".join(path)


def _axis(timeline: Timeline, slots: int) -> list[tuple[str, str, str]]:
    whole = timeline.slot * slots
    form = "%H:%M:%S"
    for longer_than, longer in (
        (timedelta(minutes=10), "%H:%M"),
        (timedelta(hours=12), "%-d %b %H:%M"),
        (timedelta(days=3), "%-d %b"),
    ):
        form = longer if whole > longer_than else form
    marks = [("0%", 0, "start"), ("100%", slots, "end")]
    if slots >= 4:
        marks.insert(1, (f"{slots // 2 / slots * 100:.2f}%", slots // 2, "middle"))
    return [
        (left, (timeline.begin + timeline.slot * slot).strftime(form), anchor) for left, slot, anchor in marks
    ]


def _slot_names(slot: timedelta) -> tuple[str, str]:
    """A slot as the lower half of a rate, in short and in full: h and hour; 10 min."""
    seconds = round(slot.total_seconds())
    named = {
        1: ("s", "second"),
        60: ("min", "minute"),
        3600: ("h", "hour"),
        86_400: ("day", "day"),
        604_800: ("week", "week"),
    }
    return named.get(seconds) or (words.length(seconds), words.length(seconds))
