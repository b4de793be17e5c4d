"""Renew early, for as long as the work deserves: Veil's own policy, and the default."""

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
from veil.consumer.renewal.usual_time import UsualTime

# Renewing at half of the window leaves the other half for some forty tries. Beyond a minute more reserve buys little: an
# outage that outlasts it is not a hiccup, and every second of reserve is paid for with more calls.
_RESERVE, _RESERVE_MAX_S = 1 / 2, 60.0
# What may be given up of that when the handler will most likely have ended by then: half, never more.
_RESERVE_LATE, _RESERVE_LATE_MAX_S = 1 / 4, 30.0
# The longer a handler has run, the more a crash has cost already, and the less it matters to wait a quarter of that again
# for the next try. This is what keeps hour-long handlers from calling twice a minute.
_SHARE_OF_AGE = 1 / 4
_QUANTILE = 0.95
_GRACE, _GRACE_MAX_S = 1 / 10, 2.0


class Adaptive(RenewalPolicy):
    """Windows that fit the work: long enough that the usual message needs one renewal or none, short enough that after a
    crash nobody waits much longer than the work itself takes; renewed with half of the window left for further tries."""

    def __init__(
        self,
        *,
        visibility: Duration | None = None,
        window_min: Duration = timedelta(seconds=30),
        window_max: Duration = timedelta(minutes=5),
        maximum: Duration = timedelta(hours=11, minutes=59),
        warn_before: Duration = timedelta(minutes=1),
    ) -> None:
        self.visibility_s = None if visibility is None else whole_seconds("visibility", visibility)
        self.window_min_s = whole_seconds("window_min", window_min)
        self.window_max_s = whole_seconds("window_max", window_max)
        if self.window_max_s < self.window_min_s:
            raise RenewalRefused(
                "window_max", f"{self.window_max_s} s", f"at least window_min={self.window_min_s} s"
            )
        self._maximum_s = seconds("maximum", maximum, least_s=1.0)
        self._warn_before_s = seconds("warn_before", warn_before)
        self._usual: dict[str, UsualTime] = {}
        if self.visibility_s is not None:
            self.check(self.visibility_s)

    def __repr__(self) -> str:
        return (
            f"Adaptive(visibility={self.visibility_s}, window_min={self.window_min_s}, window_max={self.window_max_s}, "
            f"maximum={self._maximum_s:g})"
        )

    @property
    def receive_visibility_s(self) -> int | None:
        return self.visibility_s

    @property
    def maximum_s(self) -> float:
        return self._maximum_s

    @property
    def warn_before_s(self) -> float:
        return self._warn_before_s

    def usual_s(self, kind: str = "") -> float | None:
        """How long 95 of 100 leases of that kind last at most, as far as known."""
        known_s = self._known_s(kind)
        return None if known_s is None else known_s[1]

    def observed(self, duration_s: float, kind: str = "") -> None:
        known = self._usual.get(kind)
        if known is None:
            known = self._usual[kind] = UsualTime(_QUANTILE)
        known.add(duration_s)

    def due_s(self, window: Window) -> float:
        # Of what is left when it comes to the keeper, not of the whole: a receive that waited twenty seconds for its
        # message would otherwise be followed by a renewal at once, for handlers that take milliseconds.
        length_s = window.deadline_s - window.since_s
        if length_s <= 0:
            return window.since_s
        early_s = window.deadline_s - min(length_s * _RESERVE, _RESERVE_MAX_S)
        late_s = window.deadline_s - min(length_s * _RESERVE_LATE, _RESERVE_LATE_MAX_S)
        known_s = self._known_s(window.kind)
        if known_s is None:
            return early_s
        half_done_s, done_s = window.held_at_s + known_s[0], window.held_at_s + known_s[1]
        if early_s < done_s <= late_s:
            return done_s  # hardly any is left to renew by then
        if window.since_s < half_done_s <= late_s < done_s:
            return late_s  # and of these only half
        return early_s

    def ask_s(self, window: Window, now_s: float) -> int:
        end_s = window.held_at_s + self._maximum_s
        ask_s = min(self._wanted_s(window, now_s), math.floor(end_s - now_s + 1e-6))
        return ask_s if now_s + ask_s > window.deadline_s else 0

    def _wanted_s(self, window: Window, now_s: float) -> int:
        age_s = now_s - window.held_at_s
        wanted_s = age_s * _SHARE_OF_AGE
        usual_s = self.usual_s(window.kind)
        if usual_s is not None and usual_s > age_s:
            # So long that the usual end falls before the next renewal.
            wanted_s = max(wanted_s, (usual_s - age_s) / (1 - _RESERVE_LATE))
        wanted_s = min(max(wanted_s, self.window_min_s), self.window_max_s)
        # The receive's own window is the wait after a crash that the queue's owner has accepted: no calls to undercut it.
        wanted_s = max(wanted_s, window.visibility_s)
        # After a long window a short one must still gain time.
        wanted_s = max(wanted_s, window.deadline_s - now_s + wanted_s * _RESERVE_LATE)
        return math.ceil(wanted_s - 1e-6)

    def _known_s(self, kind: str) -> tuple[float, float] | None:
        known = self._usual.get(kind)
        return None if known is None else known.known_s

    def slack_s(self, window: Window) -> float:
        return min((window.deadline_s - window.since_s) * _RESERVE_LATE, _RESERVE_LATE_MAX_S)

    def grace_s(self, window: Window) -> float:
        return min((window.deadline_s - window.asked_at_s) * _GRACE, _GRACE_MAX_S)
