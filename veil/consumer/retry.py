"""What a handler raises to say what shall become of its message, and how long a retry waits."""

from __future__ import annotations

import math
from collections.abc import Callable

from veil.consumer.lease import Lease
from veil.consumer.outcome import Backoff, DeadLetter, Discard, Fatal, LetExpire, Outcome, Release, RetryAfter
from veil.core.limits import VISIBILITY_MAX_S

# Between this decision and the service's there is a request; a delay to the last second would be refused.
_MARGIN_S = 1.0
# A bare `Retry()` waits as the default policy would.
DEFAULT_BACKOFF = Backoff(base_s=5.0)


class Verdict(Exception):
    """The root of what a handler raises on purpose; it wins over the failure policy."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def outcome(self) -> Outcome:
        """What the handler asks for."""
        raise NotImplementedError


class Retry(Verdict):
    """Try again later: after so many seconds, or backing off by receive count when none are given."""

    def __init__(self, reason: str = "", *, after_s: float | None = None) -> None:
        super().__init__(reason)
        self._outcome = DEFAULT_BACKOFF if after_s is None else RetryAfter(after_s)

    @property
    def outcome(self) -> Outcome:
        return self._outcome


class RetryNow(Verdict):
    """Make it visible at once, for whoever receives next."""

    @property
    def outcome(self) -> Outcome:
        return Release()


class Reject(Verdict):
    """Send it to the dead letters now: another try would end the same way."""

    @property
    def outcome(self) -> Outcome:
        return DeadLetter(self.reason, error=self)


class Drop(Verdict):
    """Take it out of the queue although it was not handled."""

    @property
    def outcome(self) -> Outcome:
        return Discard()


class Stop(Verdict):
    """Release it and stop the whole consumer."""

    @property
    def outcome(self) -> Outcome:
        return Fatal(self.reason)


def backoff_s(backoff: Backoff, receive_count: int, random: Callable[[], float]) -> float:
    """How long to wait before the next try, `random` being from [0, 1)."""
    try:
        full_s = backoff.base_s * backoff.factor ** max(0, receive_count - 1)
    except OverflowError:  # received a thousand times
        full_s = backoff.cap_s
    return min(full_s, backoff.cap_s) * (1 - backoff.jitter * random())


def held_s(lease: Lease) -> float:
    """How long ago the lease began, by its own clock."""
    return lease.deadline_s - lease.remaining_s - lease.received_at_s


def settled(outcome: Outcome, lease: Lease, receive_count: int, random: Callable[[], float]) -> Outcome:
    """The outcome as a runner can carry it out: a backoff made a delay, a delay in whole seconds that the lease allows."""
    if isinstance(outcome, Backoff):
        wanted_s = backoff_s(outcome, receive_count, random)
    elif isinstance(outcome, RetryAfter):
        wanted_s = outcome.seconds
    else:
        return outcome
    # Twelve hours after its receive a message shows itself, whatever anybody asks; asking for more is an error.
    left_s = math.floor(VISIBILITY_MAX_S - held_s(lease) - _MARGIN_S)
    if left_s < 0:
        return LetExpire()
    # Rounded up, because a delay of 0 means "at once" and a small one does not.
    return RetryAfter(min(math.ceil(wanted_s), left_s))
