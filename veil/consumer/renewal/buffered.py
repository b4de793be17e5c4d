"""Renew shortly before the window ends: the rule of the NServiceBus SQS transport."""

from __future__ import annotations

import math
from datetime import timedelta

from veil.consumer.renewal.policy import Duration, RenewalPolicy, Window, seconds, whole_seconds

BUFFER_MAX_S = 10.0
AT_ONCE_BELOW_S = 0.4


class Buffered(RenewalPolicy):
    """Renew `min(remaining / 2, 10 s)` before the deadline, by the queue's timeout plus what is left, for `max_duration`."""

    def __init__(
        self,
        max_duration: Duration = timedelta(minutes=5),
        visibility: Duration | None = None,
        *,
        warn_before: Duration = timedelta(seconds=30),
    ) -> None:
        self.max_duration_s = seconds("max_duration", max_duration)
        self.visibility_s = (
            None
            if visibility is None
            else whole_seconds("visibility", visibility, least_s=1 if self.max_duration_s else 0)
        )
        self._warn_before_s = seconds("warn_before", warn_before)
        if self.visibility_s is not None:
            self.check(self.visibility_s)

    def __repr__(self) -> str:
        return f"Buffered(max_duration={self.max_duration_s:g}, visibility={self.visibility_s})"

    @property
    def receive_visibility_s(self) -> int | None:
        return self.visibility_s

    @property
    def renews(self) -> bool:
        return self.max_duration_s > 0

    @property
    def maximum_s(self) -> float:
        return self.max_duration_s

    @property
    def warn_before_s(self) -> float:
        return self._warn_before_s

    def due_s(self, window: Window) -> float:
        if not self.renews:
            return math.inf
        remaining_s = _remaining_s(window, window.since_s)
        if remaining_s < AT_ONCE_BELOW_S:
            return window.since_s
        return window.deadline_s - min(remaining_s / 2, BUFFER_MAX_S)

    def ask_s(self, window: Window, now_s: float) -> int:
        visibility_s = int(window.visibility_s)
        # The distance counts on both sides of the deadline: what was left is given back, and being late by as much
        # suggests being late again.
        return max(abs(math.trunc(_remaining_s(window, now_s))) + visibility_s, visibility_s)

    def grace_s(self, window: Window) -> float:
        return min(window.visibility_s / 2, BUFFER_MAX_S) if self.renews else 0.0


def _remaining_s(window: Window, now_s: float) -> float:
    # Whole microseconds: 30 - 29.6 must not fall below 0.4, nor 10 s be truncated to 9, for a bit of floating point.
    return round(window.deadline_s - now_s, 6)
