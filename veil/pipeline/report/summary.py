"""The report without its page: the verdict on each timeout, in words, as data for programs, and as a table for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from veil import words
from veil.core.findings import NO_RENEWAL, Candidate, Finding, Findings, Replay, WithPolicy
from veil.pipeline.report.overview import Overview

TOO_SHORT: Final = "too short"
TOO_LONG: Final = "too long"
RIGHT: Final = "right"
UNKNOWN: Final = "unknown"
UNSET: Final = "not compared"

# A timeout a little beside the recommended one is no mistake: the curve is known to a few per cent, and waiting is only
# as bad as it is long. A short one costs work done twice, so less is forgiven there.
_SHORT: Final = 0.95
_LONG: Final = 1.25
_CANDIDATES_SHOWN: Final = 7


@dataclass(frozen=True, slots=True)
class QueueFindings:
    """A queue's finding and those of its message types, dearest first."""

    whole: Finding
    types: tuple[Finding, ...]


def verdict(finding: Finding) -> str:
    """One of the words above."""
    recommended, present = finding.recommended_timeout_s, finding.present_timeout_s
    if recommended is None:
        return UNKNOWN
    if present is None:
        return UNSET
    if present < recommended * _SHORT:
        return TOO_SHORT
    return TOO_LONG if present > recommended * _LONG else RIGHT


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
        whole = next((each for each in group if each.message_type is None), None) or max(
            group, key=lambda each: each.leases
        )
        types = sorted(
            (each for each in group if each is not whole), key=lambda each: each.past_cost_s, reverse=True
        )
        queues.append(QueueFindings(whole, tuple(types)))
    order = (TOO_SHORT, TOO_LONG, UNSET, RIGHT, UNKNOWN)
    return sorted(
        queues, key=lambda each: (-each.whole.past_cost_s, order.index(verdict(each.whole)), each.whole.queue)
    )


def with_policy(candidate: Candidate, policy: str) -> WithPolicy | None:
    """What the candidate means under the policy."""
    return next((each for each in candidate.policies if each.policy == policy), None)


def nearest(finding: Finding, timeout_s: float | None) -> Candidate | None:
    """The candidate whose timeout is nearest in proportion."""
    if timeout_s is None or not finding.candidates:
        return None
    wanted = max(timeout_s, 0.5)
    return min(
        finding.candidates,
        key=lambda each: max(max(each.timeout_s, 0.5) / wanted, wanted / max(each.timeout_s, 0.5)),
    )


def worth_showing(finding: Finding) -> list[Candidate]:
    """The candidates up to a few times the timeouts in question: beyond, there is only more delay."""
    timeouts = [each for each in (finding.present_timeout_s, finding.recommended_timeout_s) if each]
    if finding.recommended_timeout_s is None or not timeouts:
        return finding.candidates
    near = [each for each in finding.candidates if each.timeout_s <= max(timeouts) * 4]
    return near if len(near) >= 3 else finding.candidates


def policy_words(policy: str) -> str:
    """The policy as a phrase."""
    return "without renewal" if policy == NO_RENEWAL else f"with {policy} renewal"


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
            "attempts_by_outcome": dict(totals.attempts),
            "messages_by_outcome": dict(totals.outcome),
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
        "verdict": verdict(finding),
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
        tuple(name for name in columns if name in _ALIGNED_RIGHT),
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
