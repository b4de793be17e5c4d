"""One queue: its two curves, what other timeouts would mean, what happened when, and how much evidence there is."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.findings import NO_RENEWAL, Candidate, Finding
from veil.pipeline import words
from veil.pipeline.report.charts import dilemma_chart, dilemma_legend, sparkline, survival_chart
from veil.pipeline.report.facts import QueueLife
from veil.pipeline.report.headline import chip
from veil.pipeline.report.markup import Child, Markup, el, join, prose
from veil.pipeline.report.strips import slot_words, strips
from veil.pipeline.report.verdict import (
    Period,
    QueueFindings,
    hidden_hours,
    nearest,
    period_of,
    policy_words,
    replay_words,
    verdict,
    with_policy,
    worth_showing,
)

_CANDIDATES_SHOWN = 7


def queue_section(
    queue: QueueFindings, life: QueueLife | None, told: Period, target: float, anchor: str
) -> Markup:
    """The section of one queue."""
    finding = queue.whole
    period = period_of(finding, told)
    return el(
        "article",
        el(
            "div",  # what must stay on one sheet of paper
            el("header", el("h3", finding.queue), chip(verdict(finding)), _change(finding)),
            el("p", prose(words.sentence(finding.reason))) if finding.reason else None,
            _said(finding, period),
            _curves(finding, target),
            class_="first",
        ),
        _tables(finding),
        _types(queue.types, target),
        _timeline(life),
        _leases(finding, period),
        class_="queue card",
        id=anchor,
    )


def _change(finding: Finding) -> Markup | None:
    if finding.recommended_timeout_s is None:
        return None
    recommended = el("em", words.length(finding.recommended_timeout_s))
    if finding.present_timeout_s is None:
        return el("span", recommended, class_="change")
    present = el("s", words.length(finding.present_timeout_s))
    return el("span", present, " → ", recommended, class_="change")


def _said(finding: Finding, period: Period) -> Markup | None:
    if finding.recommended_timeout_s is None:
        missing = words.sentence(finding.missing or "more leases whose work is known to have ended")
        return el("p", el("b", "Not enough evidence. "), prose(missing), class_="lacking")
    replay = replay_words(finding, period)
    said = el("p", prose(replay), class_="replay") if replay else None
    surer = (
        el("p", prose(f"Not quite sure: {words.sentence(finding.missing)}"), class_="lacking")
        if finding.missing
        else None
    )
    return join([said, surer])


def _curves(finding: Finding, target: float) -> Markup | None:
    survival, dilemma = survival_chart(finding, target), dilemma_chart(finding, target)
    if survival is None and dilemma is None:
        return None
    figures: list[Child] = []
    if survival is not None:
        caption = el("figcaption", el("b", "How long the work takes. "), "Chance that it takes longer.")
        figures.append(el("figure", caption, survival))
    if dilemma is not None:
        caption = el(
            "figcaption", el("b", "The dilemma. "), "Chance of a duplicate against the delay after a crash."
        )
        figures.append(el("figure", caption, dilemma, dilemma_legend(finding)))
    return el("div", *figures, class_="pair")


def _tables(finding: Finding) -> Markup | None:
    """What a few timeouts would mean; beside it what renewal would at the chosen one, where policies were judged."""
    if not finding.candidates:
        return None
    policy = finding.policy if finding.recommended_timeout_s is not None else NO_RENEWAL
    chosen = nearest(finding, finding.recommended_timeout_s or finding.present_timeout_s)
    beside: list[Child] = []
    if chosen is not None and len(chosen.policies) > 1:
        beside.append(_policies(finding, chosen))
    beside.append(_evidence(finding))
    return el("div", _candidates(finding, policy), el("div", *beside, class_="beside"), class_="pair")


def _candidates(finding: Finding, policy: str) -> Markup:
    present, recommended = nearest(finding, finding.present_timeout_s), finding.recommended_timeout_s
    rows: list[Child] = []
    for candidate in shown_candidates(finding):
        meant = with_policy(candidate, policy)
        if meant is None:
            continue
        is_recommended = candidate.timeout_s == recommended
        tags: list[Child] = []
        if is_recommended:
            tags.append(el("span", "recommended", class_="tag recommended"))
        if candidate is present:
            near = "" if candidate.timeout_s == finding.present_timeout_s else "near "
            tags.append(el("span", f"{near}present", class_="tag"))
        rows.append(
            el(
                "tr",
                el("td", words.length(candidate.timeout_s), *tags, class_="fixed"),
                el("td", words.chance(meant.duplicate_chance), class_="right"),
                el("td", words.chance(meant.duplicate_chance_high), class_="right muted"),
                el("td", words.length(meant.recovery_s), class_="right"),
                class_="chosen" if is_recommended else None,
            )
        )
    head = _head(["timeout"], ["duplicates", "at worst", "delay after a crash"])
    caption = el("p", el("b", "Candidates "), policy_words(policy), class_="caption")
    return el("figure", caption, el("div", el("table", head, el("tbody", *rows)), class_="scroll"))


def _policies(finding: Finding, candidate: Candidate) -> Markup:
    rows = [
        el(
            "tr",
            el("td", each.policy, class_="fixed"),
            el("td", words.chance(each.duplicate_chance), class_="right"),
            el("td", words.length(each.recovery_s), class_="right"),
            el("td", words.number(each.calls_per_message, digits=2), class_="right"),
            class_="chosen" if each.policy == finding.policy and finding.recommended_timeout_s else None,
        )
        for each in candidate.policies
    ]
    head = _head(["renewal"], ["duplicates", "delay after a crash", "calls per message"])
    caption = el(
        "p", el("b", "Renewal "), f"at a timeout of {words.length(candidate.timeout_s)}", class_="caption"
    )
    return el("figure", caption, el("div", el("table", head, el("tbody", *rows)), class_="scroll"))


def _head(left: Sequence[str], right: Sequence[str]) -> Markup:
    cells = [el("th", name, scope="col") for name in left]
    cells += [el("th", name, scope="col", class_="right") for name in right]
    return el("thead", el("tr", *cells))


def shown_candidates(finding: Finding) -> list[Candidate]:
    """A few candidates: the present and the recommended ones, those around, and others spread evenly over the rest."""
    every = sorted(worth_showing(finding), key=lambda each: each.timeout_s)
    if len(every) <= _CANDIDATES_SHOWN:
        return every
    recommended, present = (
        nearest(finding, each) for each in (finding.recommended_timeout_s, finding.present_timeout_s)
    )
    kept = {every.index(each) for each in (recommended, present) if each in every}
    if recommended in every:
        at = every.index(recommended)
        kept |= {max(at - 1, 0), min(at + 1, len(every) - 1)}
    spread = [round(part * (len(every) - 1) / 4) for part in (0, 4, 2, 1, 3)]
    for index in spread:
        if len(kept) >= _CANDIDATES_SHOWN:
            break
        kept.add(index)
    return [every[index] for index in sorted(kept)]


def _types(types: Sequence[Finding], target: float) -> Markup | None:
    if not types:
        return None
    rows = [
        el(
            "tr",
            el("td", each.message_type or "no type", class_="name"),
            el("td", sparkline(each, target)),
            el("td", words.length(each.recommended_timeout_s), class_="right"),
            el("td", each.certainty, class_="fixed"),
            el("td", words.count(each.duplicates), class_="right"),
            el("td", words.hours(hidden_hours(each)), class_="right"),
            el("td", words.length(each.p50_s), class_="right"),
            el("td", words.length(each.p99_s), class_="right"),
            el("td", words.count(each.leases), class_="right"),
        )
        for each in types
    ]
    head = el(
        "thead",
        el(
            "tr",
            el("th", "type", scope="col"),
            el("th", "curve", scope="col"),
            el("th", "recommended", scope="col", class_="right"),
            el("th", "certainty", scope="col"),
            *(
                el("th", name, scope="col", class_="right")
                for name in ("duplicates", "hidden", "p50", "p99", "leases")
            ),
        ),
    )
    caption = el("p", el("b", "By message type"), class_="caption")
    table = el("div", el("table", head, el("tbody", *rows)), class_="scroll")
    return el("figure", caption, table, class_="by-type")


def _timeline(life: QueueLife | None) -> Markup | None:
    if life is None or life.timeline is None:
        return None
    slot = slot_words(life.timeline.slot)
    whole = {"s": "second", "min": "minute", "h": "hour", "day": "day", "week": "week"}.get(slot)
    by = f"by the {whole}" if whole else f"every {slot}"
    caption = el("p", el("b", "What happened, "), by, class_="caption")
    return el("div", caption, strips(life.timeline, life.queue), class_="when-what")


def _evidence(finding: Finding) -> Markup:
    """What the work is known to take."""
    quantiles = [
        ("half", "p50", finding.p50_s),
        ("nine in ten", "p90", finding.p90_s),
        ("99 in 100", "p99", finding.p99_s),
        ("999 in 1,000", "p99.9", finding.p999_s),
    ]
    rows = [
        el(
            "tr",
            el("td", name, class_="fixed"),
            el("td", share, class_="muted"),
            el("td", words.length(at), class_="right"),
        )
        for share, name, at in quantiles
    ]
    if finding.mean_s is not None:
        naive = "of the completed ones alone" if finding.censored else "of all"
        cells = (el("td", "mean", class_="fixed"), el("td", naive, class_="muted"))
        rows.append(el("tr", *cells, el("td", words.length(finding.mean_s), class_="right")))
    head = el(
        "thead",
        el(
            "tr",
            el("th", "time", scope="col"),
            el("th", "of the work", scope="col"),
            el("th", "within", scope="col", class_="right"),
        ),
    )
    caption = el("p", el("b", "The work "), "is done", class_="caption")
    return el("figure", caption, el("div", el("table", head, el("tbody", *rows)), class_="scroll"))


def _leases(finding: Finding, period: Period) -> Markup:
    """How much there is to go by."""
    lasted = words.span(*period)
    since = f", {words.instant(period[0])} to {words.instant(period[1])} ({lasted})" if lasted else ""
    text = (
        f"Evidence: {words.plural(finding.leases, 'lease')}, of which {words.count(finding.completed)} known to the end and "
        f"{words.count(finding.censored)} cut off; {words.plural(finding.crashes, 'crash', 'crashes')}{since}."
    )
    return el("p", prose(text), class_="evidence")
