"""What a renewal policy is, and the four there are: Veil's own (`Adaptive`, the default), NServiceBus's (`Buffered`), the AWS
framework's (`Heartbeat`), and none. From the facts of one window a policy says when to renew it and for how long. They are pure.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from veil.core.limits import VISIBILITY_MAX_S

LIFETIME_S = (
    VISIBILITY_MAX_S  # no lease lasts longer than this after its receive, however often it is extended
)
Duration = timedelta | float


class RenewalRefused(ValueError):
    """A setting of a renewal policy cannot work."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value}: expected {expected}")
        self.name, self.value, self.expected = name, value, expected


class RenewalWarning(UserWarning):
    """A setting of a renewal policy works, and is hardly what was meant."""


@dataclass(slots=True, eq=False)
class Window:
    """The facts on which a policy decides. Instants are monotonic seconds."""

    received_at_s: float  # from before the receive was sent
    visibility_s: float  # what the receive gave
    held_at_s: float  # when the keeper took it over
    epoch_s: float  # since when the keeper has had leases at all
    asked_at_s: float  # from before the request that opened this window was sent
    deadline_s: float
    kind: str = ""

    @property
    def since_s(self) -> float:
        """Since when this window has been the keeper's to renew."""
        return max(self.held_at_s, self.asked_at_s)


class RenewalPolicy:
    """When to renew a lease, and for how long. The keeper adds what no policy may get wrong: it retries what failed, never asks
    for more than is left of the twelve hours, and says when a lease is lost."""

    receive_visibility_s: int | None = None  # what a receive should ask for; None leaves it to the queue
    renews: bool = True  # whether it ever renews anything
    maximum_s: float = LIFETIME_S  # how long after it took a lease over the keeper renews it at most
    warn_before_s: float = 60.0  # how long before the maximum the handler is warned

    def due_s(self, window: Window) -> float:
        """The instant at which the window should be renewed; infinity for never."""
        return math.inf

    def ask_s(self, window: Window, now_s: float) -> int:
        """The visibility to ask for now, in whole seconds; 0 when there is nothing more to gain."""
        return 0

    def slack_s(self, window: Window) -> float:
        """How much earlier than due it may be renewed to fill up a call that is made anyway."""
        return 0.0

    def grace_s(self, window: Window) -> float:
        """How long after the deadline a renewal is still tried before the lease counts as lost."""
        return 0.0

    def observed(self, duration_s: float, kind: str = "") -> None:
        """A lease of that kind was let go by its holder after so long."""
        return

    def check(self, visibility_s: float) -> None:
        """Refuse a queue's timeout that the policy cannot work with."""
        if not self.renews:
            return
        if not 0 < visibility_s <= LIFETIME_S:
            raise RenewalRefused(
                "visibility",
                f"{visibility_s:g} s",
                "1 s to 12 h: a window of 0 s cannot be renewed, use NoRenewal()",
            )
        if self.maximum_s < visibility_s:
            warnings.warn(
                f"renewal stops {self.maximum_s:g} s after the receive, before the first window of {visibility_s:g} s ends: "
                "nothing will ever be renewed",
                RenewalWarning,
                stacklevel=3,
            )


def seconds(name: str, value: Duration, *, least_s: float = 0.0) -> float:
    """A length given as timedelta or as seconds, in seconds; refused outside the range."""
    if isinstance(value, timedelta):
        length_s = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length_s = float(value)
    else:
        raise RenewalRefused(name, repr(value), "a timedelta, or seconds as a number")
    if not (least_s <= length_s <= LIFETIME_S):  # a NaN is outside of everything
        raise RenewalRefused(name, _shown(value), f"{least_s:g} s to {LIFETIME_S:g} s")
    return length_s


def whole_seconds(name: str, value: Duration, *, least_s: int = 1) -> int:
    """The same where the service counts in whole seconds."""
    length_s = seconds(name, value, least_s=least_s)
    if length_s != math.floor(length_s):
        raise RenewalRefused(name, _shown(value), "whole seconds, as the service counts")
    return int(length_s)


def _visibility_s(value: Duration | None, *, least_s: int = 1) -> int | None:
    return None if value is None else whole_seconds("visibility", value, least_s=least_s)


def _shown(value: Duration) -> str:
    return f"{value.total_seconds() if isinstance(value, timedelta) else value:g} s"


# ---- handling times

_MEMORY = 256  # what changed is learned within a few hundred messages
_ENOUGH = 10


class UsualTime:
    """The median and a high quantile of the latest durations."""

    __slots__ = ("_added", "_high", "_known", "_latest", "_stale")

    def __init__(self, high: float) -> None:
        self._high = high
        self._latest: deque[float] = deque(maxlen=_MEMORY)
        self._added = 0
        self._known: tuple[float, float] | None = None
        self._stale = False

    def add(self, duration_s: float) -> None:
        """One more has ended."""
        self._latest.append(duration_s)
        self._added += 1
        # Seldom once there are many: one more of them moves nothing.
        self._stale = self._stale or self._added <= 64 or self._added % 64 == 0

    @property
    def known_s(self) -> tuple[float, float] | None:
        """Both; None until there is enough to tell."""
        count = len(self._latest)
        if self._stale and count >= _ENOUGH:
            self._stale = False
            ordered = sorted(self._latest)
            self._known = ordered[(count - 1) // 2], ordered[math.ceil(count * self._high) - 1]
        return self._known


# ---- Adaptive

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
    crash the next holder waits hardly longer than the work itself takes; renewed with half of the window left for more tries."""

    def __init__(
        self,
        *,
        visibility: Duration | None = None,
        window_min: Duration = timedelta(seconds=30),
        window_max: Duration = timedelta(minutes=5),
        maximum: Duration = timedelta(hours=11, minutes=59),
        warn_before: Duration = timedelta(minutes=1),
    ) -> None:
        self.receive_visibility_s = _visibility_s(visibility)
        self.window_min_s = whole_seconds("window_min", window_min)
        self.window_max_s = whole_seconds("window_max", window_max)
        if self.window_max_s < self.window_min_s:
            raise RenewalRefused(
                "window_max", f"{self.window_max_s} s", f"at least window_min={self.window_min_s} s"
            )
        self.maximum_s = seconds("maximum", maximum, least_s=1.0)
        self.warn_before_s = seconds("warn_before", warn_before)
        self._usual: dict[str, UsualTime] = {}
        if self.receive_visibility_s is not None:
            self.check(self.receive_visibility_s)

    def __repr__(self) -> str:
        return (
            f"Adaptive(visibility={self.receive_visibility_s}, window_min={self.window_min_s}, "
            f"window_max={self.window_max_s}, maximum={self.maximum_s:g})"
        )

    def known_s(self, kind: str = "") -> tuple[float, float] | None:
        """How long half and how long 95 of 100 leases of that kind last at most, as far as known."""
        known = self._usual.get(kind)
        return None if known is None else known.known_s

    def observed(self, duration_s: float, kind: str = "") -> None:
        known = self._usual.get(kind)
        if known is None:
            known = self._usual[kind] = UsualTime(_QUANTILE)
        known.add(duration_s)

    def due_s(self, window: Window) -> float:
        # Of the window that is left when it comes to the keeper, not of the whole: a receive that waited twenty seconds for its
        # message would otherwise be followed by a renewal at once, for handlers that take milliseconds.
        length_s = window.deadline_s - window.since_s
        if length_s <= 0:
            return window.since_s
        early_s = window.deadline_s - min(length_s * _RESERVE, _RESERVE_MAX_S)
        late_s = window.deadline_s - min(length_s * _RESERVE_LATE, _RESERVE_LATE_MAX_S)
        known_s = self.known_s(window.kind)
        if known_s is None:
            return early_s
        half_done_s, done_s = window.held_at_s + known_s[0], window.held_at_s + known_s[1]
        if early_s < done_s <= late_s:
            return done_s  # hardly any is left to renew by then
        if window.since_s < half_done_s <= late_s < done_s:
            return late_s  # and of these only half
        return early_s

    def ask_s(self, window: Window, now_s: float) -> int:
        end_s = window.held_at_s + self.maximum_s
        ask_s = min(self._wanted_s(window, now_s), math.floor(end_s - now_s + 1e-6))
        return ask_s if now_s + ask_s > window.deadline_s else 0

    def _wanted_s(self, window: Window, now_s: float) -> int:
        age_s = now_s - window.held_at_s
        wanted_s = age_s * _SHARE_OF_AGE
        known_s = self.known_s(window.kind)
        if known_s is not None and known_s[1] > age_s:
            # So long that the usual end falls before the next renewal.
            wanted_s = max(wanted_s, (known_s[1] - age_s) / (1 - _RESERVE_LATE))
        wanted_s = min(max(wanted_s, self.window_min_s), self.window_max_s)
        # The receive's own window is the wait after a crash that the queue's owner has accepted: no calls to undercut it.
        wanted_s = max(wanted_s, window.visibility_s)
        # After a long window a short one must still gain time.
        wanted_s = max(wanted_s, window.deadline_s - now_s + wanted_s * _RESERVE_LATE)
        return math.ceil(wanted_s - 1e-6)

    def slack_s(self, window: Window) -> float:
        return min((window.deadline_s - window.since_s) * _RESERVE_LATE, _RESERVE_LATE_MAX_S)

    def grace_s(self, window: Window) -> float:
        return min((window.deadline_s - window.asked_at_s) * _GRACE, _GRACE_MAX_S)


# ---- Buffered

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
        self.maximum_s = seconds("max_duration", max_duration)
        self.renews = self.maximum_s > 0
        self.receive_visibility_s = _visibility_s(visibility, least_s=1 if self.renews else 0)
        self.warn_before_s = seconds("warn_before", warn_before)
        if self.receive_visibility_s is not None:
            self.check(self.receive_visibility_s)

    def __repr__(self) -> str:
        return f"Buffered(max_duration={self.maximum_s:g}, visibility={self.receive_visibility_s})"

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


# ---- Heartbeat


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
        self.receive_visibility_s = self.timeout_s = whole_seconds("timeout", timeout)
        self.threshold_s = seconds("threshold", threshold)
        self.interval_s = seconds("interval", interval)
        self.warn_before_s = seconds("warn_before", warn_before)
        for name, length_s, limit, limit_s in (
            ("threshold", self.threshold_s, "timeout", self.timeout_s),
            ("interval", self.interval_s, "threshold", self.threshold_s),
        ):
            if not 0 < length_s < limit_s:
                raise RenewalRefused(
                    name, f"{length_s:g} s", f"more than 0 s and less than {limit}={limit_s:g} s"
                )

    def __repr__(self) -> str:
        return f"Heartbeat(timeout={self.timeout_s}, threshold={self.threshold_s:g}, interval={self.interval_s:g})"

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


# ---- NoRenewal


class NoRenewal(RenewalPolicy):
    """Nothing is renewed; a handler is still notified when its window has ended."""

    renews = False

    def __init__(self, *, visibility: Duration | None = None) -> None:
        self.receive_visibility_s = _visibility_s(visibility)

    def __repr__(self) -> str:
        return f"NoRenewal(visibility={self.receive_visibility_s})"
