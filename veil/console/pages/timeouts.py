"""The timeouts that queues should have, as the pipeline found them: judged against the queue as it is, drawn, and applied
through the same difference as an edit."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

from veil import charts, words
from veil.console.audit import AuditEntry
from veil.console.changes import Change, Difference, queue_command
from veil.console.templates import length
from veil.console.visit import Visit
from veil.console.web import NotFound, Refused, Role, change, link, page
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
from veil.core.queue import Queue, QueueKey
from veil.service.queues import change_settings
from veil.wire.exchange import Response

if TYPE_CHECKING:
    from veil.console.app import Console

# ---- findings

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
    found: FindingsRead = kept[1]
    return found


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
_CHIPS: Final = {TOO_SHORT: "failed", TOO_LONG: "delayed", RIGHT: "done", UNKNOWN: ""}
_ORDER: Final = (TOO_SHORT, TOO_LONG, RIGHT, UNKNOWN)


class Section(NamedTuple):
    """A queue, or one type of its messages, on its page."""

    finding: Finding
    verdict: str
    chip: str
    chart: Markup | None
    at_present: charts.TimeoutPoint | None
    at_recommended: charts.TimeoutPoint | None


class NotApplied(Refused):
    """The recommendation does not fit the queue as it is."""

    status = 409


@page("/timeouts")
async def timeouts_page(visit: Visit) -> Response:
    """All queues, the dearest timeout first."""
    read = await read_findings(visit.console)
    if read.findings is None:
        return await visit.page("timeouts_none.html", title="Timeouts", read=read, file=FILE)
    queues = {queue.key: queue for queue in await visit.service.store.all_queues()}
    pilot = await read_autopilot(visit.console)
    judged = []
    for finding in _whole(visit, read.findings):
        queue, own = queues.get(_key(finding)), _pilot_of(visit, pilot, _key(finding))
        judged.append((finding, queue, verdict(finding, _timeout_s(queue), own), own))
    judged.sort(key=lambda each: (-each[0].past_cost_s, _ORDER.index(each[2]), each[0].queue))
    shown, pager = visit.paged(judged, PAGE_ROWS)
    sparks = []
    for finding, *_ in shown:
        sparks.append(spark(finding, read.findings.target_duplicates))
        await visit.turn.pause()
    return await visit.page(
        "timeouts.html",
        title="Timeouts",
        rows=list(zip(shown, sparks, strict=True)),
        types=Counter(_key(each) for each in read.findings.findings if each.message_type is not None),
        key_of=_key,
        chips=_CHIPS,
        pager=pager,
        pilot_problem=None if pilot is None else pilot.problem,
        **_about(visit, read.findings),
    )


@page("/timeouts/{region}/{name}")
async def timeout_page(visit: Visit) -> Response:
    """One queue: its curve, the evidence, and the button."""
    key = QueueKey(visit.parts["region"], visit.identity.account, visit.parts["name"])
    read = await read_findings(visit.console)
    if read.findings is None:
        return await visit.page("timeouts_none.html", title="Timeouts", read=read, file=FILE)
    own = [each for each in read.findings.findings if _key(each) == key]
    if not own:
        raise NotFound(f"Nothing was found about queue {key.name[:100]} in {key.region[:50]}.")
    queue = await visit.service.store.find_queue(key)
    finding = next((each for each in own if each.message_type is None), own[0])
    typed = [each for each in own if each is not finding]
    sections: list[Section] = []
    own_pilot = _pilot_of(visit, await read_autopilot(visit.console), key)
    for each in typed[:TYPES_MAX]:
        sections.append(_section(each, read.findings, queue))
        await visit.turn.pause()
    return await visit.page(
        "timeout.html",
        title=f"Timeout of {key.name}",
        key=key,
        queue=queue,
        section=_section(finding, read.findings, queue, own_pilot),
        types=sections,
        more_types=max(0, len(typed) - TYPES_MAX),
        why_not=why_not(finding, queue),
        pilot=own_pilot,
        decisions=[] if own_pilot is None else await _decisions(visit, key.name),
        address=link("timeouts", key.region, key.name),
        **_about(visit, read.findings),
    )


@change("/timeouts/{region}/{name}/apply", needs=Role.ADMIN)
async def apply(visit: Visit) -> Response:
    """Show what would be another, then set the recommended timeout."""
    queue = await visit.queue()
    read = await read_findings(visit.console)
    finding = next((each for each in _whole(visit, read.findings) if _key(each) == queue.key), None)
    if finding is None:
        raise NotFound(f"Nothing was found about queue {queue.name}.")
    problem = why_not(finding, queue)
    if problem is not None:
        raise NotApplied(problem)
    after_s = finding.recommended_timeout_s
    assert after_s is not None
    notes = [
        finding.reason,
        "It applies from the next receive. Leases that are open now keep their deadlines.",
    ]
    if finding.policy != NO_RENEWAL:
        notes.append(f"It is for consumers that renew: {finding.policy}.")
    return await Change(
        visit,
        action="apply timeout",
        target=queue.name,
        title=f"Apply the recommended timeout to {queue.name}",
        button="Change the queue",
        back=link("timeouts", queue.key.region, queue.name),
        make=lambda: change_settings(visit.service, queue, {"visibility_s": after_s}),
        done=f"The visibility timeout of {queue.name} is {length(after_s)} now.",
        differences=[Difference("Visibility timeout", length(queue.settings.visibility_s), length(after_s))],
        commands=[
            queue_command(
                visit, "set-queue-attributes", queue, Attributes={"VisibilityTimeout": str(after_s)}
            )
        ],
        notes=notes,
    ).offer()


def _whole(visit: Visit, findings: Findings | None) -> list[Finding]:
    """The findings about whole queues of the visitor's account."""
    account = visit.identity.account
    return [
        each
        for each in (() if findings is None else findings.findings)
        if each.message_type is None and each.account == account
    ]


def _pilot_of(visit: Visit, pilot: AutopilotState | None, key: QueueKey) -> QueueState | None:
    """What the autopilot remembers of a queue. It looks after the queues of one region and account, and knows them by name."""
    own = pilot is not None and (pilot.region, pilot.account) == (key.region, key.account)
    return pilot.queues.get(key.name) if own and pilot is not None else None


async def _decisions(visit: Visit, queue: str) -> list[AuditEntry]:
    """The autopilot's latest about a queue, as the audit log has them."""
    found = await visit.console.audit.page(visit.identity.account, search=f'"target":"{queue}"')
    return [each for each in found.entries if each.who == "autopilot"][:DECISIONS_MAX]


def _timeout_s(queue: Queue | None) -> float | None:
    return None if queue is None else float(queue.settings.visibility_s)


def _section(
    finding: Finding, findings: Findings, queue: Queue | None, pilot: QueueState | None = None
) -> Section:
    now_s = _timeout_s(queue)
    said = verdict(finding, now_s, pilot)
    return Section(
        finding,
        said,
        _CHIPS[said],
        dilemma(finding, findings.target_duplicates, now_s),
        point_of(finding, now_s or finding.present_timeout_s),
        point_of(finding, finding.recommended_timeout_s),
    )


def _about(visit: Visit, findings: Findings) -> dict[str, Any]:
    made_at = words.parsed(findings.made_at)
    made_ms = None if made_at is None else round(made_at.timestamp() * 1000)
    return {
        "made_ms": made_ms,
        "is_old": made_ms is not None and visit.wall_ms - made_ms > _OLD_MS,
        "target": findings.target_duplicates,
        "policy": findings.policy,
        "no_renewal": NO_RENEWAL,
        "chance": words.chance,
        "seconds": words.length,
        "after_losses": words.after_losses,
    }


def _key(finding: Finding) -> QueueKey:
    return QueueKey(finding.region, finding.account, finding.queue)
