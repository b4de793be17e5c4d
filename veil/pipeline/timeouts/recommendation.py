"""The timeout that a queue should have, how sure that is, what would make it surer, and what it would have changed.

A lease must cover the work whichever way that ends: an attempt that is still at work at its deadline is begun a second time,
though it would have failed later. So a failure, and a message given back, is an end of the work like a completion, not a
censored observation: to take it for one would say that failing work goes on for ever, and a queue whose handlers wait 30 s for
something before they fail would never get a timeout. But many quick failures must not hide the slow work of those that
complete. Two curves are estimated therefore, of all attempts and of those that are not known to have failed or been given back,
and the worse of both at each instant counts (`curve_of`).

Leases that lapsed in silence are the hard part: was the holder dead, or still at work? The tables cannot tell, and the
difference is everything. A holder that was still at work at the deadline needed a longer timeout; one that had crashed, or
had failed and left the message lying, says nothing about how long work takes, and to count it as at work until the deadline
would put the survival curve's end at the share of crashes, for ever above any target.

Two things in the data speak. Holders that come late show it where they do not give up: if a fair number of leases were
overrun, silence means dead. And work that is cut off by a deadline leaves a trace before it: completions up
to the very end of the window. From the completions in its last three octaves the number still at work is extrapolated:
as if the tail were a power law, which is heavier than nearly every real one, or lighter if it is getting lighter already.
What lapsed beyond that number is dead. Where the journal tells that a holder was gone, or went on without its message, there is
nothing to extrapolate.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from veil import words
from veil.core.findings import (
    CLEAR,
    FAR_TOO_MANY,
    LIKELY,
    NO_RENEWAL,
    NOT_ENOUGH,
    Candidate,
    Replay,
    WithPolicy,
)
from veil.core.limits import VISIBILITY_MAX_S
from veil.pipeline.timeouts.history import History, bucket_of_s, middle_s
from veil.pipeline.timeouts.survival import Floats, Survival, Z, estimate, worse_of

# With renewal a short timeout would do for any work, at the price of calls and of windows that end before a second try.
_CALLS_MAX: Final = 1.0
_RENEWED_LEAST_S: Final = 10
_OBSERVATIONS_LEAST: Final = 30
_FIRST_OBSERVATIONS: Final = 15  # for the least cost: that a timeout is far too short shows soon
_LONGER_FOR_A_WHILE: Final = 4
_SEEN_TO_ITS_END: Final = 0.001  # more than this may not be cut off at the end of what is known
_TAIL_OBSERVATIONS: Final = 30
_TRIED_MAX_S: Final = 900  # work that takes longer wants renewal
# Crashes come, though none has been seen yet: as if half a one had been seen in so many attempts before the first.
_CRASHES_BEFORE: Final = 0.5
_ATTEMPTS_BEFORE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer for one queue or type."""

    timeout_s: int | None
    certainty: str
    reason: str
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the answer is made from."""

    history: History
    lapses: Lapses
    curve: Survival
    timelines: Timelines
    target: float
    policy: str
    least_cost: bool = False  # the target is a bound, and what costs least within it is asked for

    def means(self, *timeouts_s: int) -> list[WithPolicy]:
        return evaluate(self.curve, self.timelines, timeouts_s, self.policy)


def crash_share(history: History) -> float:
    """The share of the attempts after whose crash a message is to be expected to stay hidden; never none at all. What may have
    been a crash counts as one."""
    lost = history.recovery.total() + history.recovery_unknown.total()
    return (lost + _CRASHES_BEFORE) / (history.leases + _ATTEMPTS_BEFORE)


def recommend(evidence: Evidence) -> Recommendation:
    """The shortest wait after a crash among the timeouts whose duplicates stay within the target, the doubt included; or what
    costs least, where that is asked for."""
    if evidence.least_cost:
        return _least_cost(evidence)
    history, target = evidence.history, evidence.target
    if history.completed < max(1 / target, _OBSERVATIONS_LEAST):
        return _too_few(evidence)
    if evidence.curve.chance[-1] > target:
        if evidence.curve.end_s >= VISIBILITY_MAX_S:
            return _beyond_twelve_hours(evidence)
        return _cut_off(evidence)
    best = _best(evidence, target)
    if best is not None:
        timeout_s, means = best
        if evidence.lapses.proven or means.duplicate_chance_high + _crashed_share(evidence) <= target:
            return Recommendation(timeout_s, CLEAR, _reason(evidence, timeout_s, means))
        return Recommendation(
            timeout_s, LIKELY, _reason(evidence, timeout_s, means), _crashes_assumed(evidence)
        )
    best = _best(evidence, float(evidence.curve.high[-1]))
    if best is None:
        return _beyond_twelve_hours(evidence)
    timeout_s, means = best
    return Recommendation(timeout_s, LIKELY, _reason(evidence, timeout_s, means), _more(evidence))


def _least_cost(evidence: Evidence) -> Recommendation:
    """The timeout of least expected cost: what is done twice, each as long as half of the work takes, and the time that
    messages stay hidden after crashes. It is clear where it costs less than the present timeout even at the unfavourable end
    of the interval.
    """
    history, curve, target = evidence.history, evidence.curve, evidence.target
    present_s = max(1, min(round(history.present_s or 1), VISIBILITY_MAX_S))
    if history.completed + sum(count for _, count in evidence.lapses.at_work) < _FIRST_OBSERVATIONS:
        return _too_few(evidence)
    if curve.chance[-1] > min(target, _SEEN_TO_ITS_END):
        return (
            _beyond_twelve_hours(evidence) if curve.end_s >= VISIBILITY_MAX_S else _tried(evidence, present_s)
        )
    work_s, crashed = curve.quantile_s(0.5) or 1.0, crash_share(history)
    began, tail = float(curve.at_risk[0]), PowerTail.of(curve)
    (now,) = evidence.means(present_s)
    costs = [
        (tail.chance(timeout_s, each) * work_s + crashed * each.recovery_s, timeout_s, each)
        for timeout_s, each in _sensible(evidence)
    ]
    fit = [each for each in costs if each[2].duplicate_chance_high <= target]
    # Until the target can be shown to be kept, longer is the right direction whatever it will be in the end.
    fit = fit or [each for each in costs if each[1] > present_s]
    if not fit:
        return _beyond_twelve_hours(evidence)
    _, timeout_s, best = min(fit, key=lambda each: each[:2])
    reason = _reason(evidence, timeout_s, best)
    # What a change is about is the work that takes longer than one of the two timeouts and not longer than the other. The
    # ends of the interval of such a count are those of its root, whose spread is a half.
    between = abs(now.duplicate_chance - best.duplicate_chance) * began
    hidden_s = crashed * (best.recovery_s - now.recovery_s) * began
    if timeout_s >= present_s:
        is_clear = (
            _least(between) * work_s > hidden_s or _least(now.duplicate_chance * began) > target * began
        )
    else:
        most = (math.sqrt(between + 1) + Z / 2) ** 2
        if not evidence.lapses.proven:  # some of those that fell silent may have been at work
            most += evidence.lapses.crashed
        is_clear = most * work_s < -hidden_s
    if is_clear:
        return Recommendation(timeout_s, CLEAR, reason)
    missing = "more attempts are needed to be sure that it costs less than the present timeout"
    return Recommendation(timeout_s, LIKELY, reason, missing)


def _least(count: float) -> float:
    return max(math.sqrt(count) - Z / 2, 0.0) ** 2


def _tried(evidence: Evidence, present_s: int) -> Recommendation:
    """A longer timeout, to see how long work takes that is given up at its deadline; where that is much of it for certain."""
    told, history = _cut_off(evidence), evidence.history
    # Of those that lapsed within the last minutes it is not known yet who was at work; of the others it is.
    cut = max(history.lapses.total() - history.unknown, 0)
    if _least(cut) <= FAR_TOO_MANY * history.leases or present_s >= _TRIED_MAX_S:
        return told
    longer_s = min(sensible_s(_LONGER_FOR_A_WHILE * present_s), _TRIED_MAX_S)
    return Recommendation(longer_s, CLEAR, f"{told.reason}; a longer timeout shows how long it takes")


class PowerTail(NamedTuple):
    """The end of the curve, of which too little was seen to go by: a power law through its last observations (Hill 1975).

    Without it the longest work that was seen would be taken for the longest that there is. The law's exponent is uncertain too,
    by its Gamma distribution given so many observations; what is expected over that is heavier the fewer they are.
    """

    from_s: float
    share: float  # of the work that takes longer than that
    exponent: float
    observations: float

    @classmethod
    def of(cls, curve: Survival) -> PowerTail:
        """The tail of the last thirty observations, or of the longer half where that is less."""
        began = float(curve.at_risk[0])
        share = min(_TAIL_OBSERVATIONS / began, 0.5)
        at = max(int(np.searchsorted(-curve.chance, -share, side="right")) - 1, 1)
        from_s, chance = float(curve.after_s[at]), float(curve.chance[at])
        times_s, left = curve.after_s[at:], curve.chance[at:]
        # The mean of the logarithm of what exceeds, over the observations that were seen to their end.
        excess = float((np.diff(np.log(times_s)) * (left[1:] + left[:-1]) / 2).sum())
        ended = max(chance - float(left[-1]), 1e-12)
        return cls(from_s, chance, ended / max(excess, 1e-12), max(ended * began, 1.0))

    def chance(self, timeout_s: int, means: WithPolicy) -> float:
        """The chance that work outlasts a timeout; what renewal covers it covers to the end."""
        if timeout_s <= self.from_s or means.calls_per_message > 0:
            return means.duplicate_chance
        beyond = self.exponent * math.log(timeout_s / self.from_s)
        return self.share * math.exp(-self.observations * math.log1p(beyond / self.observations))


def _best(evidence: Evidence, bound: float) -> tuple[int, WithPolicy] | None:
    """The timeout with the shortest recovery of those whose upper bound of duplicates is within this one."""
    fit = [each for each in _sensible(evidence) if each[1].duplicate_chance_high <= bound * (1 + 1e-9)]
    return min(fit, key=lambda each: (each[1].recovery_s, each[0]), default=None)


def _sensible(evidence: Evidence) -> list[tuple[int, WithPolicy]]:
    """The timeouts that people would set, without those that ask for too many renewals, and what each means."""
    timeouts_s: Sequence[int] = SENSIBLE_S
    if evidence.policy != NO_RENEWAL:
        longest_s = max(2 * evidence.curve.end_s, 60)
        timeouts_s = [each for each in SENSIBLE_S if _RENEWED_LEAST_S <= each <= longest_s]
    found = zip(timeouts_s, evidence.means(*timeouts_s), strict=True)
    return [each for each in found if each[1].calls_per_message <= _CALLS_MAX]


def _reason(evidence: Evidence, timeout_s: int, means: WithPolicy) -> str:
    renewed = "" if evidence.policy == NO_RENEWAL else f" renewed by {evidence.policy}"
    text = (
        f"with a timeout of {words.length(timeout_s)}{renewed}, {words.chance(means.duplicate_chance)} of the work would be done "
        f"twice (95 % confidence: at most {words.chance(means.duplicate_chance_high)}), and a crash would hide a message for "
        f"{words.length(means.recovery_s)}"
    )
    present_s = evidence.history.present_s
    if present_s is None or present_s < 1:
        return text
    if round(present_s) == timeout_s:
        return f"{text}: the present timeout is right"
    (now,) = evidence.means(min(round(present_s), VISIBILITY_MAX_S))
    costs = f"{words.chance(now.duplicate_chance)} and {words.length(now.recovery_s)}"
    return f"{text}; with the present timeout of {words.length(present_s)}, these are {costs}"


def _too_few(evidence: Evidence) -> Recommendation:
    completed = evidence.history.completed
    have = words.plural(completed, "completed lease")
    reason = f"{have}: too few to see whether {words.chance(evidence.target)} of the work is done twice"
    failed = evidence.history.failed
    if failed > completed:
        reason += f"; {words.chance(failed / evidence.history.leases)} of the attempts failed, which no timeout can fix"
    return Recommendation(None, NOT_ENOUGH, reason, _more(evidence))


def _more(evidence: Evidence) -> str:
    completed, target = evidence.history.completed, evidence.target
    needed = max(-math.log(0.025) / target, _OBSERVATIONS_LEAST)
    if completed < needed:
        return (
            f"about {words.about(needed)} completed leases are needed to see {words.chance(target)}; "
            f"there are {completed:,} so far"
        )
    return (
        f"more work that is seen to its end is needed: besides the {words.plural(completed, 'completed lease')} too many were "
        f"cut off to be sure of {words.chance(target)}"
    )


def _cut_off(evidence: Evidence) -> Recommendation:
    history, curve = evidence.history, evidence.curve
    left = words.chance(float(curve.chance[-1]))
    if not evidence.lapses.at_work:
        reason = f"{left} of the work was let go, unfinished, before {words.length(curve.end_s)}: nothing is known beyond"
        missing = "leases that are neither released nor still open are needed: observe for longer"
        return Recommendation(None, NOT_ENOUGH, reason, missing)
    deadline_s = max(at_s for at_s, _ in evidence.lapses.at_work)
    lapsed = sum(count for _, count in evidence.lapses.at_work)
    longest = words.length(history.longest_s) if history.processing else "nothing"
    reason = (
        f"the longest complete observation is {longest} and {words.chance(lapsed / max(history.leases, 1))} of the leases end at "
        f"the timeout of {words.length(deadline_s)}: nothing is known beyond"
    )
    longer_s = sensible_s(_LONGER_FOR_A_WHILE * deadline_s)
    renewal = "turn on renewal" if evidence.policy == NO_RENEWAL else "see that every consumer renews"
    missing = f"work that is not cut off is needed: raise the timeout to {words.length(longer_s)} for a while, or {renewal}"
    return Recommendation(None, NOT_ENOUGH, reason, missing)


def _beyond_twelve_hours(evidence: Evidence) -> Recommendation:
    chance, _, high = evidence.curve.at(VISIBILITY_MAX_S)
    reason = (
        f"{words.chance(chance)} of the work (at most {words.chance(high)}) takes longer than 12 h, the longest timeout there "
        "is: split the work"
    )
    return Recommendation(VISIBILITY_MAX_S, CLEAR if chance > evidence.target else LIKELY, reason)


def _crashed_share(evidence: Evidence) -> float:
    return evidence.lapses.crashed / max(evidence.history.leases, 1)


def _crashes_assumed(evidence: Evidence) -> str:
    history = evidence.history
    text = (
        f"{evidence.lapses.crashed:,.0f} leases ({words.chance(_crashed_share(evidence))}) lapsed without a later sign of their "
        f"holder; they are counted as crashes, since completed work thins out well before their deadline (the longest took "
        f"{words.length(history.longest_s)})"
    )
    if history.dead_lettered:
        text += f"; {history.dead_lettered:,} of these ended in the dead letters: look there for work that never fits"
    return text


# Late signs of life that show that holders of this queue do not give up at the deadline.
_SHOWN_LEAST, _SHOWN_SHARE = 3, 1 / 10
# A larger share of all leases than this is not taken for crashes, whatever the completions look like.
_CREDIBLE_SHARE = 1 / 5


@dataclass(frozen=True, slots=True)
class Lapses:
    """The censored observations of a history, sorted by what they say."""

    # (seconds, leases): at work at that instant for certain or by assumption.
    at_work: list[tuple[float, float]]
    elsewhere: Counter[int]  # removed or open: censored somewhere in that bucket
    crashed: float  # ended somewhere before their deadline, without completing: crashed, or failed and left to lapse
    proven: bool  # late holders of this queue show themselves, so silence means dead


def curve_of(history: History, lapses: Lapses) -> Survival:
    """The chance that an attempt is still at work after a time: of all attempts, or of those that were not let go, whichever
    is greater."""
    censored = (lapses.elsewhere, lapses.at_work, lapses.crashed)
    everything = estimate(history.processing + history.let_go, *censored)
    # Where nothing has completed, the curve of what does would be one of no observations: as if all work lasted for ever.
    if not history.let_go or not history.processing:
        return everything
    return worse_of(everything, estimate(history.processing, *censored))


def sort_lapses(history: History) -> Lapses:
    """Tell holders that were at work at their deadline from those that were dead by then."""
    lapses, elsewhere = _placed(history), history.censored
    total = sum(count for _, count in lapses)
    silent = min(history.unknown, total)
    if not silent:
        return Lapses(lapses, elsewhere, history.dead, True)
    deadline_s = max(lapses, key=lambda each: each[1])[0]
    # Not by completions beyond this deadline: those may be of leases with a longer timeout.
    proven = history.overrun >= max(_SHOWN_LEAST, silent * _SHOWN_SHARE)
    still = 0.0 if proven else _still_at_work(history, deadline_s, silent)
    crashed = silent - still
    kept = (total - crashed) / total
    at_work = [(at_s, count * kept) for at_s, count in lapses if kept]
    return Lapses(at_work, elsewhere, crashed + history.dead, proven)


def _still_at_work(history: History, deadline_s: float, silent: float) -> float:
    if silent > _CREDIBLE_SHARE * history.leases:
        return silent
    last = _completed(history, deadline_s / 2, deadline_s)
    before = _completed(history, deadline_s / 4, deadline_s / 2)
    if last and last >= before:  # the tail has not begun yet: there is no telling how much of it is beyond
        return silent
    if not last:
        return 0.0
    # With a power law each octave holds the same multiple of the one before it; what follows the last is the series' rest.
    earlier = _completed(history, deadline_s / 8, deadline_s / 4)
    multiple = last / before
    if earlier:
        multiple *= min(1.0, multiple / (before / earlier))
    return min(silent, last * multiple / (1 - multiple))


def _completed(history: History, after_s: float, to_s: float) -> float:
    """Completions in that span; a bucket counts by its middle."""
    return sum(count for bucket, count in history.processing.items() if after_s < middle_s(bucket) <= to_s)


def _placed(history: History) -> list[tuple[float, float]]:
    """The instants at which leases lapsed. Of a bucket in which a window is known to have ended, all did so there: the others,
    whose leases had been extended, or whose holder was heard of later, in its middle."""
    ended_s = {bucket_of_s(each / 1000): each / 1000 for each in sorted(history.windows)}
    return [
        (ended_s.get(bucket, middle_s(bucket)), float(count))
        for bucket, count in sorted(history.lapses.items())
        if count > 0
    ]


def replay(evidence: Evidence, recommended_s: int) -> Replay:
    """The same leases and the same crashes again, under the recommended timeout.

    The wait after a crash is measured from the holder's last sign of life, which it survived by some unknown time; the
    expected length of that is taken off. What a message waited beyond its deadline until somebody received it is nobody's
    timeout's fault, and stays.
    """
    history, then, mean_s = evidence.history, None, 0.0
    (means,) = evidence.means(recommended_s)
    if leases := history.windows.total():
        mean_s = sum(length_ms * count for length_ms, count in history.windows.items()) / leases / 1000
        (then,) = evidence.means(max(1, min(round(mean_s), VISIBILITY_MAX_S)))

    def hidden_s(recovery: Counter[int]) -> tuple[float, float]:
        recovered = recovery.total()
        measured_s = sum(count * middle_s(bucket) for bucket, count in recovery.items())
        if then is None or not recovered:
            return measured_s, recovered * means.recovery_s
        waited_s = max(measured_s / recovered - mean_s, 0.0)
        return recovered * (then.recovery_s + waited_s), recovered * (means.recovery_s + waited_s)

    crashed_s, crashed_with_s = hidden_s(history.recovery)
    unknown_s, unknown_with_s = hidden_s(history.recovery_unknown)
    return Replay(
        duplicates_then=history.duplicates,
        duplicates_with_recommended=history.leases * means.duplicate_chance,
        hidden_hours_then=(crashed_s + unknown_s) / 3600,
        hidden_hours_with_recommended=(crashed_with_s + unknown_with_s) / 3600,
        hidden_hours_crashed=crashed_s / 3600,
    )


# ---- candidates: what each timeout would mean, the chance of a duplicate, the wait after a crash, the calls
#
# A duplicate comes about when work outlasts the last deadline that its lease is given. A crash is taken as equally likely at
# every moment of work, so its instant has the density of the survival curve, as far as the lease reaches; the message is
# visible again at the deadline in force at that instant. When a policy would renew is the consumer's affair: a Schedule
# says it.

# What people set, by steps that they would choose: 7 s, 45 s, 90 s, 12 min; not 47 s.
_STEPS: Final = ((10, 1), (60, 5), (300, 15), (900, 60), (3_600, 300), (VISIBILITY_MAX_S, 1_800))
SENSIBLE_S: Final = tuple(
    timeout_s
    for (before, _), (upto, step) in zip(((0, 1), *_STEPS), _STEPS, strict=False)
    for timeout_s in range(before + step, upto + 1, step)
)
LADDER_S: Final = (
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, VISIBILITY_MAX_S,
)  # fmt: skip


def sensible_s(length_s: float) -> int:
    """The shortest timeout that people would set and that is no shorter than this; 12 h for all that is longer."""
    at = int(np.searchsorted(SENSIBLE_S, math.ceil(length_s - 1e-9)))
    return SENSIBLE_S[min(at, len(SENSIBLE_S) - 1)]


def shown_timeouts(curve: Survival, present_s: float | None, recommended_s: int | None) -> list[int]:
    """The ladder, the present timeout, the recommended one, and the quantiles of the work."""
    quantiles = (curve.quantile_s(share) for share in (0.9, 0.99, 0.999))
    also = [sensible_s(each) for each in quantiles if each is not None]
    if present_s is not None and present_s >= 1:
        also.append(min(round(present_s), VISIBILITY_MAX_S))
    if recommended_s is not None:
        also.append(recommended_s)
    return sorted({*LADDER_S, *also})


def evaluate(
    curve: Survival, timelines: Timelines, timeouts_s: Sequence[int], policy: str
) -> list[WithPolicy]:
    """What each of the timeouts means under one policy."""
    played = [timelines.of(policy, timeout_s).until(curve.end_s) for timeout_s in timeouts_s]
    lengths = np.array([len(at_s) for at_s, _ in played])
    at_s = np.concatenate([each for each, _ in played])
    deadline_s = np.concatenate([each for _, each in played])
    first = np.cumsum(lengths) - lengths
    last = first + lengths - 1
    ends_s = np.minimum(deadline_s[last], VISIBILITY_MAX_S)
    seen_s = np.minimum(ends_s, curve.end_s)
    # Each window is in force until the next begins, the last one until it ends or nothing more is known.
    until_s = np.append(at_s[1:], 0.0)
    until_s[last] = seen_s
    worked_s = curve.integrals(until_s)[0] - curve.integrals(np.minimum(at_s, curve.end_s))[0]
    hidden_s2 = np.add.reduceat(deadline_s * worked_s, first) - curve.integrals(seen_s)[1]
    recovery_s = hidden_s2 / np.add.reduceat(worked_s, first)
    # A renewal is sent if the work still goes on by then; the receive itself is none.
    sent = np.interp(at_s, curve.after_s, curve.chance)
    sent[first] = 0.0
    calls = np.add.reduceat(sent, first)
    chance, high = (np.interp(ends_s, curve.after_s, each) for each in (curve.chance, curve.high))
    columns = (each.tolist() for each in (chance, high, recovery_s, calls))
    return [WithPolicy(policy, *values) for values in zip(*columns, strict=True)]


def candidates(curve: Survival, timelines: Timelines, timeouts_s: Sequence[int]) -> list[Candidate]:
    """Each of the timeouts without renewal and under each policy."""
    policies = (NO_RENEWAL, *timelines.names)
    means = zip(*(evaluate(curve, timelines, timeouts_s, policy) for policy in policies), strict=True)
    return [Candidate(timeout_s, list(each)) for timeout_s, each in zip(timeouts_s, means, strict=True)]


class ScheduledRenewal(NamedTuple):
    """One renewal: when, in seconds after the receive, and the deadline that it gives."""

    at_s: float
    deadline_s: float


# A renewal policy seen from outside, under a healthy service: for a timeout, the renewals of a lease that is received with it and
# never let go, until the policy stops.
Schedule = Callable[[int], Iterator[ScheduledRenewal]]


class Timeline:
    """The renewals of one policy for one timeout, played only as far as somebody has looked."""

    def __init__(self, schedule: Schedule | None, timeout_s: int) -> None:
        self._coming = iter(()) if schedule is None else schedule(timeout_s)
        self._at_s = [0.0]
        self._deadline_s = [float(timeout_s)]
        self._arrays: tuple[Floats, Floats] | None = None

    def until(self, horizon_s: float) -> tuple[Floats, Floats]:
        """The instants up to the horizon at which a window began, the receive first, and the deadline of each. The last
        deadline is where the lease ends, unless that is beyond the horizon."""
        while self._at_s[-1] < horizon_s and (renewal := next(self._coming, None)) is not None:
            if renewal.at_s >= self._deadline_s[-1]:  # too late: the window has ended
                self._coming = iter(())
                break
            self._at_s.append(renewal.at_s)
            self._deadline_s.append(renewal.deadline_s)
            self._arrays = None
        if self._arrays is None:
            self._arrays = np.array(self._at_s), np.array(self._deadline_s)
        at_s, deadline_s = self._arrays
        upto = max(bisect_left(self._at_s, horizon_s), 1)
        return at_s[:upto], deadline_s[:upto]


class Timelines:
    """Every timeline that was asked for, kept: queues differ in their work, not in what a policy does."""

    def __init__(self, schedules: Mapping[str, Schedule] | None = None) -> None:
        self._schedules = schedules or {}
        self.names = tuple(self._schedules)  # of the policies, without the one that renews nothing
        self._kept: dict[tuple[str, int], Timeline] = {}

    def of(self, policy: str, timeout_s: int) -> Timeline:
        """The timeline of a policy by its name; a name that no schedule has renews nothing."""
        key = (policy, timeout_s)
        timeline = self._kept.get(key)
        if timeline is None:
            timeline = self._kept[key] = Timeline(self._schedules.get(policy), timeout_s)
        return timeline
