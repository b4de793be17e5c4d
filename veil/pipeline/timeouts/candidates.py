"""What each timeout that a queue could have would mean: the chance of a duplicate, the wait after a crash, the calls.

A duplicate comes about when work outlasts the last deadline that its lease is given. A crash is taken as equally likely at
every moment of work, so its instant has the density of the survival curve, as far as the lease reaches; the message is
visible again at the deadline in force at that instant. When a policy would renew is the consumer's affair: a RenewalSchedule
says it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from veil.core.findings import NO_RENEWAL, Candidate, WithPolicy
from veil.core.limits import VISIBILITY_MAX_S
from veil.pipeline.timeouts.survival import Floats, Survival

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
    sent = _at(at_s, curve, curve.chance)
    sent[first] = 0.0
    calls = np.add.reduceat(sent, first)
    chance, high = _at(ends_s, curve, curve.chance), _at(ends_s, curve, curve.high)
    columns = (chance.tolist(), high.tolist(), recovery_s.tolist(), calls.tolist())
    return [WithPolicy(policy, *values) for values in zip(*columns, strict=True)]


def candidates(curve: Survival, timelines: Timelines, timeouts_s: Sequence[int]) -> list[Candidate]:
    """Each of the timeouts without renewal and under each policy."""
    policies = (NO_RENEWAL, *timelines.names)
    means = zip(*(evaluate(curve, timelines, timeouts_s, policy) for policy in policies), strict=True)
    return [Candidate(timeout_s, list(each)) for timeout_s, each in zip(timeouts_s, means, strict=True)]


def _at(instants_s: Floats, curve: Survival, values: Floats) -> Floats:
    found: Floats = np.interp(instants_s, curve.after_s, values)
    return found


class Renewal(NamedTuple):
    """One renewal: when, in seconds after the receive, and the deadline that it gives."""

    at_s: float
    deadline_s: float


class RenewalSchedule(Protocol):
    """A renewal policy seen from outside, under a healthy service: every call succeeds at once."""

    @property
    def name(self) -> str:
        """What the findings call it."""
        ...

    def renewals(self, timeout_s: int) -> Iterator[Renewal]:
        """The renewals of a lease that is received with that timeout and never let go, until the policy stops."""
        ...


class Timeline:
    """The renewals of one policy for one timeout, played only as far as somebody has looked."""

    def __init__(self, schedule: RenewalSchedule | None, timeout_s: int) -> None:
        self._coming = iter(()) if schedule is None else schedule.renewals(timeout_s)
        self._at_s = [0.0]
        self._deadline_s = [float(timeout_s)]
        self._ended = False
        self._arrays: tuple[Floats, Floats] | None = None

    def until(self, horizon_s: float) -> tuple[Floats, Floats]:
        """The instants up to the horizon at which a window began, the receive first, and the deadline of each. The last
        deadline is where the lease ends, unless that is beyond the horizon."""
        while not self._ended and self._at_s[-1] < horizon_s:
            renewal = next(self._coming, None)
            if renewal is None or renewal.at_s >= self._deadline_s[-1]:  # too late: the window has ended
                self._ended = True
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

    def __init__(self, schedules: tuple[RenewalSchedule, ...] = ()) -> None:
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._kept: dict[tuple[str, int], Timeline] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The policies, without the one that renews nothing."""
        return tuple(self._schedules)

    def of(self, policy: str, timeout_s: int) -> Timeline:
        """The timeline of a policy by its name; a name that no schedule has renews nothing."""
        key = (policy, timeout_s)
        timeline = self._kept.get(key)
        if timeline is None:
            timeline = self._kept[key] = Timeline(self._schedules.get(policy), timeout_s)
        return timeline
