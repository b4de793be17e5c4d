"""What the pipeline found about timeouts: read from its file, judged against the queue as it is, and drawn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from veil.charts import (
    TimeoutPoint,
    chance_scale,
    dilemma_chart,
    percent,
    point_at,
    stretched,
    time_scale,
    timeout_curve,
    timeout_points,
)
from veil.console.templates import length
from veil.core import autopilot
from veil.core.autopilot import AutopilotState, QueueState, StateUnreadable, decode_state
from veil.core.findings import (
    FILE,
    NO_RENEWAL,
    NOT_ENOUGH,
    RIGHT,
    TOO_LONG,
    TOO_SHORT,
    Finding,
    Findings,
    FindingsUnreadable,
    decode,
)
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.queue import Queue

if TYPE_CHECKING:
    from veil.console.app import Console

_BYTES_MAX: Final = 64 << 20
UNKNOWN: Final = "not enough evidence"


@dataclass(frozen=True, slots=True)
class FindingsRead:
    """The file as it was read: its findings, or why there are none."""

    findings: Findings | None
    place: str | None  # where it is looked for; None: the server keeps nothing on disk
    problem: str = ""


async def read_findings(console: Console) -> FindingsRead:
    """The findings; the file is read again when it has changed."""
    if console.tables is None:
        return FindingsRead(None, None)
    path = console.tables / FILE
    try:
        stat = await asyncio.to_thread(path.stat)
    except OSError:
        return FindingsRead(None, str(console.tables))
    mark = (stat.st_mtime_ns, stat.st_size)
    kept = console.findings_read
    if kept is None or kept[0] != mark:
        kept = console.findings_read = mark, await asyncio.to_thread(_read, path, stat.st_size)
    return kept[1]


async def read_autopilot(console: Console) -> AutopilotState | None:
    """What the autopilot remembers; None where there is none."""
    return None if console.tables is None else await asyncio.to_thread(_read_state, console.tables)


def _read_state(tables: Path) -> AutopilotState | None:
    path = tables / autopilot.FILE
    try:
        return decode_state(path.read_bytes()) if path.stat().st_size <= _BYTES_MAX else None
    except (OSError, StateUnreadable):
        return None


def _read(path: Path, size: int) -> FindingsRead:
    place = str(path.parent)
    if size > _BYTES_MAX:
        return FindingsRead(None, place, f"{FILE} is larger than {_BYTES_MAX >> 20} MiB")
    try:
        return FindingsRead(decode(path.read_bytes()), place)
    except (FindingsUnreadable, OSError) as problem:
        return FindingsRead(None, place, str(problem))


def verdict(finding: Finding, present_s: float | None = None, pilot: QueueState | None = None) -> str:
    """What to think of the timeout: too short, too long, right, or that nobody knows."""
    judged = None if pilot is None or pilot.seen_s != present_s else pilot.last
    if judged is not None and judged.code == autopilot.RIGHT:
        return RIGHT  # by its cost, which says more than how far it is from the recommended one
    said = finding.verdict(present_s or None)
    return said if said in (TOO_SHORT, TOO_LONG, RIGHT) and finding.certainty != NOT_ENOUGH else UNKNOWN


def why_not(finding: Finding, queue: Queue | None) -> str | None:
    """Why the recommendation cannot be applied to the queue; None: it can."""
    after_s = finding.recommended_timeout_s
    if after_s is None or finding.certainty == NOT_ENOUGH:
        return f"There is not enough evidence yet: {finding.missing or finding.reason}."
    if not 0 <= after_s <= VISIBILITY_MAX_S:
        return f"The recommended timeout is {after_s:,} s: expected 0 to {VISIBILITY_MAX_S:,}."
    if queue is None:
        return "This queue no longer exists."
    now_s, analysed_s = queue.settings.visibility_s, finding.present_timeout_s
    if now_s == after_s:
        return "The queue has this timeout already."
    if analysed_s is not None and round(analysed_s) != now_s:
        return (
            f"The leases that were analysed began with {length(analysed_s)}, and the queue's timeout is {length(now_s)}: "
            "either it was changed since (run the pipeline again), or its consumers set a timeout of their own."
        )
    return None


def dilemma(finding: Finding, target: float, now_s: float | None) -> Markup | None:
    """The curve, with the queue's timeout as it is now and the recommended one on it; None where there is none."""
    return dilemma_chart(finding, target, {_policy(finding): "line dilemma"}, "curve", now_s)


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
        stretched((timeout_curve(points, x, y), "line dilemma")),
        Markup("").join(dots),
    )


def point_of(finding: Finding, timeout_s: float | None) -> TimeoutPoint | None:
    """What a timeout would mean, also one between the candidates."""
    points = _points(finding)
    return point_at(points, timeout_s) if timeout_s and points else None


def _policy(finding: Finding) -> str:
    known = any(means.policy == finding.policy for each in finding.candidates for means in each.policies)
    return finding.policy if known else NO_RENEWAL


def _points(finding: Finding) -> list[TimeoutPoint]:
    return timeout_points(finding.candidates, _policy(finding))
