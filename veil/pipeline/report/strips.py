"""A queue's timeline: a strip of bars for each thing that is counted, each on its own scale, all over the same hours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from veil.pipeline import words
from veil.pipeline.report.drawing import UNITS, percent, stretched
from veil.pipeline.report.facts import SERIES, Timeline
from veil.pipeline.report.markup import Child, Markup, el

NAMES: Final = {
    "sent": "sent",
    "deleted": "deleted",
    "lapses": "lapses",
    "duplicates": "duplicates",
    "dead_lettered": "dead letters",
}


def strips(timeline: Timeline, queue: str) -> Markup:
    """The timeline; what never happened is said below it instead of drawn."""
    rows: list[Child] = []
    never = []
    for series in SERIES:
        counts = timeline.counts.get(series, ())
        if not any(counts):
            never.append(NAMES[series])
            continue
        rows.append(_strip(series, counts, timeline.slot, queue))
    if not rows:
        return el("p", "Nothing happened here in this time.", class_="muted")
    slots = max(len(counts) for counts in timeline.counts.values())
    rows.append(el("div", el("div"), _axis(timeline, slots), el("div"), class_="strip when"))
    counted = "Counted where the message was sent. " if timeline.by_send else ""
    none = f"No {_listed(never)}." if never else ""
    note = f"{counted}{none}".strip()
    return el("div", *rows, el("p", note, class_="muted small") if note else None, class_="strips")


def _strip(series: str, counts: Sequence[int], slot: timedelta, queue: str) -> Markup:
    peak, total = max(counts), sum(counts)
    every = slot_words(slot)
    label = f"{NAMES[series]} in {queue}: {words.count(total)} in all, at most {words.count(peak)} in {every}"
    bars = el("path", d=_bars(counts, peak), class_=f"bars {series}")
    drawn = el("svg", stretched(bars), role="img", aria_label=label, width="100%", height="100%")
    return el(
        "div",
        el("div", el("span", NAMES[series]), el("b", words.count(total)), class_="what"),
        el("div", drawn, class_="bed"),
        el("div", f"≤ {words.count(peak)} / {every}", class_="peak"),
        class_="strip",
    )


def _bars(counts: Sequence[int], peak: int) -> str:
    width = UNITS / len(counts)
    gap = width * 0.18 if len(counts) <= 200 else 0
    path = []
    for number, count in enumerate(counts):
        if count <= 0:
            continue
        # What happened once must be seen beside a thousand.
        height = max(UNITS * count / peak, 60)
        left = number * width + gap / 2
        path.append(f"M{left:.1f} {UNITS}V{UNITS - height:.0f}H{left + width - gap:.1f}V{UNITS}Z")
    return "".join(path)


def _axis(timeline: Timeline, slots: int) -> Markup:
    end = timeline.begin + timeline.slot * slots
    form = _form(end - timeline.begin)
    middle = timeline.begin + timeline.slot * (slots // 2)
    marks = [(0.0, timeline.begin, "start"), (1.0, end, "end")]
    if slots >= 4:
        marks.insert(1, (slots // 2 / slots, middle, "middle"))
    texts = [
        el("text", _at(at, form), x=percent(x), y="13", class_=f"tick {anchor}") for x, at, anchor in marks
    ]
    return el("div", el("svg", *texts, width="100%", height="18"), class_="bed axis")


def _form(whole: timedelta) -> str:
    if whole > timedelta(days=3):
        return "%-d %b"
    return (
        "%-d %b %H:%M"
        if whole > timedelta(hours=12)
        else "%H:%M"
        if whole > timedelta(minutes=10)
        else "%H:%M:%S"
    )


def _at(at: datetime, form: str) -> str:
    return at.strftime(form)


def slot_words(slot: timedelta) -> str:
    """A slot as the lower half of a rate: h, 10 min, day."""
    named = {3600: "h", 86_400: "day", 60: "min", 7 * 86_400: "week", 1: "s"}
    seconds = round(slot.total_seconds())
    return named.get(seconds) or words.length(seconds)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
