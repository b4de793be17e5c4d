"""One look at one queue: what is known of it goes in, what is decided and what is to be remembered comes out.

No clock, no file, no call: the loop, the tests and the simulated month (`bench.autopilot`) use this alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from veil import words
from veil.core.autopilot import (
    DAY_MS,
    UNSETTLED,
    Attempts,
    AutopilotPolicy,
    Decision,
    DecisionKind,
    Mode,
    PilotedQueue,
    Watch,
    decide,
    drift,
    judge,
    reachable_s,
    tail_drift,
)
from veil.pipeline.lifecycles.tables import HOUR_MS, HOURS_A_DAY
from veil.pipeline.timeouts.history import History, Work, bucket_of_s, middle_s
from veil.pipeline.timeouts.recommendation import Timelines
from veil.pipeline.timeouts.run import Goal, find

MEMORY_MS: Final = 28 * DAY_MS
_SOON_MS: Final = 60_000
_ATTEMPTS_LEAST: Final = 1_000  # before the work is compared with what it was
_WATCHED_MS: Final = 7 * DAY_MS
_WINDOWS_H: Final = (1, 3, 6, 12, 24)  # of the latest work that is compared with the work before


@dataclass
class Memory:
    """The history of one queue by the hour, and by the day, in which messages were sent; both as numbers since 1970."""

    hours: dict[int, History] = field(default_factory=dict)
    days: dict[int, History] = field(default_factory=dict)  # of whole days, for which no hours are needed

    @property
    def first_ms(self) -> int | None:
        """When it begins."""
        known = [hour * HOUR_MS for hour in self.hours] + [day * DAY_MS for day in self.days]
        return min(known, default=None)

    def between(self, from_ms: int, to_ms: int | None = None) -> History:
        """What was sent from one instant to the other, to the hour; of days that are known as a whole, to the day."""
        whole = History()
        for number, history in self.days.items():
            if number * DAY_MS >= from_ms and (to_ms is None or (number + 1) * DAY_MS <= to_ms):
                whole.add(history)
        for number, history in self.hours.items():
            is_within = (number + 1) * HOUR_MS > from_ms and (to_ms is None or number * HOUR_MS < to_ms)
            if is_within and number // HOURS_A_DAY not in self.days:
                whole.add(history)
        return whole


def goal_of(policy: AutopilotPolicy) -> Goal:
    """What is asked of the evidence where this is a queue's policy."""
    return Goal(policy.target, policy.renewal, least_cost=True)


def look(
    policy: AutopilotPolicy,
    work: Work,
    memory: Memory,
    state: PilotedQueue,
    timeout_s: int,
    *,
    attempts: Callable[[Watch], Attempts],
    newest_ms: int,
    now_ms: int,
    timelines: Timelines | None = None,
    due: bool = True,
) -> tuple[PilotedQueue, list[Decision]]:
    """The state to go on with, and what was decided; a change that is to be made comes last.

    Where a finding is not `due`, only a change that is being watched is looked at.
    """
    state = replace(state, mode=policy.mode.value)
    if state.seen_s is not None and state.seen_s != timeout_s:
        reason = (
            f"a person changed the timeout from {words.length(state.seen_s)} to {words.length(timeout_s)}; the autopilot leaves "
            "this queue alone until it is told to go on"
        )
        told = Decision(
            kind=DecisionKind.NOTHING, code=f"silenced {timeout_s}", reason=reason, at_ms=now_ms, before_s=state.seen_s,
            after_s=timeout_s,
        )  # fmt: skip
        return replace(state, seen_s=timeout_s, silenced_ms=now_ms, watch=None), [told]
    state = replace(state, seen_s=timeout_s)
    if state.silenced_ms is not None:
        reason = "a person has set the timeout; the autopilot waits to be told to go on"
        return state, [Decision(kind=DecisionKind.NOTHING, code="silenced", reason=reason, at_ms=now_ms)]
    decisions: list[Decision] = []
    if state.watch is not None:
        state, judged = _judged(policy, state, state.watch, attempts(state.watch), now_ms)
        decisions += judged
        if judged and judged[0].kind is DecisionKind.TAKE_BACK:
            return state, decisions
    if not due:
        return state, decisions
    state, drifted = _drifted(memory, state, timeout_s, newest_ms, now_ms)
    decisions += drifted
    first_ms = memory.first_ms
    if first_ms is None:
        return state, [*decisions, decide(policy, None, state, timeout_s, now_ms)]
    from_ms = max(state.memory_ms, first_ms, now_ms - MEMORY_MS)
    also_s, goal = sorted(reachable_s(policy, timeout_s)), goal_of(policy)
    finding = find(work, None, memory.between(from_ms), timelines or Timelines(), goal, also_s=also_s)
    decisions.append(decide(policy, finding, replace(state, memory_ms=from_ms), timeout_s, now_ms))
    return replace(state, found_ms=now_ms), decisions


def is_due(state: PilotedQueue, now_ms: int) -> bool:
    """Whether another finding is worth its time: once an hour, and more often while the evidence is still coming in."""
    is_open = state.last is None or state.last.code in UNSETTLED
    return now_ms - state.found_ms >= (_SOON_MS if is_open else HOUR_MS)


def changed(state: PilotedQueue, decision: Decision, rest_s: int) -> PilotedQueue:
    """The state once a change has been made, or taken back."""
    assert decision.after_s is not None and decision.before_s is not None
    state = replace(state, changes_ms=(*state.changes_ms[-2:], decision.at_ms))
    state = replace(state, seen_s=decision.after_s, changed_ms=decision.at_ms, change=decision)
    if decision.kind is DecisionKind.TAKE_BACK:
        # What was predicted from did not hold: what comes now is judged by what was seen since.
        since_ms = state.watch.changed_ms if state.watch is not None else decision.at_ms
        resting_ms = decision.at_ms + rest_s * 1000
        return replace(state, watch=None, memory_ms=max(state.memory_ms, since_ms), resting_ms=resting_ms)
    assert decision.prediction is not None
    watch = Watch(
        changed_ms=decision.at_ms, before_s=decision.before_s, after_s=decision.after_s, prediction=decision.prediction,
        until_ms=decision.at_ms + _WATCHED_MS,
    )  # fmt: skip
    return replace(state, watch=watch)


def _judged(
    policy: AutopilotPolicy, state: PilotedQueue, watch: Watch, seen: Attempts, now_ms: int
) -> tuple[PilotedQueue, list[Decision]]:
    said, share = judge(watch, policy.target, seen, now_ms)
    if said is None:
        return state, []
    goes_back = said is DecisionKind.TAKE_BACK and policy.mode is Mode.APPLY
    what = f"goes back to {words.length(watch.before_s)}" if goes_back else "stays"
    decision = Decision(
        kind=DecisionKind.TAKE_BACK if goes_back else DecisionKind.KEEP, code=f"{said.value} {watch.changed_ms}",
        reason=f"{words.length(watch.after_s)} {what}: {share}", at_ms=now_ms, before_s=watch.after_s,
        after_s=watch.before_s if goes_back else watch.after_s, attempts=seen.count, prediction=watch.prediction,
    )  # fmt: skip
    return (state if goes_back else replace(state, watch=None)), [decision]


def _drifted(
    memory: Memory, state: PilotedQueue, timeout_s: int, newest_ms: int, now_ms: int
) -> tuple[PilotedQueue, list[Decision]]:
    """Compare the latest hours with those before, once for each hour that is over and whose attempts have ended."""
    end_ms = (newest_ms - timeout_s * 1000) // HOUR_MS * HOUR_MS
    if end_ms <= state.drift_ms or not memory.hours:
        return state, []
    state = replace(state, drift_ms=end_ms)
    begin_ms = max(state.memory_ms, now_ms - MEMORY_MS)
    whole = memory.between(begin_ms, end_ms)
    for window_h in _WINDOWS_H:
        from_ms = end_ms - window_h * HOUR_MS
        if from_ms <= begin_ms:
            break
        latest = memory.between(from_ms, end_ms)
        before, beyond = whole.processing - latest.processing, _beyond(latest.processing, timeout_s)
        # Where none outlasted the timeout before, some may have been about to.
        bound = (1.5 * _beyond(before, timeout_s) + 4) / max(before.total(), 1)
        in_tail = before.total() >= _ATTEMPTS_LEAST and tail_drift(min(bound, 0.9), latest.completed, beyond)
        if in_tail or drift(before + (whole.let_go - latest.let_go), latest.processing + latest.let_go):
            reason = (
                f"the work has changed: of the last {words.plural(window_h, 'hour')} half took up to "
                f"{words.length(_median_s(latest.processing))}, before {words.length(_median_s(before))}, and "
                f"{words.chance(beyond / max(latest.completed, 1))} outlasted the timeout; what came before is forgotten"
            )
            told = Decision(
                kind=DecisionKind.DRIFT, code=f"drift {from_ms}", reason=reason, at_ms=now_ms, before_s=timeout_s,
                attempts=latest.leases,
            )  # fmt: skip
            return replace(state, memory_ms=from_ms, changes_ms=()), [told]
    return state, []


def _beyond(processing: Counter[int], timeout_s: int) -> int:
    edge = bucket_of_s(timeout_s)
    return sum(count for bucket, count in processing.items() if bucket > edge)


def _median_s(processing: Counter[int]) -> float | None:
    half, seen = processing.total() / 2, 0
    for bucket in sorted(processing):
        seen += processing[bucket]
        if seen >= half:
            return middle_s(bucket)
    return None
