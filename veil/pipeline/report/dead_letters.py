"""The dead letters in the report: the groups of the last analysis, where there was one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from veil.journal.place import Place
from veil.pipeline import words
from veil.pipeline.dead_letters.table import Group, read_groups
from veil.pipeline.report.markup import Markup, el

GROUPS_MAX: Final = 50
_COLUMNS: Final = ("messages", "first seen", "last seen", "receives", "redriven before")


def collect_dead_letters(tables: Place) -> tuple[Group, ...]:
    """The largest groups that `veil pipeline dead-letters` left; none without an analysis."""
    return tuple(read_groups(tables, GROUPS_MAX))


def dead_letters_section(groups: Sequence[Group]) -> Markup | None:
    """The groups as a table, the largest first; None where there are none. Bodies do not stand in it."""
    if not groups:
        return None
    head = el(
        "tr",
        el("th", "source", scope="col"),
        el("th", "what failed", scope="col"),
        *(el("th", name, scope="col", class_="right") for name in _COLUMNS),
        el("th", "leases ended", scope="col"),
        el("th", "for example", scope="col"),
    )
    table = el("table", el("thead", head), el("tbody", *(_row(group) for group in groups)))
    analysed = f"As {words.instant(groups[0].analysed_at)} found them; grouped by source, message type, error type and text."
    how = el(
        "p", "To send a group back: ", el("code", "veil pipeline redrive QUEUE --where \"group_id = '…'\"")
    )
    return el(
        "section",
        el("h2", "Dead letters"),
        el(
            "div",
            el("p", analysed, class_="muted"),
            el("div", table, class_="scroll"),
            how,
            class_="card by-queue",
        ),
    )


def _row(group: Group) -> Markup:
    kind = " · ".join(each for each in (group.message_type, group.error_type) if each)
    text = group.fingerprint or ("" if kind else "no reason was written on it")
    numbers = (
        words.count(group.messages),
        words.instant(group.first_seen),
        words.instant(group.last_seen),
        _receives(group),
        words.count(group.redriven_before),
    )
    leases = "; ".join(f"{words.count(messages)}: {ends}" for messages, ends in group.leases[:2])
    return el(
        "tr",
        el("td", group.source or words.NOTHING, class_="name"),
        el("td", el("b", kind) if kind else None, el("br") if kind and text else None, text),
        *(el("td", number, class_="right") for number in numbers),
        el("td", leases or words.NOTHING),
        el(
            "td", el("code", group.group_id), el("br"), group.examples[0].message_id if group.examples else ""
        ),
    )


def _receives(group: Group) -> str:
    low, high = group.receive_count_min, group.receive_count_max
    if low is None or low == high:
        return words.count(low)
    return f"{words.count(low)}–{words.count(high)}"
