"""Look at every interval, renew what is within the threshold: the rule of the AWS Message Processing Framework for .NET."""

from __future__ import annotations

import math
from datetime import timedelta

from veil.consumer.renewal.policy import (
    Duration,
    RenewalPolicy,
    RenewalRefused,
    Window,
    seconds,
    whole_seconds,
)


class Heartbeat(RenewalPolicy):
    """At every `interval`, extend to `timeout` from now all that would end within `threshold`.

    The keeper sleeps through the beats at which nothing is due: the calls are those of a loop that looks every time.
    """

    def __init__(
        self,
        timeout: Duration = timedelta(seconds=30),
        threshold: Duration = timedelta(seconds=5),
        interval: Duration = timedelta(seconds=1),
        *,
        warn_before: Duration = timedelta(minutes=1),
    ) -> None:
        self.timeout_s = whole_seconds("timeout", timeout)
        self.threshold_s = seconds("threshold", threshold)
        self.interval_s = seconds("interval", interval)
        self._warn_before_s = seconds("warn_before", warn_before)
        if not 0 < self.threshold_s < self.timeout_s:
            raise RenewalRefused(
                "threshold",
                f"{self.threshold_s:g} s",
                f"more than 0 s and less than timeout={self.timeout_s} s",
            )
        if not 0 < self.interval_s < self.threshold_s:
            raise RenewalRefused(
                "interval",
                f"{self.interval_s:g} s",
                f"more than 0 s and less than threshold={self.threshold_s:g} s",
            )

    def __repr__(self) -> str:
        return f"Heartbeat(timeout={self.timeout_s}, threshold={self.threshold_s:g}, interval={self.interval_s:g})"

    @property
    def receive_visibility_s(self) -> int | None:
        return self.timeout_s

    @property
    def warn_before_s(self) -> float:
        return self._warn_before_s

    def due_s(self, window: Window) -> float:
        # The first beat within the threshold, and the first after the window was opened or came to the keeper.
        within = (window.deadline_s - self.threshold_s - window.epoch_s) / self.interval_s
        passed = (window.since_s - window.epoch_s) / self.interval_s
        beat = max(math.ceil(within - 1e-6), math.floor(passed + 1e-6) + 1)
        return window.epoch_s + beat * self.interval_s

    def ask_s(self, window: Window, now_s: float) -> int:
        return self.timeout_s

    def grace_s(self, window: Window) -> float:
        return self.threshold_s
