"""Everything together: leases by how they ended, messages by what became of them, and the queues' share in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from veil.pipeline import words
from veil.pipeline.report.drawing import percent
from veil.pipeline.report.facts import Overview, QueueLife
from veil.pipeline.report.markup import Child, Markup, el, prose
from veil.pipeline.tables import HOW, OUTCOME

_QUEUES_MAX: Final = 200
_HOW: Final = {
    "deleted": "deleted in time",
    "released": "released",
    "expired": "lapsed, not received since",
    "superseded": "lapsed, received again",
    "dead_lettered": "lapsed, dead-lettered",
    "undone": "undone",
    "removed": "message removed meanwhile",
    "open": "open",
}
_OUTCOME: Final = {
    "deleted": "deleted",
    "expired": "expired by retention",
    "purged": "purged",
    "redriven": "redriven",
    "dead_lettered": "among the dead letters",
    "open": "still in the queue",
}


def totals_section(overview: Overview) -> Markup | None:
    """The totals; None where the tables are empty."""
    if not overview.queues:
        return None
    totals = overview.totals
    parts: list[Child] = [
        _shares("How leases ended", totals.leases, "lease", totals.how, HOW, _HOW),
        _shares("What became of messages", totals.sent, "message", totals.outcome, OUTCOME, _OUTCOME),
    ]
    share = totals.wasted_ms / totals.held_ms if totals.held_ms else 0.0
    wasted = (
        f"Leases held messages for {words.hours(totals.held_ms / 3_600_000)} together; "
        f"{words.hours(totals.wasted_ms / 3_600_000)} of that ({words.chance(share)}) ended without a delete: work that was "
        f"lost, or done again. {words.plural(totals.overrun, 'holder')} went on after the deadline, and "
        f"{words.plural(totals.duplicates, 'message was', 'messages were')} meanwhile given to somebody else. "
        f"{words.plural(totals.extensions, 'extension')} kept messages hidden longer."
    )
    return el(
        "section",
        el("h2", "Everything together"),
        el("div", el("div", *parts, class_="pair"), el("p", prose(wasted), class_="replay"), class_="card"),
        _queues(overview.queues),
    )


def _shares(
    title: str,
    total: int,
    noun: str,
    counts: Mapping[str, int],
    order: Sequence[str],
    names: Mapping[str, str],
) -> Markup:
    present = [(name, counts[name]) for name in order if counts.get(name)]
    whole = sum(count for _, count in present)
    bars: list[Child] = []
    entries: list[Child] = []
    left = 0.0
    for name, count in present:
        part = count / whole
        bar = el("rect", el("title", f"{names[name]}: {words.count(count)}"), x=percent(left), y="0",
                 width=percent(part), height="100%", class_=f"fill {name}")  # fmt: skip
        bars.append(bar)
        left += part
        swatch = el(
            "svg",
            el("rect", width="11", height="11", rx="2", class_=f"fill {name}"),
            width="11",
            height="11",
            aria_hidden="true",
        )
        entries.append(
            el(
                "li",
                swatch,
                el("span", names[name]),
                el("span", words.count(count)),
                el("span", words.chance(part)),
            )
        )
    label = ", ".join(f"{names[name]} {words.count(count)}" for name, count in present) or "none"
    stack = el("svg", *bars, role="img", aria_label=label, width="100%", height="100%")
    caption = el("figcaption", el("b", title), f" · {words.plural(total, noun)}")
    return el("figure", caption, el("div", stack, class_="stack"), el("ul", *entries, class_="shares"))


def _queues(queues: Sequence[QueueLife]) -> Markup:
    shown = sorted(queues, key=lambda each: (-each.totals.leases, -each.totals.sent, each.queue))[
        :_QUEUES_MAX
    ]
    names = (
        "sent",
        "deleted",
        "dead letters",
        "still there",
        "leases",
        "lapsed",
        "released",
        "extensions",
        "held for nothing",
    )
    rows = []
    for each in shown:
        totals, how, outcome = each.totals, each.totals.how, each.totals.outcome
        lapsed = sum(how.get(name, 0) for name in ("expired", "superseded", "dead_lettered"))
        cells = [
            words.count(totals.sent),
            words.count(outcome.get("deleted", 0)),
            words.count(outcome.get("dead_lettered", 0)),
            words.count(outcome.get("open", 0)),
            words.count(totals.leases),
            words.count(lapsed),
            words.count(how.get("released", 0)),
            words.count(totals.extensions),
            words.hours(totals.wasted_ms / 3_600_000),
        ]
        rows.append(
            el("tr", el("td", each.queue, class_="name"), *(el("td", cell, class_="right") for cell in cells))
        )
    head = el(
        "tr", el("th", "queue", scope="col"), *(el("th", name, scope="col", class_="right") for name in names)
    )
    table = el("div", el("table", el("thead", head), el("tbody", *rows)), class_="scroll")
    left_out = len(queues) - len(shown)
    more = (
        el("p", f"and {words.plural(left_out, 'further queue')}", class_="muted small") if left_out else None
    )
    return el("div", table, more, class_="card by-queue")
