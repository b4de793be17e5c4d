"""The report as data for programs, and its sentences: the findings by queue."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from veil import words
from veil.core.findings import Candidate, Finding, Findings, Replay, after_losses
from veil.pipeline.lifecycles.tables import ATTEMPT, HOW, OUTCOME
from veil.pipeline.report.overview import Overview

_CANDIDATES_SHOWN: Final = 7


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
    over = f"Over these {lasted}".replace("these 1 ", "this ") if lasted else "Over the time analysed"
    better, price = _changes(finding, replay)
    if better:
        changed = " and ".join(better) + (f", at the price of {' and '.join(price)}" if price else "")
    else:
        changed = f"meant {' and '.join(price)}" if price else "changed nothing worth counting"
    return f"{over} a timeout of {words.length(finding.recommended_timeout_s)} would have {changed}."


def _changes(finding: Finding, replay: Replay) -> tuple[list[str], list[str]]:
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
        better.append(
            f"saved {words.hours(shorter)} of the {of} that messages waited hidden {after_losses([finding])}"
        )
    elif shorter <= -1 / 3600:
        after = after_losses([finding], with_hours=False)
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
            for whole, types in findings.by_cost()
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
            "messages_by_outcome": {name: totals[column] for name, column in OUTCOME.items()},
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
        "hidden_hours": finding.hidden_hours,
        "hidden_hours_crashed": replay.hidden_hours_crashed if replay else None,
        "hidden_hours_with_recommended": replay.hidden_hours_with_recommended if replay else None,
        "cost_s": finding.past_cost_s,
    }
