"""The consumer's renewal policies, as the pipeline looks at them: what each would do to a lease that is never let go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from veil.consumer.renewal import Adaptive, Buffered, Heartbeat
from veil.consumer.renewal.policy import LIFETIME_S, RenewalPolicy, Window
from veil.pipeline.renewal_schedule import Renewal, RenewalSchedule

_LIFETIME_MARGIN_S: Final = 1  # as the keeper leaves it


def buffered(timeout_s: int) -> RenewalPolicy:
    """Buffered as it comes, on a queue of that timeout."""
    return Buffered()


def heartbeat(timeout_s: int) -> RenewalPolicy:
    """Heartbeat with that timeout, which it asks for itself; where its threshold of 5 s does not fit, half of the timeout."""
    threshold_s = min(5.0, timeout_s / 2)
    return Heartbeat(timeout=timeout_s, threshold=threshold_s, interval=min(1.0, threshold_s / 2))


def adaptive(timeout_s: int) -> RenewalPolicy:
    """Adaptive before it has learned how long its handlers take: later it calls less."""
    return Adaptive()


class PolicySchedule(NamedTuple):
    """One policy by the name that the findings use."""

    name: str
    policy: Callable[[int], RenewalPolicy]

    def renewals(self, timeout_s: int) -> Iterator[Renewal]:
        """As a keeper plays it whose every call succeeds at once."""
        return played(self.policy(timeout_s), timeout_s)


def played(policy: RenewalPolicy, timeout_s: int) -> Iterator[Renewal]:
    """The renewals of one lease from its receive on, until the policy or the twelve hours end them."""
    window = Window(
        received_at_s=0.0,
        visibility_s=timeout_s,
        held_at_s=0.0,
        epoch_s=0.0,
        asked_at_s=0.0,
        deadline_s=timeout_s,
    )
    end_s = min(policy.maximum_s, LIFETIME_S - _LIFETIME_MARGIN_S)
    while True:
        now_s = policy.due_s(window)
        if now_s >= end_s:
            return
        left_s = math.floor(LIFETIME_S - _LIFETIME_MARGIN_S - now_s + 1e-6)
        ask_s = policy.ask_s(window, now_s)
        if ask_s == 0 or (ask_s > left_s and now_s + left_s <= window.deadline_s):
            return
        window.asked_at_s, window.deadline_s = now_s, now_s + min(ask_s, left_s)
        yield Renewal(now_s, window.deadline_s)
        if ask_s > left_s:
            return


SCHEDULES: Final[tuple[RenewalSchedule, ...]] = (
    PolicySchedule("buffered", buffered),
    PolicySchedule("heartbeat", heartbeat),
    PolicySchedule("adaptive", adaptive),
)
