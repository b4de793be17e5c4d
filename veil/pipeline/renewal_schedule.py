"""When a renewal policy would renew a lease, as far as the estimates need it. The policies themselves are the consumer's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
