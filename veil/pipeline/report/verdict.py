"""Judge a timeout: too short, too long or right, what it has cost, and what another would have changed, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from veil import words
from veil.core.findings import NO_RENEWAL, Candidate, Finding, Findings, Replay, WithPolicy

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


def cost_s(finding: Finding) -> float:
    """What the present timeout has cost: the work done twice and the time spent hidden, in seconds."""
    work_s = finding.p50_s or finding.mean_s or finding.present_timeout_s or 1.0
    return finding.duplicates * work_s + (hidden_hours(finding) or 0.0) * 3600


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
        types = sorted((each for each in group if each is not whole), key=cost_s, reverse=True)
        queues.append(QueueFindings(whole, tuple(types)))
    order = (TOO_SHORT, TOO_LONG, UNSET, RIGHT, UNKNOWN)
    return sorted(
        queues, key=lambda each: (-cost_s(each.whole), order.index(verdict(each.whole)), each.whole.queue)
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
    better, price = _changes(replay)
    if better:
        changed = " and ".join(better) + (f", at the price of {' and '.join(price)}" if price else "")
    else:
        changed = f"meant {' and '.join(price)}" if price else "changed nothing worth counting"
    return f"{over} a timeout of {words.length(finding.recommended_timeout_s)} would have {changed}."


def _changes(replay: Replay) -> tuple[list[str], list[str]]:
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
        better.append(f"saved {words.hours(shorter)} of the {of} that messages waited hidden after crashes")
    elif shorter <= -1 / 3600:
        price.append(f"{words.hours(-shorter)} more of messages waiting hidden after crashes")
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
