"""Queues whose processing times have a known distribution: what the tables would tell of them, and what is true."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from statistics import NormalDist

from veil.pipeline.buckets import bucket_of
from veil.pipeline.history import History


@dataclass(frozen=True)
class Known:
    """A distribution of processing times: how to draw from it, and the true chance of taking longer than t seconds."""

    name: str
    draw: Callable[[Random], float]
    survival: Callable[[float], float]


def _lognormal(t: float, mu: float, sigma: float) -> float:
    return 1 - NormalDist(mu, sigma).cdf(math.log(t)) if t > 0 else 1.0


def _two_modes(random: Random) -> float:
    return random.lognormvariate(0.5, 0.4) if random.random() < 0.95 else random.lognormvariate(4, 0.3)


EXPONENTIAL = Known("exponential", lambda r: r.expovariate(1 / 3), lambda t: math.exp(-t / 3))
LOG_NORMAL = Known("log-normal", lambda r: r.lognormvariate(1.5, 1.0), lambda t: _lognormal(t, 1.5, 1.0))
BIMODAL = Known(
    "bimodal", _two_modes, lambda t: 0.95 * _lognormal(t, 0.5, 0.4) + 0.05 * _lognormal(t, 4, 0.3)
)
HEAVY_TAIL = Known(
    "heavy tail", lambda r: 2 * r.paretovariate(1.5), lambda t: 1.0 if t < 2 else (2 / t) ** 1.5
)
ALL = (EXPONENTIAL, LOG_NORMAL, BIMODAL, HEAVY_TAIL)


def history_of(
    known: Known,
    random: Random,
    *,
    leases: int,
    timeout_s: int,
    crash_every_s: float | None = None,
    release_share: float = 0.0,
    gives_up: bool = False,
) -> History:
    """The leases of a queue with that timeout. A holder that comes late says so, or gives up in silence."""
    history = History(leases=leases)
    history.saw_window(timeout_s * 1000, datetime(2026, 3, 2, tzinfo=UTC))
    history.windows[timeout_s * 1000] = leases
    at_deadline = bucket_of(timeout_s * 1000)
    for _ in range(leases):
        work_s = known.draw(random)
        crash_s = random.expovariate(1 / crash_every_s) if crash_every_s else math.inf
        released_s = random.expovariate(1 / 5) if random.random() < release_share else math.inf
        if released_s < min(work_s, timeout_s):
            history.censored[bucket_of(int(released_s * 1000))] += 1
        elif crash_s < work_s:
            history.lapsed += 1
            history.censored[at_deadline] += 1
            history.recovery[bucket_of(timeout_s * 1000 + 150)] += 1
        elif work_s <= timeout_s:
            history.deleted += 1
            history.processing[bucket_of(int(work_s * 1000))] += 1
        elif gives_up:
            history.lapsed += 1
            history.censored[at_deadline] += 1
            history.recovery[bucket_of(timeout_s * 1000 + 150)] += 1
        else:
            history.lapsed += 1
            history.overrun += 1
            history.duplicates += 1
            history.processing[bucket_of(int(work_s * 1000))] += 1
    return history
