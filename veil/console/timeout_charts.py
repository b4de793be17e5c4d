"""The dilemma of a timeout, drawn for the console: the chance of a duplicate against the delay after a crash."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from veil.charts import (
    TimeoutPoint,
    axes,
    chance_scale,
    frame,
    percent,
    point_at,
    stretched,
    target_line,
    time_scale,
    timeout_curve,
    timeout_dot,
    timeout_mark,
    timeout_points,
)
from veil.core.findings import NO_RENEWAL, Finding

_CANDIDATES_BEYOND: Final = 4


def dilemma(finding: Finding, target: float, now_s: float | None) -> Markup | None:
    """The curve, with the queue's timeout as it is now and the recommended one on it; None where there is none."""
    points = _points(finding)
    if len(points) < 2:
        return None
    present_s = now_s if now_s is not None else finding.present_timeout_s
    marked = [each for each in (present_s, finding.recommended_timeout_s) if each]
    near = [each for each in points if not marked or each.timeout_s <= max(marked) * _CANDIDATES_BEYOND]
    shown = near if len(near) >= 3 else points
    x = time_scale(each.recovery_s for each in shown)
    y = chance_scale([each.chance for each in shown], target)
    marks = [
        timeout_mark(x, y, point_at(shown, timeout_s), kind)
        for timeout_s, kind in ((present_s, "present"), (finding.recommended_timeout_s, "recommended"))
        if timeout_s
    ]
    label = (
        f"Duplicates against the delay after a crash: from {shown[0]} to {shown[-1]}, "
        "over the timeouts that the queue could have."
    )
    return frame(
        "curve",
        label,
        axes(x, y, "expected delay after a crash"),
        target_line(y, target),
        stretched((timeout_curve(shown, x, y), "line dilemma")),
        *(timeout_dot(x, y, point) for point in shown),
        *marks,
    )


def spark(finding: Finding, target: float) -> Markup:
    """The curve alone, for a cell of a table."""
    points = _points(finding)
    if len(points) < 2:
        return Markup("")
    x = time_scale(each.recovery_s for each in points)
    y = chance_scale([each.chance for each in points], target)
    dots = [
        Markup('<circle class="point {}" r="3" cx="{}" cy="{}"/>').format(
            kind, percent(x.at(point.recovery_s)), percent(1 - y.at(point.chance))
        )
        for timeout_s, kind in (
            (finding.present_timeout_s, "present"),
            (finding.recommended_timeout_s, "recommended"),
        )
        if timeout_s and (point := point_at(points, timeout_s))
    ]
    return Markup('<svg class="curve-spark" aria-hidden="true">{}{}</svg>').format(
        stretched((timeout_curve(points, x, y), "line dilemma")), Markup("").join(dots)
    )


def point_of(finding: Finding, timeout_s: float | None) -> TimeoutPoint | None:
    """What a timeout would mean, also one between the candidates."""
    points = _points(finding)
    return point_at(points, timeout_s) if timeout_s and points else None


def _points(finding: Finding) -> list[TimeoutPoint]:
    own = timeout_points(finding.candidates, finding.policy)
    return own or timeout_points(finding.candidates, NO_RENEWAL)
