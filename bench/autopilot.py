"""A simulated month of the autopilot on queues whose truth is known: what it costs against the best fixed timeout.

`python -m bench.autopilot` prints a line of JSON for each queue and one for all. Time is virtual; decisions are those of
`veil.pipeline.autopilot.pilot`, the estimates those of `veil.pipeline.timeouts`. Costs are weighed as the report weighs
them: a duplicate costs half of the work's length (its median), a message hidden after a crash costs the time that it is hidden.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from veil.core.attempt import patience_ms
from veil.core.autopilot import (
    DAY_MS,
    Attempts,
    AutopilotPolicy,
    Decision,
    DecisionKind,
    Mode,
    PilotedQueue,
    prediction_of,
)
from veil.pipeline.autopilot.pilot import Memory, changed, goal_of, is_due, look
from veil.pipeline.lifecycles.tables import BUCKET_MAX, HOUR_MS, PER_OCTAVE, bucket_of
from veil.pipeline.timeouts.history import History, Work
from veil.pipeline.timeouts.recommendation import SENSIBLE_S, Timelines
from veil.pipeline.timeouts.run import find

TICK_MS: Final = 600_000
# A queue's first hours, by the minute: as often as the autopilot looks.
FIRST_MS, FIRST_TICK_MS = (7_200_000, 60_000)
START_MS: Final = 20_500 * DAY_MS
EXPORTED_MS: Final = 120_000  # how late the journal tells of an event
CRASHED: Final = 2e-4  # of the attempts: a worker of ten slots that dies once a day
DEFAULT_S: Final = 30
POLICY: Final = AutopilotPolicy(mode=Mode.APPLY)
Rng = np.random.Generator


@dataclass(frozen=True)
class Truth:
    """A queue: messages a second, and how long the work of n messages takes at an hour of the month."""

    name: str
    rate: Callable[[float], float]
    work_s: Callable[[Rng, int, float], Any]
    failing: float = 0.0  # share of the attempts that fail after some seconds
    calm: bool = True  # nothing happens to it


def _lognormal(median_s: float, sigma: float = 0.8) -> Callable[[Rng, int, float], Any]:
    return lambda rng, n, hour: rng.lognormal(math.log(median_s), sigma, n)


def _day(hour: float) -> float:
    return math.sin(2 * math.pi * hour / 24)


def _rhythm(rng: Rng, n: int, hour: float) -> Any:
    return rng.lognormal(math.log(20 * (1 + 0.2 * _day(hour + 6))), 0.8, n)


def _deployed(rng: Rng, n: int, hour: float) -> Any:
    return rng.lognormal(math.log(15 if hour < 12.4 * 24 else 30), 0.8, n)


def _outage(rng: Rng, n: int, hour: float) -> Any:
    return rng.lognormal(math.log(20), 0.8, n) * (6 if 15.5 * 24 <= hour < 15.5 * 24 + 3 else 1)


def _pareto(rng: Rng, n: int, hour: float) -> Any:
    return 12 * (1 + rng.pareto(1.8, n))


QUEUES: Final = (
    Truth("steady", lambda hour: 0.5, _lognormal(20)),
    Truth("daily rhythm", lambda hour: 0.5 * 10 ** (0.5 * _day(hour)), _rhythm),
    Truth("deployment doubles the work", lambda hour: 0.5, _deployed, calm=False),
    Truth("outage of three hours", lambda hour: 0.5, _outage, calm=False),
    Truth("heavy tail", lambda hour: 0.5, _pareto),
    Truth("failing handlers", lambda hour: 0.5, _lognormal(20), failing=0.2),
    Truth("few messages", lambda hour: 0.03, _lognormal(20)),
)


# Of other shapes than those that the code was written by.
OTHERS: Final = (
    Truth("exponential", lambda hour: 0.5, lambda rng, n, hour: rng.exponential(25, n)),
    Truth("stretched", lambda hour: 0.3, lambda rng, n, hour: 15 * rng.weibull(0.6, n)),
    Truth("two kinds", lambda hour: 0.3, lambda rng, n, hour: rng.lognormal(np.where(rng.random(n) < 0.9, 1.6, 4.8), 0.5)),
)  # fmt: skip


@dataclass
class Tick:
    """What became of the attempts of ten minutes under one timeout."""

    known_ms: int  # when all of this can be known
    hour: int
    attempts: Attempts
    history: History


@dataclass
class Simulated:
    """One queue: its truth, what the autopilot knows of it, and what it has cost."""

    truth: Truth
    rng: Rng
    crashed: float = CRASHED
    timeout_s: int = DEFAULT_S
    state: PilotedQueue = field(default_factory=lambda: PilotedQueue(seen_s=DEFAULT_S))
    memory: Memory = field(default_factory=Memory)
    pending: list[Tick] = field(default_factory=list)
    since_change: Attempts = field(default_factory=Attempts)
    watched_ms: int = 0
    duplicates: float = 0.0
    hidden_s: float = 0.0
    all_work: Counter[int] = field(default_factory=Counter)  # fine buckets, for the judgement in hindsight
    changes: list[tuple[float, int, str]] = field(default_factory=list)
    timelines: Timelines = field(default_factory=Timelines)

    def play(self, now_ms: int, length_ms: int = TICK_MS) -> None:
        """So much traffic."""
        crashed = self.crashed
        hour = (now_ms - START_MS) / HOUR_MS
        waiting = int(self.rng.poisson(self.truth.rate(hour) * length_ms / 1000))
        history, overran, crashes, count = History(), 0, 0, 0
        history.saw_window(self.timeout_s * 1000, datetime.fromtimestamp(now_ms / 1000, UTC))
        while waiting:
            work_s = self.truth.work_s(self.rng, waiting, hour)
            self.all_work.update(_fine(work_s))
            gone = self.rng.random(waiting) < crashed
            failed = ~gone & (self.rng.random(waiting) < self.truth.failing)
            work_s = np.where(failed, self.rng.lognormal(math.log(5), 0.5, waiting), work_s)
            late = ~gone & (work_s > self.timeout_s)
            again = gone | late | failed
            self.duplicates += float(late.sum())
            # The expected time hidden rather than that of the few that crashed: the month is judged, not its luck.
            held_s = np.minimum(work_s, self.timeout_s) * self.rng.random(waiting)
            self.hidden_s += crashed * float((self.timeout_s - held_s).sum())
            _count(history, work_s, gone, late, failed, self.timeout_s)
            count, overran, crashes = count + waiting, overran + int(late.sum()), crashes + int(gone.sum())
            waiting = int(again.sum())
        known_ms = (
            now_ms + length_ms + EXPORTED_MS + self.timeout_s * 1000 + patience_ms(self.timeout_s * 1000)
        )
        self.pending.append(Tick(known_ms, now_ms // HOUR_MS, Attempts(count, overran, crashes), history))

    def learn(self, now_ms: int) -> None:
        """What has become known by now."""
        # A shorter timeout is known about sooner than the longer one before it.
        known = [tick for tick in self.pending if tick.known_ms <= now_ms]
        self.pending = [tick for tick in self.pending if tick.known_ms > now_ms]
        for tick in known:
            self.memory.hours.setdefault(tick.hour, History()).add(tick.history)
            window = tick.history.present_ms == self.timeout_s * 1000
            if window and self.state.watch is not None and tick.known_ms > self.watched_ms:
                seen, more = self.since_change, tick.attempts
                self.since_change = Attempts(
                    seen.count + more.count, seen.overran + more.overran, seen.crashed + more.crashed
                )
        today = now_ms // DAY_MS
        for day in {hour // 24 for hour in self.memory.hours if hour // 24 < today - 2}:
            whole = History()
            for hour in [each for each in self.memory.hours if each // 24 == day]:
                whole.add(self.memory.hours.pop(hour))
            self.memory.days[day] = whole

    def steer(self, now_ms: int, *, due: bool) -> list[Decision]:
        """One look of the autopilot, and what it does."""
        self.state, decisions = look(
            POLICY, Work("", "", self.truth.name, ""), self.memory, self.state, self.timeout_s,
            attempts=lambda watch: self.since_change, newest_ms=now_ms - EXPORTED_MS, now_ms=now_ms,
            timelines=self.timelines, due=due,
        )  # fmt: skip
        if decisions:
            self.state = replace(self.state, last=decisions[-1])
        for each in decisions:
            if each.kind in (DecisionKind.CHANGE, DecisionKind.TAKE_BACK):
                self.apply(each)
            if each.kind in (DecisionKind.DRIFT, DecisionKind.KEEP):
                self.changes.append(((now_ms - START_MS) / HOUR_MS, self.timeout_s, each.kind.value))
        return decisions

    def apply(self, decision: Decision) -> None:
        assert decision.after_s is not None
        self.state = changed(self.state, decision, POLICY.rest_s)
        self.timeout_s = decision.after_s
        self.since_change, self.watched_ms = Attempts(), decision.at_ms
        self.changes.append(((decision.at_ms - START_MS) / HOUR_MS, self.timeout_s, decision.kind.value))

    @property
    def median_s(self) -> float:
        half, seen = self.all_work.total() / 2, 0
        for bucket in sorted(self.all_work):
            seen += self.all_work[bucket]
            if seen >= half:
                return _middle_s(bucket)
        return 1.0

    def cost_s(self) -> float:
        return self.duplicates * self.median_s + self.hidden_s

    def fixed_cost_s(self, timeout_s: int, messages: int) -> float:
        """What a fixed timeout would have cost for as many messages of the same work."""
        total = self.all_work.total()
        work = np.array([_middle_s(bucket) for bucket in self.all_work])
        share = np.array(list(self.all_work.values())) / total
        slow = float(share[work > timeout_s].sum()) * (1 - self.crashed) * (1 - self.truth.failing)
        held_s = float((share * np.minimum(work, timeout_s)).sum()) / 2 * (1 - self.truth.failing)
        if slow > 0.9:
            return math.inf
        attempts = messages / (1 - slow - self.crashed - self.truth.failing * (1 - self.crashed))
        return attempts * (slow * self.median_s + self.crashed * (timeout_s - held_s))


def _count(history: History, work_s: Any, gone: Any, late: Any, failed: Any, timeout_s: int) -> None:
    """What the tables would tell of these attempts."""
    count = len(work_s)
    history.leases += count
    history.windows[timeout_s * 1000] += count
    history.crashed += int(gone.sum())
    history.duplicates += int(late.sum())
    done = ~gone & ~failed
    history.messages_deleted += int((done & ~late).sum())
    history.failed += int(failed.sum())
    history.processing.update(_buckets(work_s[done]))
    history.let_go.update(_buckets(work_s[failed & ~late]))
    history.recovery[bucket_of(timeout_s * 1000)] += int(gone.sum())


def _buckets(lengths_s: Any) -> dict[int, int]:
    octaves = np.log2(np.maximum(lengths_s * 1000, 1.0))
    buckets, counts = np.unique(np.minimum(np.floor(octaves * PER_OCTAVE), BUCKET_MAX), return_counts=True)
    return dict(zip(buckets.astype(int).tolist(), counts.tolist(), strict=True))


_FINE: Final = 64


def _fine(lengths_s: Any) -> dict[int, int]:
    buckets, counts = np.unique(np.floor(np.log2(lengths_s) * _FINE), return_counts=True)
    return dict(zip(buckets.astype(int).tolist(), counts.tolist(), strict=True))


def _middle_s(bucket: int) -> float:
    return float(2 ** ((bucket + 0.5) / _FINE))


def month(
    truth: Truth, days: int, seed: int, crashed: float = CRASHED
) -> tuple[Simulated, dict[str, Any], list[float]]:
    """A month of one queue; what it came to, and in how many hours of traffic wrong changes were taken back."""
    queue = Simulated(truth, np.random.default_rng(seed), crashed)
    wrong: list[float] = []
    first = range(START_MS, START_MS + FIRST_MS, FIRST_TICK_MS)
    for now_ms in (*first, *range(first.stop, START_MS + days * DAY_MS, TICK_MS)):
        length_ms = FIRST_TICK_MS if now_ms in first else TICK_MS
        queue.play(now_ms, length_ms)
        end_ms = now_ms + length_ms
        queue.learn(end_ms)
        queue.steer(end_ms, due=is_due(queue.state, end_ms))
        if (end_ms - START_MS) % (7 * DAY_MS) == 5 * DAY_MS and queue.memory.days:
            wrong.append(taken_back_h(queue, end_ms, seed + len(wrong) + 1))
    messages = round(
        sum(h.messages_deleted for h in (*queue.memory.hours.values(), *queue.memory.days.values()))
    )
    messages += sum(each.history.messages_deleted for each in queue.pending)
    fixed = {each: queue.fixed_cost_s(each, messages) for each in SENSIBLE_S}
    best_s = min(fixed, key=lambda each: fixed[each])
    weeks = Counter(int(hour // 168) for hour, _, kind in queue.changes if kind in ("change", "take back"))
    row = {
        "queue": truth.name,
        "messages": messages,
        "duplicates": round(queue.duplicates),
        "hidden_h": round(queue.hidden_s / 3600, 1),
        "cost_h": round(queue.cost_s() / 3600, 2),
        "best_fixed_h": round(fixed[best_s] / 3600, 2),
        "best_fixed_s": best_s,
        "against_best": round(queue.cost_s() / fixed[best_s], 3) if fixed[best_s] else None,
        "against_30s": round(fixed[DEFAULT_S] / queue.cost_s(), 1),
        "changes_a_week": [weeks[week] for week in range(math.ceil(days / 7))],
        "wrong_taken_back_h": [round(each, 1) for each in wrong],
        "story": [(round(hour, 1), timeout_s, kind) for hour, timeout_s, kind in queue.changes],
        "best_h": fixed[best_s] / 3600,
        "default_h": fixed[DEFAULT_S] / 3600,
    }
    return queue, row, wrong


def taken_back_h(queue: Simulated, now_ms: int, seed: int) -> float:
    """Shorten the timeout to the median of the work, as if a finding of work that is eight times as quick had said so, and
    see how long it lasts; on a copy, the month goes on without it."""
    trial = deepcopy(queue)
    trial.rng = np.random.default_rng(seed)
    wrong_s = max(1, round(queue.median_s))
    quick = History()
    for day in queue.memory.days.values():
        quick.add(day)
    quick.processing = Counter({max(b - 3 * PER_OCTAVE, 0): n for b, n in quick.processing.items()})
    state = replace(queue.state, changed_ms=0, resting_ms=0, watch=None)
    finding = find(Work("", "", "", ""), None, quick, trial.timelines, goal_of(POLICY))
    prediction = prediction_of(finding, trial.timeout_s, wrong_s)
    trial.state = state
    trial.apply(
        Decision(
            kind=DecisionKind.CHANGE, code="wrong", reason="wrong", at_ms=now_ms, before_s=trial.timeout_s, after_s=wrong_s,
            prediction=prediction,
        )
    )  # fmt: skip
    for at_ms in range(now_ms, now_ms + 7 * DAY_MS, TICK_MS):
        trial.play(at_ms)
        trial.learn(at_ms + TICK_MS)
        if any(each.kind is DecisionKind.TAKE_BACK for each in trial.steer(at_ms + TICK_MS, due=False)):
            return (at_ms + TICK_MS - now_ms) / HOUR_MS
    return math.inf


def main() -> None:
    """Play every queue's month, print what it came to, and what all of them did."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--crashes", type=float, nargs="+", default=[CRASHED], help="share of the attempts")
    parser.add_argument("--queue", help="only those whose name has this in it")
    parser.add_argument("--others", action="store_true", help="queues of other shapes")
    parser.add_argument("--story", action="store_true", help="also when what was changed")
    given = parser.parse_args()
    played = OTHERS if given.others else QUEUES
    truths = [each for each in played if not given.queue or given.queue in each.name]
    for crashed in given.crashes:
        for seed in given.seeds:
            months(truths, given.days, seed, crashed, story=given.story)


def months(truths: Sequence[Truth], days: int, seed: int, crashed: float, *, story: bool) -> None:
    """Play the months of these queues and print them."""
    begun_s = time.process_time()
    rows, wrong = [], []
    for truth in truths:
        _, row, taken = month(truth, days, seed, crashed)
        rows.append(row)
        wrong += taken
        hidden = ("best_h", "default_h") + (() if story else ("story",))
        print(json.dumps({name: value for name, value in row.items() if name not in hidden}), flush=True)
    calm = {truth.name for truth in truths if truth.calm}
    cost_h, best_h = sum(row["cost_h"] for row in rows), sum(row["best_h"] for row in rows)
    print(json.dumps({
        "queues": len(rows),
        "seed": seed,
        "crashed": crashed,
        "cost_h": round(cost_h, 1),
        "best_h": round(best_h, 1),
        "against_best": round(cost_h / best_h, 3) if best_h else None,
        "against_30s": round(sum(row["default_h"] for row in rows) / cost_h, 1),
        "changes_a_week_max_calm": max((max(row["changes_a_week"]) for row in rows if row["queue"] in calm), default=0),
        "wrong_taken_back_h_max": max(wrong, default=None),
        "cpu_s": round(time.process_time() - begun_s, 1),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
