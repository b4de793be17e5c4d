"""Queues whose processing times have a known distribution: what the tables would tell of them, and what is true."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from statistics import NormalDist
from typing import Any

import numpy as np

from veil.pipeline.lifecycles.tables import BUCKET_MAX, PER_OCTAVE, bucket_of
from veil.pipeline.timeouts.history import History


@dataclass(frozen=True)
class Known:
    """A distribution of processing times: how to draw from it, and the true chance of taking longer than t seconds."""

    name: str
    draw: Callable[[Random], float]
    survival: Callable[[float], float]
    draws: Callable[[np.random.Generator, int], Any] | None = None  # many at once


def _lognormal(t: float, mu: float, sigma: float) -> float:
    return 1 - NormalDist(mu, sigma).cdf(math.log(t)) if t > 0 else 1.0


def _two_modes(random: Random) -> float:
    return random.lognormvariate(0.5, 0.4) if random.random() < 0.95 else random.lognormvariate(4, 0.3)


EXPONENTIAL = Known(
    "exponential",
    lambda r: r.expovariate(1 / 3),
    lambda t: math.exp(-t / 3),
    lambda r, n: r.exponential(3, n),
)
LOG_NORMAL = Known(
    "log-normal",
    lambda r: r.lognormvariate(1.5, 1.0),
    lambda t: _lognormal(t, 1.5, 1.0),
    lambda r, n: r.lognormal(1.5, 1.0, n),
)
BIMODAL = Known(
    "bimodal",
    _two_modes,
    lambda t: 0.95 * _lognormal(t, 0.5, 0.4) + 0.05 * _lognormal(t, 4, 0.3),
    lambda r, n: np.where(r.random(n) < 0.95, r.lognormal(0.5, 0.4, n), r.lognormal(4, 0.3, n)),
)
HEAVY_TAIL = Known(
    "heavy tail",
    lambda r: 2 * r.paretovariate(1.5),
    lambda t: 1.0 if t < 2 else (2 / t) ** 1.5,
    lambda r, n: 2 * (1 + r.pareto(1.5, n)),
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
            history.unknown += 1
            history.lapses[at_deadline] += 1
            history.recovery_unknown[bucket_of(timeout_s * 1000 + 150)] += 1
        elif work_s <= timeout_s:
            history.processing[bucket_of(int(work_s * 1000))] += 1
        elif gives_up:
            history.unknown += 1
            history.lapses[at_deadline] += 1
            history.recovery_unknown[bucket_of(timeout_s * 1000 + 150)] += 1
        else:
            history.duplicates += 1
            history.overrun += 1
            history.processing[bucket_of(int(work_s * 1000))] += 1
    return history


def quick_history_of(
    known: Known,
    seed: int,
    *,
    leases: int,
    timeout_s: int,
    crash_every_s: float = math.inf,
    release_share: float = 0.0,
    gives_up: bool = False,
) -> History:
    """The same with all leases drawn at once: what a test of hundreds of queues needs."""
    random = np.random.default_rng(seed)
    assert known.draws is not None
    work_s = known.draws(random, leases)
    crash_s = random.exponential(1, leases) * crash_every_s
    released_s = np.where(random.random(leases) < release_share, random.exponential(5, leases), math.inf)
    released = released_s < np.minimum(work_s, timeout_s)
    crashed = ~released & (crash_s < work_s)
    in_time = ~released & ~crashed & (work_s <= timeout_s)
    late = ~released & ~crashed & ~in_time
    silent = int(crashed.sum() + (late.sum() if gives_up else 0))
    history = History(leases=leases, unknown=silent)
    history.saw_window(timeout_s * 1000, datetime(2026, 3, 2, tzinfo=UTC))
    history.windows[timeout_s * 1000] = leases
    history.censored.update(_buckets(released_s[released]))
    history.processing.update(_buckets(work_s[in_time] if gives_up else work_s[in_time | late]))
    if silent:
        history.lapses[bucket_of(timeout_s * 1000)] = silent
    if not gives_up:
        history.duplicates = history.overrun = int(late.sum())
    return history


def _buckets(lengths_s: Any) -> dict[int, int]:
    octaves = np.log2(np.maximum(np.floor(lengths_s * 1000), 1.0))
    buckets, counts = np.unique(np.minimum(np.floor(octaves * PER_OCTAVE), BUCKET_MAX), return_counts=True)
    return dict(zip(buckets.astype(int).tolist(), counts.tolist(), strict=True))
