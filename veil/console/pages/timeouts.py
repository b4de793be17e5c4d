"""The timeouts that queues should have, as the pipeline found them; each is applied through the same difference as an edit."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from veil import words
from veil.charts import TimeoutPoint
from veil.console.audit import AuditEntry
from veil.console.changes import Change, Difference, Done, queue_command
from veil.console.templates import length
from veil.console.timeouts import (
    UNKNOWN,
    dilemma,
    point_of,
    read_autopilot,
    read_findings,
    spark,
    verdict,
    why_not,
)
from veil.console.visit import Visit
from veil.console.web import NotFound, Refused, Role, change, link, page
from veil.core.autopilot import AutopilotState, QueueState
from veil.core.findings import FILE, NO_RENEWAL, RIGHT, TOO_LONG, TOO_SHORT, Finding, Findings
from veil.core.queue import Queue, QueueKey
from veil.service.queues import change_settings
from veil.wire.exchange import Response

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
    at_present: TimeoutPoint | None
    at_recommended: TimeoutPoint | None


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
        problem=None if pilot is None else pilot.problem,
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
    back = link("timeouts", queue.key.region, queue.name)

    async def make() -> Done:
        await change_settings(visit.service, queue, {"visibility_s": after_s})
        return Done(f"The visibility timeout of {queue.name} is {length(after_s)} now.", back)

    attributes = {"VisibilityTimeout": str(after_s)}
    notes = [
        finding.reason,
        "It counts from the next receive on. Leases that are open now keep their deadlines.",
    ]
    if finding.policy != NO_RENEWAL:
        notes.append(f"It is for consumers that renew: {finding.policy}.")
    return await Change(
        visit,
        action="apply timeout",
        target=queue.name,
        title=f"Apply the recommended timeout to {queue.name}",
        button="Change the queue",
        back=back,
        make=make,
        differences=[Difference("Visibility timeout", length(queue.settings.visibility_s), length(after_s))],
        commands=[queue_command(visit, "set-queue-attributes", queue, Attributes=attributes)],
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
    try:
        made_ms = round(datetime.fromisoformat(findings.made_at).timestamp() * 1000)
    except ValueError:
        made_ms = None
    return {
        "made_ms": made_ms,
        "is_old": made_ms is not None and visit.wall_ms - made_ms > _OLD_MS,
        "target": findings.target_duplicates,
        "policy": findings.policy,
        "no_renewal": NO_RENEWAL,
        "chance": words.chance,
        "seconds": words.length,
        "after_losses": words.after_losses,
        "unknown": UNKNOWN,
    }


def _key(finding: Finding) -> QueueKey:
    return QueueKey(finding.region, finding.account, finding.queue)
