"""The report without its page: the findings by queue, in words, as data for programs, and as a table for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from veil import words
from veil.core.findings import (
    NO_RENEWAL,
    RIGHT,
    TOO_LONG,
    TOO_SHORT,
    UNKNOWN,
    UNSET,
    Candidate,
    Finding,
    Findings,
    Replay,
)
from veil.pipeline.lifecycles.tables import ATTEMPT, HOW
from veil.pipeline.report.overview import OUTCOMES, Overview

_CANDIDATES_SHOWN: Final = 7


class QueueFindings(NamedTuple):
    """A queue's finding and those of its message types, dearest first."""

    whole: Finding
    types: list[Finding]


def hidden_hours(finding: Finding) -> float | None:
    """Hours that messages spent waiting for the leases of crashed holders to lapse."""
    return None if finding.replay is None else finding.replay.hidden_hours_then


def by_cost(findings: Findings) -> list[QueueFindings]:
    """The findings by queue, the dearest first; among equals those that there is something to do about."""
    grouped: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings.findings:
        grouped.setdefault((finding.region, finding.account, finding.queue), []).append(finding)
    queues = []
    for group in grouped.values():
        # A queue whose messages all bear types may come without a finding of its own; the largest speaks for it.
        whole = max(group, key=lambda each: (each.message_type is None, each.leases))
        types = [each for each in group if each is not whole]
        queues.append(QueueFindings(whole, sorted(types, key=lambda each: -each.past_cost_s)))
    order = (TOO_SHORT, TOO_LONG, UNSET, RIGHT, UNKNOWN)
    return sorted(
        queues,
        key=lambda each: (-each.whole.past_cost_s, order.index(each.whole.verdict()), each.whole.queue),
    )


def nearest(finding: Finding, timeout_s: float | None) -> Candidate | None:
    """The candidate whose timeout is nearest in proportion."""
    if timeout_s is None:
        return None
    wanted = max(timeout_s, 0.5)
    return min(
        finding.candidates,
        key=lambda each: max(max(each.timeout_s, 0.5) / wanted, wanted / max(each.timeout_s, 0.5)),
        default=None,
    )


def shown_candidates(finding: Finding) -> list[Candidate]:
    """A few candidates: the present and the recommended ones, those around, and others spread evenly over the rest."""
    every = sorted(finding.worth_showing(), key=lambda each: each.timeout_s)
    if len(every) <= _CANDIDATES_SHOWN:
        return every
    recommended, present = (
        nearest(finding, each) for each in (finding.recommended_timeout_s, finding.present_timeout_s)
    )
    kept = {every.index(each) for each in (recommended, present) if each in every}
    if recommended in every:
        at = every.index(recommended)
        kept |= {max(at - 1, 0), min(at + 1, len(every) - 1)}
    for part in (0, 4, 2, 1, 3):
        if len(kept) < _CANDIDATES_SHOWN:
            kept.add(round(part * (len(every) - 1) / 4))
    return [every[index] for index in sorted(kept)]


Period = tuple[datetime | None, datetime | None]


def period_of(finding: Finding, told: Period) -> Period:
    """The time that a finding rests on. It counts in whole days; what the tables tell may begin later and end sooner."""
    begins = [at for at in (words.parsed(finding.since), told[0]) if at is not None]
    last_day = words.parsed(finding.until)
    ends = [at for at in (last_day and last_day + timedelta(days=1), told[1]) if at is not None]
    return max(begins, default=None), min(ends, default=None)


def replay_words(finding: Finding, period: Period) -> str | None:
    """What the recommended timeout would have changed, in a sentence or two."""
    replay = finding.replay
    if replay is None or finding.recommended_timeout_s is None:
        return None
    lasted = words.span(*period)
    over = f"Over these {lasted}" if lasted else "Over the time analysed"
    better, price = _changes(replay, words.after_losses(finding.crashes, finding.unknown))
    if better:
        changed = " and ".join(better) + (f", at the price of {' and '.join(price)}" if price else "")
    else:
        changed = f"meant {' and '.join(price)}" if price else "changed nothing worth counting"
    return f"{over} a timeout of {words.length(finding.recommended_timeout_s)} would have {changed}."


def _changes(replay: Replay, after: str) -> tuple[list[str], list[str]]:
    """What would have been better, and its price; neither where it is less than half a duplicate or a second."""
    fewer = replay.duplicates_then - replay.duplicates_with_recommended
    shorter = replay.hidden_hours_then - replay.hidden_hours_with_recommended
    better, price = [], []
    if fewer >= 0.5:
        better.append(f"avoided {words.count(fewer)} of {words.plural(replay.duplicates_then, 'duplicate')}")
    elif fewer <= -0.5:
        price.append(words.plural(-fewer, "more duplicate"))
    if shorter >= 1 / 3600:
        of = words.hours(replay.hidden_hours_then)
        better.append(f"saved {words.hours(shorter)} of the {of} that messages waited hidden {after}")
    elif shorter <= -1 / 3600:
        price.append(f"{words.hours(-shorter)} more of messages waiting hidden {after}")
    return better, price


def summary(findings: Findings, overview: Overview | None = None) -> dict[str, Any]:
    """The findings by queue, dearest first, and the totals where the tables were looked at."""
    told: dict[str, Any] = {
        "made_at": findings.made_at,
        "target_duplicates": findings.target_duplicates,
        "queues": [
            {
                "name": whole.queue,
                "region": whole.region,
                "account": whole.account,
                **_told(whole),
                "message_types": [{"message_type": each.message_type, **_told(each)} for each in types],
            }
            for whole, types in by_cost(findings)
        ],
    }
    if overview is not None:
        totals = overview.totals
        told["since"], told["until"] = (at and at.isoformat() for at in (overview.since, overview.until))
        told["totals"] = {
            **{name: totals[name] for name in ("sent", "leases", "extensions", "overrun", "duplicates")},
            "held_s": totals["held_ms"] / 1000,
            "wasted_s": totals["wasted_ms"] / 1000,
            "leases_by_how": {name: totals[name] for name in HOW},
            "attempts_by_outcome": {name: totals[name] for name in ATTEMPT},
            "messages_by_outcome": {name: totals[column] for name, column in OUTCOMES.items()},
        }
    return told


_TOLD: Final = (
    "policy", "certainty", "reason", "missing", "leases", "completed", "censored", "crashes", "unknown", "failed", "failed_s",
    "given_back", "duplicates", "mean_s", "p50_s", "p90_s", "p99_s", "p999_s", "since", "until",
)  # fmt: skip


def _told(finding: Finding) -> dict[str, Any]:
    replay = finding.replay
    return {
        "visibility_timeout_s": finding.present_timeout_s,
        "recommended_timeout_s": finding.recommended_timeout_s,
        "verdict": finding.verdict(),
        **{name: getattr(finding, name) for name in _TOLD},
        "duplicates_with_recommended": replay.duplicates_with_recommended if replay else None,
        "hidden_hours": hidden_hours(finding),
        "hidden_hours_with_recommended": replay.hidden_hours_with_recommended if replay else None,
        "cost_s": finding.past_cost_s,
    }


COLUMNS: Final = (
    "queue", "type", "leases", "present", "recommended", "verdict", "certainty", "duplicates", "hidden", "p50", "p99",
)  # fmt: skip
_ALIGNED_RIGHT: Final = ("leases", "present", "recommended", "duplicates", "hidden", "p50", "p99")

# As the command draws its tables.
_GAP: Final = 3  # between columns
_EDGES: Final = 2  # before the first and after the last
# What is left out first where the terminal is narrow.
_SPARED: Final = ("certainty", "type", "p50", "leases", "p99", "hidden", "verdict")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells under headings."""

    columns: tuple[str, ...]
    cells: list[dict[str, str]]

    @property
    def right(self) -> list[str]:
        """The columns of numbers."""
        return [name for name in self.columns if name in _ALIGNED_RIGHT]

    @property
    def rows(self) -> list[list[str]]:
        """The cells in the order of the columns."""
        return [[cell[name] for name in self.columns] for cell in self.cells]

    def width(self) -> int:
        """How wide it is when drawn."""
        widths = (max(len(name), *(len(cell[name]) for cell in self.cells), 1) for name in self.columns)
        return sum(widths) + _GAP * (len(self.columns) - 1) + _EDGES

    def without(self, column: str) -> Table:
        """The table without a column. The type names the row of a type, so it then stands behind the queue instead."""
        if column == "type" and "type" in self.columns:
            for cell in self.cells:
                cell["queue"] = f"{cell['queue']} {cell['type']}".rstrip()
        return Table(tuple(name for name in self.columns if name != column), self.cells)


def headline(findings: Findings, width: int | None = None) -> Table:
    """The table, with as many columns as fit into the width (all of them without one)."""
    cells = [
        _cells(each, is_type=each is not whole)
        for whole, types in by_cost(findings)
        for each in (whole, *types)
    ]
    table = Table(COLUMNS, cells)
    if not any(cell["type"] for cell in cells):
        table = table.without("type")
    for spared in _SPARED:
        if width is not None and table.width() > width:
            table = table.without(spared)
    if width is not None and table.width() > width:
        longest, too_wide = max(len(cell["queue"]) for cell in cells), table.width() - width
        for cell in cells:
            cell["queue"] = _shortened(cell["queue"], max(12, longest - too_wide))
    return table


def _shortened(name: str, to: int) -> str:
    """The name cut in the middle: queues' names differ at both ends."""
    half = (to - 1) // 2
    return name if len(name) <= to else f"{name[: to - 1 - half]}…{name[len(name) - half :]}"


def _cells(finding: Finding, *, is_type: bool) -> dict[str, str]:
    recommended = words.length(finding.recommended_timeout_s)
    if finding.recommended_timeout_s is not None and finding.policy != NO_RENEWAL:
        recommended += f" ({finding.policy})"
    return {
        "queue": finding.queue,
        "type": finding.message_type or ("" if not is_type else words.NOTHING),
        "leases": words.count(finding.leases),
        "present": words.length(finding.present_timeout_s),
        "recommended": recommended,
        "verdict": finding.verdict(),
        "certainty": finding.certainty,
        "duplicates": words.count(finding.duplicates),
        "hidden": words.hours(hidden_hours(finding)),
        "p50": words.length(finding.p50_s),
        "p99": words.length(finding.p99_s),
    }
