"""The timeouts that queues should have, as the pipeline found them: judged against the queue as it is, drawn, and applied
through the same difference as an edit."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

from veil import charts, words
from veil.console.audit import AuditEntry
from veil.console.changes import Change, Difference, change, queue_command
from veil.console.visit import Visit
from veil.console.web import NotFound, Refused, Role, link, page
from veil.core import autopilot
from veil.core.autopilot import AutopilotState, PilotedQueue, StateUnreadable, decode_state
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
from veil.core.queue import Queue, QueueKey
from veil.service.queues import change_settings
from veil.wire.exchange import Response
from veil.words import exact_length

if TYPE_CHECKING:
    from veil.console.app import Console

# ---- findings

_BYTES_MAX: Final = 64 << 20
UNKNOWN: Final = "not enough evidence"


class FindingsRead(NamedTuple):
    """The file as it was read: its findings, or why there are none."""

    findings: Findings | None
    place: Path | None  # where it is looked for; None: the server keeps nothing on disk
    problem: str = ""

    @property
    def options(self) -> str:
        """The options by which the pipeline's commands find this place."""
        assert self.place is not None
        place = self.place.absolute()
        option, of = ("--data", place.parent) if place.name == "tables" else ("--tables", place)
        return shlex.join([option, str(of)])


async def read_findings(console: Console) -> FindingsRead:
    """The findings; the file is read again when it has changed."""
    if console.tables is None:
        return FindingsRead(None, None)
    path = console.tables / FILE
    try:
        stat = await asyncio.to_thread(path.stat)
    except OSError:
        return FindingsRead(None, console.tables)
    mark = (stat.st_mtime_ns, stat.st_size)
    if console.findings_read is None or console.findings_read[0] != mark:
        console.findings_read = mark, await asyncio.to_thread(_read, path)
    found: FindingsRead = console.findings_read[1]
    return found


def _read(path: Path) -> FindingsRead:
    try:
        return FindingsRead(decode(_content(path)), path.parent)
    except (FindingsUnreadable, OSError) as problem:
        return FindingsRead(None, path.parent, str(problem))


async def read_autopilot(console: Console) -> AutopilotState | None:
    """What the autopilot remembers; None where there is none."""
    if console.tables is None:
        return None
    try:
        return decode_state(await asyncio.to_thread(_content, console.tables / autopilot.FILE))
    except (OSError, StateUnreadable):
        return None


def _content(path: Path) -> bytes:
    if path.stat().st_size > _BYTES_MAX:
        raise OSError(f"{path.name} is larger than {_BYTES_MAX >> 20} MiB")
    return path.read_bytes()


def verdict(finding: Finding, present_s: float | None = None, pilot: PilotedQueue | None = None) -> str:
    """What to think of the timeout: too short, too long, right, or that nobody knows."""
    judged = None if pilot is None or pilot.seen_s != present_s else pilot.last
    if judged is not None and judged.code == autopilot.RIGHT:
        return RIGHT  # by its cost, which says more than how far it is from the recommended one
    said = finding.verdict(present_s or None)
    return said if said in (TOO_SHORT, TOO_LONG, RIGHT) and finding.certainty != NOT_ENOUGH else UNKNOWN


def why_not(finding: Finding, queue: Queue | None) -> str | None:
    """Why the recommendation cannot be applied to the queue; None: it can."""
    now_s = None if queue is None else queue.settings.visibility_s
    if now_s is not None and now_s == finding.recommended_timeout_s:
        return "The queue already has this timeout."
    reason = finding.why_not(now_s)
    return None if reason is None else words.sentence(reason)


def dilemma(finding: Finding, target: float, now_s: float | None) -> Markup | None:
    """The curve, with the queue's timeout as it is now and the recommended one on it; None where there is none."""
    return charts.dilemma_chart(finding, target, {_policy(finding): "line dilemma"}, "curve", now_s)


def spark(finding: Finding, target: float) -> Markup:
    """The curve alone, for a cell of a table."""
    points = _points(finding)
    if len(points) < 2:
        return Markup("")
    x = charts.time_scale(each.recovery_s for each in points)
    y = charts.chance_scale([each.chance for each in points], target)
    dots = [
        Markup('<circle class="point {}" r="3" cx="{}" cy="{}"/>').format(
            kind, charts.percent(x.at(point.recovery_s)), charts.percent(1 - y.at(point.chance))
        )
        for timeout_s, kind in (
            (finding.present_timeout_s, "present"),
            (finding.recommended_timeout_s, "recommended"),
        )
        if timeout_s and (point := charts.point_at(points, timeout_s))
    ]
    return Markup('<svg class="curve-spark" aria-hidden="true">{}{}</svg>').format(
        charts.stretched((charts.timeout_curve(points, x, y), "line dilemma")), Markup("").join(dots)
    )


def point_of(finding: Finding, timeout_s: float | None) -> charts.TimeoutPoint | None:
    """What a timeout would mean, also one between the candidates."""
    points = _points(finding)
    return charts.point_at(points, timeout_s) if timeout_s and points else None


def _policy(finding: Finding) -> str:
    known = any(means.policy == finding.policy for each in finding.candidates for means in each.policies)
    return finding.policy if known else NO_RENEWAL


def _points(finding: Finding) -> list[charts.TimeoutPoint]:
    return charts.timeout_points(finding.candidates, _policy(finding))


# ---- pages

PAGE_ROWS: Final = 100
TYPES_MAX: Final = 50  # message types on the page of a queue
DECISIONS_MAX: Final = 20
_OLD_MS: Final = 30 * 86_400_000
# The dearest first, each with the class of its chip.
_CHIPS: Final = {TOO_SHORT: "failed", TOO_LONG: "delayed", RIGHT: "done", UNKNOWN: ""}


class JudgedFinding(NamedTuple):
    """A finding about a whole queue, beside the queue as it is now."""

    finding: Finding
    queue: Queue | None
    verdict: str
    pilot: PilotedQueue | None


class NotApplied(Refused, status=409):
    """The recommendation does not fit the queue as it is."""


@page("/timeouts")
async def timeouts_page(visit: Visit) -> Response:
    read = await read_findings(visit.console)
    if read.findings is None:
        return await visit.page("timeouts_none.html", title="Timeouts", read=read, file=FILE)
    queues = {queue.key: queue for queue in await visit.service.store.all_queues()}
    pilot = await read_autopilot(visit.console)
    judged = []
    for finding in _whole(visit, read.findings):
        queue, own = queues.get(finding.key), _pilot_of(pilot, finding.key)
        present_s = None if queue is None else float(queue.settings.visibility_s)
        judged.append(JudgedFinding(finding, queue, verdict(finding, present_s, own), own))
    judged.sort(
        key=lambda each: (-each.finding.past_cost_s, [*_CHIPS].index(each.verdict), each.finding.queue)
    )
    shown, pager = visit.paged(judged, PAGE_ROWS)
    return await visit.page(
        "timeouts.html",
        title="Timeouts",
        rows=shown,
        types=Counter(each.key for each in read.findings.findings if each.message_type is not None),
        spark=spark,
        pager=pager,
        pilot_problem=None if pilot is None else pilot.problem,
        **_about(visit, read.findings),
    )


@page("/timeouts/{region}/{name}")
async def timeout_page(visit: Visit) -> Response:
    key = QueueKey(visit.parts["region"], visit.identity.account, visit.parts["name"])
    read = await read_findings(visit.console)
    if read.findings is None:
        return await visit.page("timeouts_none.html", title="Timeouts", read=read, file=FILE)
    own = [each for each in read.findings.findings if each.key == key]
    if not own:
        raise NotFound(f"The pipeline has no findings about queue {key.name[:100]} in {key.region[:50]}.")
    queue = await visit.service.store.find_queue(key)
    finding = next((each for each in own if each.message_type is None), own[0])
    pilot = _pilot_of(await read_autopilot(visit.console), key)
    return await visit.page(
        "timeout.html",
        title=f"Timeout of {key.name}",
        key=key,
        queue=queue,
        finding=finding,
        types=[each for each in own if each is not finding],
        types_max=TYPES_MAX,
        verdict=verdict,
        dilemma=dilemma,
        point_of=point_of,
        why_not=why_not(finding, queue),
        pilot=pilot,
        decisions=[] if pilot is None else await _decisions(visit, key.name),
        address=link("timeouts", key.region, key.name),
        **_about(visit, read.findings),
    )


@change("/timeouts/{region}/{name}/apply", needs=Role.ADMIN)
async def apply(visit: Visit) -> Change:
    queue = await visit.queue()
    read = await read_findings(visit.console)
    finding = next((each for each in _whole(visit, read.findings) if each.key == queue.key), None)
    if finding is None:
        raise NotFound(f"The pipeline has no findings about queue {queue.name}.")
    problem = why_not(finding, queue)
    if problem is not None:
        raise NotApplied(problem)
    after_s = finding.recommended_timeout_s
    assert after_s is not None
    notes = [
        finding.reason,
        "The new timeout applies from the next receive. Leases that are open now keep their deadlines.",
    ]
    if finding.policy != NO_RENEWAL:
        notes.append(f"It is meant for consumers that renew their leases ({finding.policy}).")
    return Change(
        action="apply timeout",
        target=queue.name,
        title=f"Apply the recommended timeout to {queue.name}",
        button="Change the queue",
        back=link("timeouts", queue.key.region, queue.name),
        make=lambda: change_settings(visit.service, queue, {"visibility_s": after_s}),
        done=f"The visibility timeout of {queue.name} is now {exact_length(after_s)}.",
        differences=[
            Difference("Visibility timeout", exact_length(queue.settings.visibility_s), exact_length(after_s))
        ],
        commands=[
            queue_command(
                visit, "set-queue-attributes", queue, Attributes={"VisibilityTimeout": str(after_s)}
            )
        ],
        notes=notes,
    )


def _whole(visit: Visit, findings: Findings | None) -> list[Finding]:
    found = () if findings is None else findings.findings
    return [each for each in found if each.message_type is None and each.account == visit.identity.account]


def _pilot_of(pilot: AutopilotState | None, key: QueueKey) -> PilotedQueue | None:
    """What the autopilot remembers of a queue. It looks after the queues of one region and account, and knows them by name."""
    if pilot is None or (pilot.region, pilot.account) != (key.region, key.account):
        return None
    return pilot.queues.get(key.name)


async def _decisions(visit: Visit, queue: str) -> list[AuditEntry]:
    """The autopilot's latest about a queue, as the audit log has them."""
    found = await visit.console.audit.page(visit.identity.account, search=f'"target":"{queue}"')
    return [each for each in found.entries if each.who == "autopilot"][:DECISIONS_MAX]


def _about(visit: Visit, findings: Findings) -> dict[str, Any]:
    made_ms = words.wall_ms(findings.made_at)
    return {
        "made_ms": made_ms,
        "is_old": made_ms is not None and visit.wall_ms - made_ms > _OLD_MS,
        "target": findings.target_duplicates,
        "policy": findings.policy,
        "no_renewal": NO_RENEWAL,
        "chips": _CHIPS,
    }
