"""The survival curve of the processing time: Kaplan and Meier's estimate over the histogram, with Greenwood's variance.

Where in its bucket an observation lies is unknown, so it must not matter. At the edges of buckets it does not: how many
observations lie beyond an edge is counted, not guessed. In between, completions are spread evenly over the bucket, an error
of second order in its width of 4.4 %. Deadlines are the exception: all leases of one window are censored at one and the same
instant, somewhere inside a bucket, so that instant becomes an edge itself, and how many completions of that bucket came after
it is taken from the bucket that follows. Other censored observations leave half-way
through their bucket (the actuarial rule). Leases that crashed left at unknown instants; that is taken as equally likely at
every moment of work, which gives the rate of crashes and, with it, how many were at risk at each edge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veil.pipeline.lifecycles.tables import lower_ms, upper_ms
from veil.pipeline.timeouts.history import bucket_of_s

Floats = NDArray[np.float64]
Z: Final = 1.959964  # 95 %, both sides
_TAIL: Final = 0.025
_ONE_LEFT: Final = (
    5.5716  # of so many expected, one or none is left once in forty times: the upper end for one
)


@dataclass(frozen=True, slots=True)
class Survival:
    """The chance that work takes longer than each of `after_s`, which rise from 0; straight lines between them."""

    after_s: Floats
    chance: Floats
    low: Floats
    high: Floats
    at_risk: Floats
    worked_s: Floats  # the integral of the chance from 0; between the edges, see `integrals`
    moment_s2: Floats  # the same of time × chance
    crashes_per_s: float  # of work

    @property
    def end_s(self) -> float:
        """Beyond this nothing was observed."""
        return float(self.after_s[-1])

    def at(self, after_s: float) -> tuple[float, float, float]:
        """The chance at an instant and its interval; beyond the end, where it can only fall, what it was there."""
        chance, low, high = (
            float(np.interp(after_s, self.after_s, each)) for each in (self.chance, self.low, self.high)
        )
        return chance, low, high

    def integrals(self, upto_s: Floats) -> tuple[Floats, Floats]:
        """The integrals of the chance, and of time × chance, from 0 to each instant, none of them beyond the end."""
        piece = np.minimum(np.searchsorted(self.after_s, upto_s, side="right") - 1, len(self.after_s) - 2)
        begin_s, at_begin = self.after_s[piece], self.chance[piece]
        at_end = np.interp(upto_s, self.after_s, self.chance)
        width_s = upto_s - begin_s
        worked_s = self.worked_s[piece] + width_s * (at_begin + at_end) / 2
        return worked_s, self.moment_s2[piece] + _moment_s2(begin_s, upto_s, at_begin, at_end)

    def quantile_s(self, share: float) -> float | None:
        """The time within which that share of the work is done; None where the curve does not come down so far."""
        wanted = 1.0 - share
        below = int(np.searchsorted(-self.chance, -wanted, side="left"))
        if below == len(self.chance):
            return None
        if below == 0:
            return float(self.after_s[0])
        above_s, below_s = self.after_s[below - 1], self.after_s[below]
        above, under = self.chance[below - 1], self.chance[below]
        return float(above_s + (below_s - above_s) * (above - wanted) / (above - under))


def estimate(
    completed: Mapping[int, int],
    elsewhere: Mapping[int, int],
    at_work: Sequence[tuple[float, float]] = (),
    crashed: float = 0.0,
) -> Survival:
    """The curve from complete observations by bucket, those censored somewhere in a bucket, those censored at an
    instant (seconds, count), and a number that crashed at unknown instants."""
    begin_s, end_s, done, gone, cut = _pieces(completed, elsewhere, at_work)
    middle_s = (begin_s + end_s) / 2
    left = done + gone
    rate = _crash_rate(left, middle_s, cut, end_s, crashed)
    # How many were at risk at the beginning of each piece: all that left in it or later, and those that crashed since.
    grown = left * np.exp(rate * middle_s) + cut * np.exp(rate * end_s)
    suffix = np.append(np.cumsum(grown[::-1])[::-1], 0.0)
    risk = suffix[:-1] * np.exp(-rate * begin_s)
    after = suffix[1:] * np.exp(-rate * end_s)
    exposed = np.maximum(risk * np.exp(-rate * (middle_s - begin_s)) - gone / 2, done)
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = np.where(done > 0, np.minimum(done / exposed, 1.0), 0.0)
        chance: Floats = np.cumprod(1.0 - hazard, dtype=np.float64)
        chance[chance < 1e-12] = 0.0
        greenwood: Floats = np.cumsum(np.where(done > 0, done / (exposed * (exposed - done)), 0.0))
    low, high = _interval(chance, greenwood, float(risk[0]) if len(risk) else 0.0)
    return _curve(begin_s, end_s, chance, low, high, risk, after, rate)


def worse_of(one: Survival, other: Survival) -> Survival:
    """The greater chance of both at each instant; who was at risk, and the rate of crashes, as the first has them."""
    after_s = np.union1d(one.after_s, other.after_s)

    def greater(name: str) -> Floats:
        found: Floats = np.maximum(
            *(np.interp(after_s, each.after_s, getattr(each, name)) for each in (one, other))
        )
        return found

    at_risk = np.interp(after_s, one.after_s, one.at_risk)
    return _joined(after_s, greater("chance"), greater("low"), greater("high"), at_risk, one.crashes_per_s)


def _pieces(
    completed: Mapping[int, int], elsewhere: Mapping[int, int], at_work: Sequence[tuple[float, float]]
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Buckets, cut in two at each instant of censoring: begin, end, completed, censored within, censored at the end."""
    instants: dict[int, dict[float, float]] = {}
    for at_s, count in at_work:
        if count > 0:
            within = instants.setdefault(bucket_of_s(at_s), {})
            within[at_s] = within.get(at_s, 0.0) + count
    rows: list[tuple[float, float, float, float, float]] = []
    for bucket in sorted({*completed, *elsewhere, *instants}):
        begin_s, end_s = lower_ms(bucket) / 1000, upper_ms(bucket) / 1000
        done, gone = completed.get(bucket, 0), elsewhere.get(bucket, 0)
        here = instants.get(bucket)
        if here is None:
            rows.append((begin_s, end_s, done, gone, 0.0))
            continue
        # Where holders give up at the deadline nothing is completed after it, and to spread the bucket's completions over
        # all of it would invent some: of what follows the instant, the next bucket tells.
        last_s = max(here)
        late_s = end_s - last_s
        next_width_s = (upper_ms(bucket + 1) - end_s * 1000) / 1000
        late = min(float(done), completed.get(bucket + 1, 0) * late_s / next_width_s)
        if last_s <= begin_s:  # the deadline is the bucket's lower edge
            rows += [(begin_s, begin_s, 0.0, 0.0, here[last_s]), (begin_s, end_s, done, gone, 0.0)]
            continue
        from_s = begin_s
        for to_s in sorted(here):
            share = (to_s - from_s) / (last_s - begin_s)
            rows.append((from_s, to_s, (done - late) * share, gone * share, here[to_s]))
            from_s = to_s
        if late > 0:
            rows.append((last_s, end_s, late, 0.0, 0.0))
    if not rows:
        rows.append((0.0, lower_ms(1) / 1000, 0.0, 0.0, 0.0))
    columns = np.array(rows, dtype=np.float64).T
    return columns[0], columns[1], columns[2], columns[3], columns[4]


def _crash_rate(left: Floats, middle_s: Floats, cut: Floats, end_s: Floats, crashed: float) -> float:
    """Crashes per second of work: the rate at which those that left at t stand for e^(rate t) that began."""
    times = np.concatenate([middle_s, end_s])
    weights = np.concatenate([left, cut])
    # What left at once, since it was received without a window, gave nobody the time to crash.
    times, weights = times[(weights > 0) & (times > 0)], weights[(weights > 0) & (times > 0)]
    if crashed <= 0 or not len(times):
        return 0.0
    began = float(weights.sum()) + crashed
    # Newton's steps from above on a convex function that rises: each stays above the root.
    rate = float(np.min(np.log(began / weights) / times))
    for _ in range(100):
        grown = weights * np.exp(rate * times)
        step = (float(grown.sum()) - began) / float((grown * times).sum())
        rate -= step
        if abs(step) <= 1e-9 * rate:
            break
    return max(rate, 0.0)


def _interval(chance: Floats, greenwood: Floats, began: float) -> tuple[Floats, Floats]:
    """The log-log interval; where nothing is left of the curve, or nothing gone, the exact one of none out of so many."""
    low, high = np.zeros_like(chance), np.ones_like(chance)
    inner = (chance > 0) & (chance < 1)
    log_chance = np.log(chance[inner])
    spread = np.exp(Z * np.sqrt(greenwood[inner]) / np.abs(log_chance))
    low[inner] = np.exp(log_chance * spread)
    high[inner] = np.exp(log_chance / spread)
    effective = began
    whole = inner & (chance * began >= 1)
    if whole.any():
        last = int(np.flatnonzero(whole)[-1])
        effective = float((1 - chance[last]) / (chance[last] * greenwood[last]))
    if began > 0:
        low[chance >= 1] = math.pow(_TAIL, 1 / began)
        high[chance <= 0] = 1 - math.pow(_TAIL, 1 / effective)
        # Less than one observation is left, since some count in part: surely no worse than one.
        part = inner & ~whole
        high[part] = np.minimum(high[part], min(_ONE_LEFT / effective, 1.0))
    # The chance never rises, so an upper bound holds for all that comes later.
    return low, np.minimum.accumulate(high)


def _curve(
    begin_s: Floats, end_s: Floats, chance: Floats, low: Floats, high: Floats, risk: Floats, after: Floats, rate: float
) -> Survival:  # fmt: skip
    """The estimate at the end of each piece, and at its beginning where there is a gap before it."""
    at_end = np.stack([chance, low, high])
    at_begin = np.column_stack([np.ones(3), at_end[:, :-1]])
    gap = begin_s > np.append(0.0, end_s[:-1])
    times = np.concatenate([[0.0], begin_s[gap], end_s])
    order = np.argsort(times, kind="stable")
    at_risk = np.concatenate([[risk[0] * np.exp(rate * begin_s[0])], risk[gap], after])[order]
    chance, low, high = np.column_stack([np.ones(3), at_begin[:, gap], at_end])[:, order]
    return _joined(times[order], chance, low, high, at_risk, rate)


def _joined(
    after_s: Floats, chance: Floats, low: Floats, high: Floats, at_risk: Floats, rate: float
) -> Survival:
    """The curve through these points, with its integrals."""
    width, mean = np.diff(after_s), (chance[1:] + chance[:-1]) / 2
    moment = _moment_s2(after_s[:-1], after_s[1:], chance[:-1], chance[1:])
    return Survival(
        after_s=after_s,
        chance=chance,
        low=low,
        high=high,
        at_risk=at_risk,
        worked_s=np.concatenate([[0.0], np.cumsum(mean * width)]),
        moment_s2=np.concatenate([[0.0], np.cumsum(moment)]),
        crashes_per_s=rate,
    )


def _moment_s2(begin_s: Floats, end_s: Floats, at_begin: Floats, at_end: Floats) -> Floats:
    """The integral of time × chance over straight pieces, exactly."""
    weighed = begin_s * (2 * at_begin + at_end) + end_s * (at_begin + 2 * at_end)
    integral: Floats = (end_s - begin_s) * weighed / 6
    return integral
