"""What a renewal policy is: from the facts of one window, when to renew it and for how long. No clock, no I/O."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

LIFETIME_S = 43_200  # no lease lasts longer than this after its receive, however often it is extended
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


class RenewalPolicy(Protocol):
    """When to renew a lease, and for how long. The keeper adds what no policy may get wrong: it retries what failed,
    never asks for more than is left of the twelve hours, and says when a lease is lost."""

    @property
    def receive_visibility_s(self) -> int | None:
        """What a receive should ask for; None leaves it to the queue."""
        return None

    @property
    def renews(self) -> bool:
        """Whether it ever renews anything."""
        return True

    @property
    def maximum_s(self) -> float:
        """How long after it took a lease over the keeper renews it at most."""
        return LIFETIME_S

    @property
    def warn_before_s(self) -> float:
        """How long before the maximum the handler is warned."""
        return 60.0

    def due_s(self, window: Window) -> float:
        """The instant at which the window should be renewed; infinity for never."""
        ...

    def ask_s(self, window: Window, now_s: float) -> int:
        """The visibility to ask for now, in whole seconds; 0 when there is nothing more to gain."""
        ...

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


def seconds(name: str, value: Duration, *, least_s: float = 0.0, most_s: float = LIFETIME_S) -> float:
    """A length given as timedelta or as seconds, in seconds; refused outside the range."""
    if isinstance(value, timedelta):
        length_s = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length_s = float(value)
    else:
        raise RenewalRefused(name, repr(value), "a timedelta, or seconds as a number")
    if not (least_s <= length_s <= most_s):  # a NaN is outside of everything
        raise RenewalRefused(name, _shown(value), f"{least_s:g} s to {most_s:g} s")
    return length_s


def whole_seconds(name: str, value: Duration, *, least_s: int = 1, most_s: int = LIFETIME_S) -> int:
    """The same where the service counts in whole seconds."""
    length_s = seconds(name, value, least_s=least_s, most_s=most_s)
    if length_s != math.floor(length_s):
        raise RenewalRefused(name, _shown(value), "whole seconds, as the service counts")
    return int(length_s)


def _shown(value: Duration) -> str:
    return f"{value.total_seconds() if isinstance(value, timedelta) else value:g} s"
