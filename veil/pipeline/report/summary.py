"""The report without its page: as data for programs, and as a table for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from veil import words
from veil.core.findings import NO_RENEWAL, Finding, Findings
from veil.pipeline.report.facts import Overview
from veil.pipeline.report.verdict import by_cost, cost_s, hidden_hours, verdict


def summary(findings: Findings, overview: Overview | None = None) -> dict[str, Any]:
    """The findings by queue, dearest first, and the totals where the tables were looked at."""
    queues = [
        {
            "name": queue.whole.queue,
            "region": queue.whole.region,
            "account": queue.whole.account,
            **_told(queue.whole),
            "message_types": [{"message_type": each.message_type, **_told(each)} for each in queue.types],
        }
        for queue in by_cost(findings)
    ]
    told: dict[str, Any] = {
        "made_at": findings.made_at,
        "target_duplicates": findings.target_duplicates,
        "queues": queues,
    }
    if overview is not None:
        totals = overview.totals
        told["since"] = overview.since.isoformat() if overview.since else None
        told["until"] = overview.until.isoformat() if overview.until else None
        told["totals"] = {
            "sent": totals.sent,
            "leases": totals.leases,
            "extensions": totals.extensions,
            "overrun": totals.overrun,
            "duplicates": totals.duplicates,
            "held_s": totals.held_ms / 1000,
            "wasted_s": totals.wasted_ms / 1000,
            "leases_by_how": dict(totals.how),
            "messages_by_outcome": dict(totals.outcome),
        }
    return told


def _told(finding: Finding) -> dict[str, Any]:
    replay = finding.replay
    return {
        "visibility_timeout_s": finding.present_timeout_s,
        "recommended_timeout_s": finding.recommended_timeout_s,
        "verdict": verdict(finding),
        "policy": finding.policy,
        "certainty": finding.certainty,
        "reason": finding.reason,
        "missing": finding.missing,
        "leases": finding.leases,
        "completed": finding.completed,
        "censored": finding.censored,
        "crashes": finding.crashes,
        "unknown": finding.unknown,
        "failed": finding.failed,
        "failed_s": finding.failed_s,
        "given_back": finding.given_back,
        "duplicates": finding.duplicates,
        "duplicates_with_recommended": replay.duplicates_with_recommended if replay else None,
        "hidden_hours": hidden_hours(finding),
        "hidden_hours_with_recommended": replay.hidden_hours_with_recommended if replay else None,
        "cost_s": cost_s(finding),
        "mean_s": finding.mean_s,
        "p50_s": finding.p50_s,
        "p90_s": finding.p90_s,
        "p99_s": finding.p99_s,
        "p999_s": finding.p999_s,
        "since": finding.since,
        "until": finding.until,
    }


# ---- as a table for a terminal

COLUMNS: Final = (
    "queue", "type", "leases", "present", "recommended", "verdict", "certainty", "duplicates", "hidden", "p50", "p99",
)  # fmt: skip
RIGHT: Final = ("leases", "present", "recommended", "duplicates", "hidden", "p50", "p99")

# As the command draws its tables.
_GAP: Final = 3  # between columns
_EDGES: Final = 2  # before the first and after the last
# What is left out first where the terminal is narrow.
_SPARED: Final = ("certainty", "type", "p50", "leases", "p99", "hidden", "verdict")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    columns: tuple[str, ...]
    right: tuple[str, ...]
    rows: list[list[str]]

    def width(self) -> int:
        """How wide it is when drawn."""
        widths = (
            max(len(name), *(len(row[i]) for row in self.rows), 1) for i, name in enumerate(self.columns)
        )
        return sum(widths) + _GAP * (len(self.columns) - 1) + _EDGES


def headline(findings: Findings, width: int | None = None) -> Table:
    """The table, with as many columns as fit into the width (all of them without one)."""
    rows = [
        _cells(each, is_type=number > 0)
        for queue in by_cost(findings)
        for number, each in enumerate([queue.whole, *queue.types])
    ]
    columns = [name for name in COLUMNS if name != "type" or any(row["type"] for row in rows)]
    table = _table(columns, rows)
    for spared in _SPARED:
        if width is None or table.width() <= width:
            break
        # The type names the row of a type, so there it stands behind the queue instead.
        if spared == "type" and "type" in columns:
            for row in rows:
                row["queue"] = f"{row['queue']} {row['type']}".rstrip()
        columns = [name for name in columns if name != spared]
        table = _table(columns, rows)
    if width is not None and table.width() > width:
        _shorten(rows, max(12, len(max((row["queue"] for row in rows), key=len)) - (table.width() - width)))
        table = _table(columns, rows)
    return table


def _shorten(rows: list[dict[str, str]], to: int) -> None:
    """Cut the names of queues in the middle: they differ at both ends."""
    for row in rows:
        name = row["queue"]
        if len(name) > to:
            half = (to - 1) // 2
            row["queue"] = f"{name[: to - 1 - half]}…{name[len(name) - half :]}"


def _table(columns: list[str], rows: list[dict[str, str]]) -> Table:
    return Table(
        tuple(columns),
        tuple(name for name in columns if name in RIGHT),
        [[row[name] for name in columns] for row in rows],
    )


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
        "verdict": verdict(finding),
        "certainty": finding.certainty,
        "duplicates": words.count(finding.duplicates),
        "hidden": words.hours(hidden_hours(finding)),
        "p50": words.length(finding.p50_s),
        "p99": words.length(finding.p99_s),
    }
