"""The report as one self-contained HTML file: styles and drawings inside, no script.

Numbers and places are found here; wording and markup are in the templates, which escape whatever comes from data.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from veil import charts, words
from veil.charts import UNITS, percent
from veil.core.clock import Trouble
from veil.core.findings import NO_RENEWAL, Finding, Findings, after_losses, told_names
from veil.installed import veil_version
from veil.pipeline.lifecycles.tables import ATTEMPT, OUTCOME
from veil.pipeline.report.overview import SERIES, Example, ExampleLease, Overview, QueueTimeline
from veil.pipeline.report.summary import nearest, period_of, replay_words, shown_candidates

# More queues than this are told in the tables alone: a page of a thousand drawings is read by nobody.
DETAILED_MAX: Final = 60
_BUSIEST_MAX: Final = 200
_LEASES_MAX: Final = 6


def render_html(findings: Findings, overview: Overview) -> str:
    """The whole page. Whatever comes from data stands in it as text."""
    queues = findings.by_cost()
    judged: dict[str, list[Finding]] = {}
    for queue in queues:
        judged.setdefault(queue.whole.verdict(), []).append(queue.whole)
    style = (files(__package__) / "templates" / "style.css").read_text(encoding="utf-8")
    # The policy names the one style sheet by its hash: nothing else is styled, run, loaded or sent, whoever put it here.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    busiest = sorted(
        overview.queues, key=lambda each: (-each.totals["leases"], -each.totals["sent"], each.key.name)
    )
    lives = {each.key: each for each in overview.queues}
    return _environment().get_template("page.html").render(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(style),  # noqa: S704 - our own file
        findings=findings,
        overview=overview,
        totals=overview.totals,
        target=findings.target_duplicates,
        queues=queues,
        judged=judged,
        wholes=[queue.whole for queue in queues],
        detailed=queues[:DETAILED_MAX],
        lives=lives,
        names=told_names([*lives, *(each.key for each in findings.findings)]),
        attempt_shares=_shares(overview.totals, {name: name for name in ATTEMPT}),
        message_shares=_shares(overview.totals, OUTCOME),
        busiest=busiest[:_BUSIEST_MAX],
        version=f"Veil {veil_version()}",
    )  # fmt: skip


@cache
def _environment() -> Environment:
    def finalize(value: Any) -> Any:
        if value is None:
            return ""
        if isinstance(value, str) and not isinstance(value, Markup):
            return words.visible(value, keep="\n\t")
        return value

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
        # What is escaped already stays so.
        "unbroken": lambda text: text.__class__(words.unbroken(text)),
        "when": lambda at_ms: words.instant(datetime.fromtimestamp(at_ms // 1000, UTC)),
    }
    environment.globals |= {
        "NO_RENEWAL": NO_RENEWAL,
        "SERIES": SERIES,
        **{each.__name__: each for each in (
            words.plural, words.number, words.span, after_losses, words.trouble,
            charts.stretched, charts.survival_chart, charts.survival_sparkline, charts.dilemma_chart,
            period_of, replay_words, nearest, shown_candidates,
            policies_of, life_of, bars, shades, axis, slot_names,
        )},
    }  # fmt: skip
    return environment


def policies_of(finding: Finding) -> dict[str, str]:
    """The policies that the candidates were judged under, no renewal first, each with the class of its line."""
    seen = dict.fromkeys(each.policy for candidate in finding.candidates for each in candidate.policies)
    ordered = sorted(seen, key=lambda policy: policy != NO_RENEWAL)
    return {policy: f"line policy{min(at, 4)}" for at, policy in enumerate(ordered)}


class _Share(NamedTuple):
    key: str
    number: int
    share: float
    left: str
    width: str


def _shares(totals: Mapping[str, int], columns: Mapping[str, str]) -> list[_Share]:
    present = {key: totals[column] for key, column in columns.items() if totals[column]}
    whole = sum(present.values())
    found, left = [], 0
    for key, number in present.items():
        found.append(_Share(key, number, number / whole, percent(left / whole), percent(number / whole)))
        left += number
    return found


# ---- a timeline: bars over the same slots for each thing that is counted, each on a scale of its own


def bars(counts: Sequence[int]) -> str:
    """A path of one bar for each slot, in the stretched frame."""
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


def _slots(timeline: QueueTimeline) -> int:
    return max(len(counts) for counts in timeline.counts.values())


def shades(timeline: QueueTimeline, troubles: Sequence[Trouble]) -> str:
    """A path over the time in which the server itself was in trouble."""
    begin_ms = timeline.begin.timestamp() * 1000
    whole_ms = timeline.slot.total_seconds() * 1000 * _slots(timeline)
    path = []
    for trouble in troubles:
        left, right = (
            min(max((at_ms - begin_ms) / whole_ms, 0.0), 1.0) * UNITS
            for at_ms in (trouble.from_ms, trouble.to_ms)
        )
        # A second in a week is still there.
        path.append(f"M{left:.1f} 0H{max(right, left + 3):.1f}V{UNITS}H{left:.1f}Z")
    return "".join(path)


_FORMS: Final = (
    (timedelta(days=3), "%-d %b"),
    (timedelta(hours=12), "%-d %b %H:%M"),
    (timedelta(minutes=10), "%H:%M"),
)


def axis(timeline: QueueTimeline) -> list[tuple[str, str, str]]:
    """The names of instants below a timeline: place, text and anchor."""
    slots = _slots(timeline)
    form = next((form for least, form in _FORMS if timeline.slot * slots > least), "%H:%M:%S")
    marks = {0: "start", slots // 2: "middle", slots: "end"} if slots >= 4 else {0: "start", slots: "end"}
    return [
        (percent(slot / slots), (timeline.begin + timeline.slot * slot).strftime(form), anchor)
        for slot, anchor in marks.items()
    ]


_SLOT_NAMES: Final = {
    1: ("s", "second"), 60: ("min", "minute"), 3600: ("h", "hour"), 86_400: ("day", "day"), 604_800: ("week", "week"),
}  # fmt: skip


def slot_names(slot: timedelta) -> tuple[str, str]:
    """A slot as the lower half of a rate, in short and in full: h and hour; 10 min."""
    seconds = round(slot.total_seconds())
    return _SLOT_NAMES.get(seconds) or (words.length(seconds), words.length(seconds))


# ---- one message's life, drawn: each lease a bar from its receive to its end


class _LeaseRow(NamedTuple):
    lease: ExampleLease
    bars: list[tuple[str, str, str]]  # left, width, class
    ticks: list[tuple[str, str, str]]  # left, class, title


class _Life(NamedTuple):
    leases: list[_LeaseRow]
    whole_s: float
    left_out: int


def life_of(example: Example) -> _Life:
    """The life of one message, ready to be drawn."""
    leases = example.leases[:_LEASES_MAX]
    begin = example.sent_at
    known = [
        at for each in leases for at in (each.received_at, each.deadline, each.ended_at, each.work_ended) if at
    ]  # fmt: skip
    whole = max(*known, begin + timedelta(milliseconds=1)) - begin
    rows = [_lease_row(lease, begin, whole) for lease in leases]
    return _Life(rows, whole.total_seconds(), len(example.leases) - len(leases))


def _lease_row(lease: ExampleLease, begin: datetime, whole: timedelta) -> _LeaseRow:
    def at(moment: datetime) -> float:
        return min(1.0, max(0.0, (moment - begin) / whole))

    def bar(start: float, end: float, class_: str) -> tuple[str, str, str]:
        # A lease of a millisecond in an hour is still there.
        return percent(min(start, 0.995)), percent(end - start) if end - start >= 0.01 else "3", class_

    start = at(lease.received_at)
    ended = at(lease.ended_at or lease.deadline or lease.received_at + timedelta(milliseconds=lease.held_ms))
    bars, ticks = [], []
    if lease.deadline is not None and at(lease.deadline) > ended:
        bars.append(bar(start, at(lease.deadline), "granted"))
    bars.append(bar(start, ended, f"held {lease.how}"))
    if lease.overrun and lease.work_ended is not None and at(lease.work_ended) > ended:
        bars.append(bar(ended, at(lease.work_ended), "overrun"))
    if lease.extensions and lease.first_deadline is not None:
        ticks.append((percent(at(lease.first_deadline)), "first", "the first deadline, before renewal"))
    if lease.extensions and lease.last_extended_at is not None:
        ticks.append((percent(at(lease.last_extended_at)), "extension", "the last extension"))
    if lease.deadline is not None:
        ticks.append((percent(at(lease.deadline)), "deadline", "the deadline"))
    return _LeaseRow(lease, bars, ticks)
