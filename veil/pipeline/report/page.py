"""The report as one HTML file that asks nobody for anything: styles and drawings inside, no script.

Sentences and numbers are made here, markup in the templates, which escape whatever comes from data.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from veil import words
from veil.charts import percent, stretched
from veil.core.findings import NO_RENEWAL, Finding, Findings
from veil.pipeline.lifecycles.tables import ATTEMPT, OUTCOME
from veil.pipeline.report import charts, summary
from veil.pipeline.report.overview import Example, ExampleLease, Overview, Totals
from veil.pipeline.report.summary import (
    RIGHT,
    TOO_LONG,
    TOO_SHORT,
    UNKNOWN,
    QueueFindings,
    by_cost,
    hidden_hours,
)

# More queues than this are told in the tables alone: a page of a thousand drawings is read by nobody.
DETAILED_MAX: Final = 60
_BUSIEST_MAX: Final = 200
_LEASES_MAX: Final = 6

_ATTEMPT_NAMES: Final = {name: name.replace("_", " ") for name in ATTEMPT} | {
    "unknown": "lapsed, unknown why",
    "removed": "message removed meanwhile",
    "open": "still held",
}
_OUTCOME_NAMES: Final = {
    "deleted": "deleted",
    "expired": "expired by retention",
    "purged": "purged",
    "redriven": "redriven",
    "dead_lettered": "among the dead letters",
    "open": "still in a queue",
}
_LIFE_TITLES: Final = {
    "duplicate": "Done twice",
    "crash": "Lost in a crash, visible again after the timeout",
    "dead_letter": "Moved to the dead letters",
    "renewed": "Kept hidden by renewal",
}
_LAPSES: Final = {
    "expired": "lapsed",
    "superseded": "lapsed, received again",
    "dead_lettered": "lapsed, moved to the dead letters",
}


def render_html(findings: Findings, overview: Overview) -> str:
    """The whole page. Whatever comes from data stands in it as text."""
    queues = by_cost(findings)
    style = (files(__package__) / "templates" / "style.css").read_text(encoding="utf-8")
    # The policy names the one style sheet by its hash: nothing else is styled, run, loaded or sent, whoever put it here.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    totals = overview.totals
    busiest = sorted(overview.queues, key=lambda each: (-each.totals.leases, -each.totals.sent, each.queue))
    return _environment().get_template("page.html").render(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(style),  # noqa: S704 - our own file
        findings=findings,
        overview=overview,
        target=findings.target_duplicates,
        queues=queues,
        detailed=queues[:DETAILED_MAX],
        lives={(each.region, each.account, each.queue): each for each in overview.queues},
        answer=_answer(findings, queues),
        tiles=_tiles(overview, queues),
        attempt_shares=_shares(totals.attempts, ATTEMPT, _ATTEMPT_NAMES),
        message_shares=_shares(totals.outcome, OUTCOME, _OUTCOME_NAMES),
        wasted=_wasted(totals),
        busiest=busiest[:_BUSIEST_MAX],
        made_by=_made_by(overview),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    def finalize(value: Any) -> Any:
        if value is None:
            return ""
        return words.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("veil.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters |= {
        "as_length": words.length,
        "count": words.count,
        "hours": words.hours,
        "chance": words.chance,
        "instant": words.instant,
        "sentence": words.sentence,
        "unbroken": words.unbroken,
    }
    environment.globals |= {
        "NO_RENEWAL": NO_RENEWAL,
        "plural": words.plural,
        "number": words.number,
        "span": words.span,
        "stretched": stretched,
        "life_of": life_of,
        **{each.__name__: each for each in (
            charts.survival_chart, charts.dilemma_chart, charts.sparkline, charts.policies_of, charts.strips,
            summary.verdict, summary.hidden_hours, summary.policy_words, summary.period_of, summary.replay_words,
            summary.nearest, summary.with_policy, summary.shown_candidates,
        )},
    }  # fmt: skip
    return environment


def _answer(findings: Findings, queues: Sequence[QueueFindings]) -> str:
    if not queues:
        return "No queue has been received from yet, so there is nothing to judge."
    judged = [summary.verdict(queue.whole) for queue in queues]
    parts = []
    if short := judged.count(TOO_SHORT):
        twice = sum(
            queue.whole.duplicates for queue, word in zip(queues, judged, strict=True) if word == TOO_SHORT
        )
        parts.append(
            f"{words.plural(short, 'queue has', 'queues have')} a timeout that is too short: "
            f"{words.plural(twice, 'message was', 'messages were')} worked on twice."
        )
    if long := judged.count(TOO_LONG):
        those = [queue.whole for queue, word in zip(queues, judged, strict=True) if word == TOO_LONG]
        hidden = sum(hidden_hours(each) or 0 for each in those)
        parts.append(
            f"{words.plural(long, 'queue has', 'queues have')} a timeout that is too long: {_after(those)}, messages "
            f"stayed hidden for {words.hours(hidden)}."
        )
    if right := judged.count(RIGHT):
        parts.append(f"{words.plural(right, 'queue is', 'queues are')} right.")
    if unknown := judged.count(UNKNOWN):
        parts.append(f"For {words.plural(unknown, 'queue')} there is not enough evidence.")
    target = words.chance(findings.target_duplicates)
    parts.append(
        f"The recommended timeout has the quickest recovery that keeps duplicates to {target} of leases."
    )
    return " ".join(parts)


def _after(findings: Iterable[Finding]) -> str:
    every = list(findings)
    return words.after_losses(sum(each.crashes for each in every), sum(each.unknown for each in every))


def _tiles(overview: Overview, queues: Sequence[QueueFindings]) -> list[tuple[str, str]]:
    totals = overview.totals
    replays = [queue.whole.replay for queue in queues if queue.whole.replay is not None]
    avoidable = sum(max(0.0, each.duplicates_then - each.duplicates_with_recommended) for each in replays)
    wasted = totals.wasted_ms / totals.held_ms if totals.held_ms else 0
    return [
        (words.count(len(overview.queues) or len(queues)), "queues"),
        (words.count(totals.sent), "messages sent"),
        (words.count(totals.leases), "leases"),
        (
            words.count(sum(queue.whole.duplicates for queue in queues)),
            f"duplicates, {words.count(avoidable)} avoidable",
        ),
        (
            words.hours(sum(each.hidden_hours_then for each in replays)),
            f"hidden {_after(queue.whole for queue in queues)}",
        ),
        (words.hours(totals.wasted_ms / 3_600_000), f"held in vain, {words.chance(wasted)} of all time held"),
    ]


class _Share(NamedTuple):
    key: str
    name: str
    number: int
    share: float
    left: str
    width: str


def _shares(counts: Mapping[str, int], order: Sequence[str], names: Mapping[str, str]) -> list[_Share]:
    present = [(key, counts[key]) for key in order if counts.get(key)]
    whole = sum(number for _, number in present)
    found, left = [], 0
    for key, number in present:
        part = number / whole
        found.append(_Share(key, names[key], number, part, percent(left / whole), percent(part)))
        left += number
    return found


def _wasted(totals: Totals) -> str:
    share = totals.wasted_ms / totals.held_ms if totals.held_ms else 0.0
    return (
        f"Leases held messages for {words.hours(totals.held_ms / 3_600_000)} in total; "
        f"{words.hours(totals.wasted_ms / 3_600_000)} of that ({words.chance(share)}) ended without a delete: work that was "
        f"lost, or done again. {words.plural(totals.overrun, 'holder')} went on after the deadline, and "
        f"{words.plural(totals.duplicates, 'message was', 'messages were')} meanwhile given to somebody else. "
        f"{words.plural(totals.extensions, 'extension')} kept messages hidden longer."
    )


def _made_by(overview: Overview) -> str:
    try:
        by = f"Veil {version('veilmq')}"
    except PackageNotFoundError:  # shipped to a cluster as bare files
        by = "Veil"
    return by + (f" on Spark {overview.spark_version}" if overview.spark_version else "")


# ---- one message's life, drawn: each lease a bar from its receive to its end


class _LeaseRow(NamedTuple):
    text: str
    bars: list[tuple[str, str, str]]  # left, width, class
    ticks: list[tuple[str, str, str]]  # left, class, title


class _Life(NamedTuple):
    example: Example
    title: str
    story: str
    leases: list[_LeaseRow]
    whole_s: float
    left_out: int


def life_of(example: Example) -> _Life:
    """The life of one message, ready to be drawn."""
    leases = example.leases[:_LEASES_MAX]
    begin = example.sent_at
    whole = max([_shown_until(lease) for lease in leases] + [begin + timedelta(milliseconds=1)]) - begin
    return _Life(
        example,
        _LIFE_TITLES.get(example.kind, example.kind),
        _story(example),
        [_lease_row(lease, begin, whole) for lease in leases],
        whole.total_seconds(),
        len(example.leases) - len(leases),
    )


def _shown_until(lease: ExampleLease) -> datetime:
    known = [at for at in (lease.deadline, lease.ended_at, _work_ended(lease)) if at is not None]
    return max([lease.received_at, *known])


def _work_ended(lease: ExampleLease) -> datetime | None:
    """When the work is known to have ended: at the delete, in time or late."""
    if lease.processing_ms is None or not (lease.overrun or lease.how == "deleted"):
        return None
    return lease.received_at + timedelta(milliseconds=lease.processing_ms)


def _lease_row(lease: ExampleLease, begin: datetime, whole: timedelta) -> _LeaseRow:
    def at(moment: datetime) -> float:
        return min(1.0, max(0.0, (moment - begin) / whole))

    def bar(start: float, end: float, class_: str) -> tuple[str, str, str]:
        # A lease of a millisecond in an hour is still there.
        return percent(min(start, 0.995)), percent(end - start) if end - start >= 0.01 else "3", class_

    start, work_ended = at(lease.received_at), _work_ended(lease)
    ended = at(lease.ended_at or lease.deadline or lease.received_at + timedelta(milliseconds=lease.held_ms))
    bars, ticks = [], []
    if lease.deadline is not None and at(lease.deadline) > ended:
        bars.append(bar(start, at(lease.deadline), "granted"))
    bars.append(bar(start, ended, f"held {lease.how}"))
    if lease.overrun and work_ended is not None and at(work_ended) > ended:
        bars.append(bar(ended, at(work_ended), "overrun"))
    if lease.extensions and lease.first_deadline is not None:
        ticks.append((percent(at(lease.first_deadline)), "first", "the first deadline, before renewal"))
    if lease.extensions and lease.last_extended_at is not None:
        ticks.append((percent(at(lease.last_extended_at)), "extension", "the last extension"))
    if lease.deadline is not None:
        ticks.append((percent(at(lease.deadline)), "deadline", "the deadline"))
    return _LeaseRow(_lease_text(lease), bars, ticks)


def _lease_text(lease: ExampleLease) -> str:
    parts = [f"lease {lease.delivery}", f"held {words.length(lease.held_ms / 1000)}"]
    if lease.extensions:
        parts.append(words.plural(lease.extensions, "extension"))
    if lease.how in _LAPSES:
        parts.append(_LAPSES[lease.how])
    came_to = _ATTEMPT_NAMES.get(lease.outcome, lease.outcome)
    parts.append(f"{came_to}: {lease.error_type}" if lease.error_type else came_to)
    work_ended = _work_ended(lease)
    if (
        lease.overrun
        and work_ended is not None
        and lease.deadline is not None
        and work_ended > lease.deadline
    ):
        late = (work_ended - lease.deadline).total_seconds()
        parts.append(f"its holder was done {words.length(late)} later")
    if lease.user_agent:
        parts.append(lease.user_agent if len(lease.user_agent) <= 40 else lease.user_agent[:39] + "…")
    return " · ".join(parts)


def _story(example: Example) -> str:
    leases = example.leases
    if example.kind == "duplicate":
        late = next((lease for lease in leases if lease.overrun), leases[0])
        took = words.length((late.processing_ms or late.held_ms) / 1000)
        return (
            f"The work took {took}, the lease lasted {words.length(late.held_ms / 1000)}: somebody else received the "
            "message in between and did the work again."
        )
    if example.kind == "crash":
        lost = next((lease for lease in leases if lease.how in ("superseded", "expired")), leases[0])
        again = next((lease for lease in leases if lease.delivery > lost.delivery), None)
        if again is None:
            return "Its holder was not heard of again; the message stayed hidden until the deadline."
        waited = (again.received_at - (lost.last_extended_at or lost.received_at)).total_seconds()
        return (
            "Its holder was not heard of again. The message stayed hidden until the deadline and was received again "
            f"{words.length(waited)} after the last sign of life."
        )
    if example.kind == "dead_letter":
        return f"Received {words.plural(len(leases), 'time')} without being deleted, then moved to the dead letters."
    longest = max(leases, key=lambda lease: lease.extensions)
    granted = "a shorter timeout"
    if longest.first_deadline:
        granted = (
            f"a timeout of {words.length((longest.first_deadline - longest.received_at).total_seconds())}"
        )
    return (
        f"The work took {words.length(longest.held_ms / 1000)} under {granted}: "
        f"{words.plural(longest.extensions, 'extension')} kept the message hidden, and nobody did the work twice."
    )
