"""The top of the page: what the timeouts cost in a sentence, in figures, and queue by queue in a table."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.findings import NO_RENEWAL, Finding, Findings
from veil.pipeline import words
from veil.pipeline.report.facts import Overview
from veil.pipeline.report.markup import Child, Markup, el, prose
from veil.pipeline.report.verdict import (
    RIGHT,
    TOO_LONG,
    TOO_SHORT,
    UNKNOWN,
    QueueFindings,
    hidden_hours,
    policy_words,
    verdict,
)

_CHIPS = {TOO_SHORT: "short", TOO_LONG: "long", RIGHT: "right"}
_SIGNS = {TOO_SHORT: "▼ ", TOO_LONG: "▲ ", RIGHT: "✓ "}


def chip(word: str) -> Markup:
    """A verdict, told by sign and colour."""
    return el("span", _SIGNS.get(word, "") + word, class_=f"chip {_CHIPS.get(word, 'unknown')}")


def opening(findings: Findings, overview: Overview, queues: Sequence[QueueFindings]) -> list[Child]:
    """Title, the answer in a sentence, and the figures."""
    begin, end = overview.since, overview.until
    period = f"{words.instant(begin)} to {words.instant(end)}" if begin and end else "no events yet"
    return [
        el("p", f"Veil · {period}", class_="eyebrow"),
        el("h1", "What the timeouts cost, and what they should be"),
        el("p", prose(_answer(findings, queues)), class_="lead"),
        _tiles(overview, queues),
    ]


def _answer(findings: Findings, queues: Sequence[QueueFindings]) -> str:
    if not queues:
        return "No queue has been received from yet, so there is nothing to judge."
    words_of = [verdict(queue.whole) for queue in queues]
    parts = []
    if short := words_of.count(TOO_SHORT):
        twice = sum(queue.whole.duplicates for queue in queues if verdict(queue.whole) == TOO_SHORT)
        parts.append(
            f"{words.plural(short, 'queue has', 'queues have')} a timeout that is too short: "
            f"{words.plural(twice, 'message was', 'messages were')} worked on twice."
        )
    if long := words_of.count(TOO_LONG):
        hidden = sum(hidden_hours(queue.whole) or 0 for queue in queues if verdict(queue.whole) == TOO_LONG)
        parts.append(
            f"{words.plural(long, 'queue has', 'queues have')} one that is too long: after crashes messages "
            f"waited hidden for {words.hours(hidden)}."
        )
    if right := words_of.count(RIGHT):
        parts.append(f"{words.plural(right, 'is', 'are')} right.")
    if unknown := words_of.count(UNKNOWN):
        parts.append(f"For {words.count(unknown)} the evidence is not enough.")
    target = words.chance(findings.target_duplicates)
    parts.append(
        f"Recommended is the timeout of the quickest recovery that keeps duplicates to {target} of leases."
    )
    return " ".join(parts)


def _tiles(overview: Overview, queues: Sequence[QueueFindings]) -> Markup:
    totals = overview.totals
    hidden = [hours for queue in queues if (hours := hidden_hours(queue.whole)) is not None]
    avoidable = sum(
        max(0.0, queue.whole.replay.duplicates_then - queue.whole.replay.duplicates_with_recommended)
        for queue in queues
        if queue.whole.replay is not None
    )
    held = totals.wasted_ms / totals.held_ms if totals.held_ms else 0
    tiles = [
        (words.count(len(overview.queues) or len(queues)), "queues"),
        (words.count(totals.sent), "messages sent"),
        (words.count(totals.leases), "leases"),
        (
            words.count(sum(queue.whole.duplicates for queue in queues)),
            f"duplicates, {words.count(avoidable)} avoidable",
        ),
        (words.hours(sum(hidden)), "hidden after crashes"),
        (words.hours(totals.wasted_ms / 3_600_000), f"held for nothing, {words.chance(held)} of all holding"),
    ]
    return el(
        "ul",
        *(el("li", el("b", prose(value)), el("span", prose(name))) for value, name in tiles),
        class_="tiles",
    )


def headline_section(queues: Sequence[QueueFindings], detailed: int) -> Markup | None:
    """The table, dearest queue first; the first `detailed` names lead to their sections."""
    if not queues:
        return None
    names = ["queue · type", "verdict", "present", "recommended", "certainty", "duplicates", "hidden"]
    names += ["p50", "p99", "leases"]
    left = {"queue · type", "verdict", "certainty"}
    head = el(
        "tr", *(el("th", name, scope="col", class_=None if name in left else "right") for name in names)
    )
    rows: list[Child] = []
    for number, queue in enumerate(queues, 1):
        link = f"#queue-{number}" if number <= detailed else None
        who = (
            el("a", queue.whole.queue, href=link, class_="name")
            if link
            else el("span", queue.whole.queue, class_="name")
        )
        own_type = (
            el("span", f"type {queue.whole.message_type}", class_="sub") if queue.whole.message_type else None
        )
        rows.append(_row(queue.whole, [who, own_type], "has-types" if queue.types else None))
        for place, each in enumerate(queue.types, 1):
            last = place == len(queue.types)
            rows.append(_row(each, [each.message_type or "no type"], "type" if last else "type has-types"))
    table = el("table", el("thead", head), el("tbody", *rows))
    return el(
        "section",
        el("h2", "Dearest first"),
        el(
            "p",
            "By the work done twice and the time that messages waited hidden after crashes, added up.",
            class_="muted",
        ),
        el("div", el("div", table, class_="scroll"), class_="card headline"),
    )


def _row(finding: Finding, who: list[Child], class_: str | None) -> Markup:
    has_advice = finding.recommended_timeout_s is not None
    renewed = policy_words(finding.policy) if has_advice and finding.policy != NO_RENEWAL else None
    return el(
        "tr",
        el("td", *who, class_="who"),
        el("td", chip(verdict(finding)), class_="judged"),
        _cell("present", words.length(finding.present_timeout_s)),
        el(
            "td",
            words.length(finding.recommended_timeout_s),
            el("span", renewed, class_="sub none") if renewed else None,
            class_="right to" if has_advice else "right none",
            data_label="recommended",
        ),
        el("td", finding.certainty, data_label="certainty"),
        _cell("duplicates", words.count(finding.duplicates)),
        _cell("hidden", words.hours(hidden_hours(finding))),
        _cell("p50", words.length(finding.p50_s)),
        _cell("p99", words.length(finding.p99_s)),
        _cell("leases", words.count(finding.leases)),
        class_=class_,
    )


def _cell(name: str, value: str) -> Markup:
    return el("td", value, class_="right", data_label=name)
