"""The table of leases that a keeper keeps: what is due when, and what each answer means. No clock, no I/O, no thread.

A lease is looked at when it is due for renewal, for a warning, at its maximum, or lost. It is lost when the service says so,
or when its deadline has passed by more than the policy's grace; until then it is tried, since a standard queue renews a
window that has lapsed as long as no other consumer has received it. The deadline itself is counted from before the request.

Veil lets no lease lapse while it cannot take renewals, and promises a grace afterwards (`Lease.grace_s`). So a lease whose
renewals get no answer is kept until its deadline plus that grace, and for as long as the service itself is seen to be away.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, NamedTuple

from veil.client.api import BATCH_MAX, ApiError, Failure
from veil.consumer.lease import Lease, LeaseStatus
from veil.consumer.renewal.policies import LIFETIME_S, RenewalPolicy, Window

# ---- leases


@dataclass(slots=True, eq=False, kw_only=True)
class Held(Window):
    """The window's facts, and where its renewal stands."""

    lease: Lease
    next_s: float = math.inf  # when to look at it next; the heap's entries of other instants are stale
    renewals: int = 0
    tries: int = 0  # that failed since the last success
    asking_s: int = 0  # what this series of tries asks for
    retry_s: float = math.inf
    under_way: bool = False  # a call for it is under way
    gone: bool = False  # let go, or lost: nothing may be sent for it any more
    last: bool = False  # this window is the last one
    why_last: str = ""
    warned: bool = False
    problem: str = ""  # what the last failed try said
    refused: bool = False
    unanswered: bool = False  # the last try
    away_s: float = -math.inf  # when the service was last seen to be in trouble itself
    waiting: list[Future[None]] = field(default_factory=list)  # for the call under way to end
    # Messages of one receive have one window, and most are done with before anything is due: they stand here together, looked
    # at once, until one of them wants a place of its own.
    together: Sequence[Lease] = ()
    left: int = 1  # of those


class DueRenewal(NamedTuple):
    """One renewal that is to be sent."""

    held: Held
    ask_s: int
    clamped: bool  # to the rest of the twelve hours


class LeaseEvent(NamedTuple):
    """What has happened to a lease, and what `KeeperEvents` tells of it by the method of that name."""

    name: str
    lease: Lease
    facts: tuple[Any, ...]


# The service counts the twelve hours too, and sees the request later than it was sent.
_LIFETIME_MARGIN_S = 1
# A failed try is followed by the next after a 25th of what is left, closer as it gets urgent: forty to seventy tries in half
# a window of 30 s. With one in three getting through, none of 2.7 million simulated windows was lost; a 12th and a 20th
# lost some. A service that asks to be spared is asked less often.
_SHARE_OF_LEFT, _GAP_MIN_S = 1 / 25, 0.1
_SHARE_OF_LEFT_THROTTLED, _GAP_MIN_THROTTLED_S = 1 / 15, 0.2
_REFUSED_SLOWER = 5
# An answer that takes longer than this share of what is left is not waited for: another try is worth more. Unless answers
# are usually that slow, in which case giving up on them would never end.
_TIMEOUT_SHARE_FIRST, _TIMEOUT_MIN_FIRST_S = 1 / 8, 0.5
_TIMEOUT_SHARE, _TIMEOUT_MIN_S = 1 / 20, 0.25
_TIMEOUT_MAX_S = 5.0
_USUAL_ANSWERS = 3
_SCAN_MAX = 100


class Ledger:
    """Leases and what to do about them next; users in several threads must lock it."""

    def __init__(self, policy: RenewalPolicy, random: Random) -> None:
        self.policy = policy
        self._random = random
        self._table: dict[Lease, Held] = {}
        self._heap: list[tuple[float, int, Held]] = []
        self._numbers = count()
        self._epoch_s = 0.0
        self._events: list[LeaseEvent] = []  # that nobody has asked for yet
        self._answer_s = 0.0  # how long answers have taken lately, at most

    def __len__(self) -> int:
        return len(self._table)

    # ---- holding and letting go

    def hold(self, leases: Sequence[Lease], now_s: float) -> None:
        """Keep the leases from now on; harmless the second time, and for one that is over."""
        if not self._table:
            self._epoch_s = now_s
        alike: dict[tuple[str, float, float], list[Lease]] = {}
        for lease in leases:
            if lease not in self._table and lease.noticed is LeaseStatus.HELD:
                alike.setdefault((lease.kind, lease.received_at_s, lease.deadline_s), []).append(lease)
        for same in alike.values():
            first = same[0]
            held = Held(
                received_at_s=first.received_at_s,
                visibility_s=first.visibility_s,
                held_at_s=now_s,
                epoch_s=self._epoch_s,
                asked_at_s=first.received_at_s,
                deadline_s=first.deadline_s,
                kind=first.kind,
                lease=first,
            )
            if len(same) > 1:
                held.together, held.left = same, len(same)
            self._table.update(dict.fromkeys(same, held))
            self._schedule(held)
            for lease in same:
                lease.lost_at_s = first.lost_at_s
        if len(self._heap) > 4 * len(self._table) + 1_000:
            self._forget_the_stale()

    def let_go(self, leases: Sequence[Lease], now_s: float) -> list[Held]:
        """Send nothing for the leases after this; those for which a call is under way still."""
        under_way: list[Held] = []
        for lease in leases:
            held = self._table.get(lease)
            if held is None:
                continue
            if held.together and (lease.noticed is LeaseStatus.LOST or now_s >= lease.lost_at_s):
                held = self._apart(lease, held)
            if held.under_way:
                under_way.append(held)
            if not held.together and self._is_lost(
                held, now_s
            ):  # and the process did not run, so that it went unnoticed
                self._lose(held)
                continue
            if held.together:
                self._leave(lease, held)
            else:
                self._remove(held)
            try:  # noqa: SIM105 - `suppress` costs more than all that is suppressed
                self.policy.observed(now_s - held.held_at_s, held.kind)
            except Exception:  # noqa: S110 - of a policy of the user's, which learns nothing then
                pass
        return under_way

    def by_hand(self, lease: Lease, deadline_s: float | None) -> None:
        """The handler has set the window itself, or has failed to (None)."""
        held = self.get(lease)
        if held is None:
            return
        if deadline_s is not None:
            held.deadline_s, held.tries, held.retry_s = deadline_s, 0, math.inf
            held.renewals += 1
        self._schedule(held)

    def lose(self, lease: Lease, why: str) -> None:
        """The service has said that it is lost, when its handler wanted to change it."""
        held = self.get(lease)
        if held is not None:
            self._lose(held, why)

    def get(self, lease: Lease) -> Held | None:
        """The lease's own place in the table."""
        held = self._table.get(lease)
        return self._apart(lease, held) if held is not None and held.together else held

    # ---- what is due

    def next_s(self) -> float:
        """When to look again."""
        heap = self._heap
        while heap and (heap[0][2].gone or heap[0][0] != heap[0][2].next_s):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def events(self) -> Sequence[LeaseEvent]:
        """What has happened since this was asked last, losses first: a handler that goes on after a stall must hear of its own
        before anything else is done."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return sorted(events, key=lambda event: event.name != "lost")

    def due(self, now_s: float) -> list[list[DueRenewal]]:
        """The renewals to send, ten to a call."""
        renewals: list[DueRenewal] = []
        while self.next_s() <= now_s:
            held = heapq.heappop(self._heap)[2]
            held.next_s = math.inf
            if held.together:
                self._part(held)
            elif self._is_lost(held, now_s):
                self._lose(held)
            elif held.lease.noticed is LeaseStatus.ENDED:  # without having been let go
                self._remove(held)
            else:
                self._look(held, now_s, renewals)
        if renewals:
            self._fill_up(now_s, renewals)
        return self._calls(renewals)

    def timeout_s(self, call: Sequence[DueRenewal], now_s: float) -> float:
        """How long to wait for the answer of a call that is sent now."""
        left_s = min(self.lost_at_s(renewal.held) for renewal in call) - now_s
        if any(renewal.held.tries for renewal in call):
            timeout_s = max(left_s * _TIMEOUT_SHARE, _TIMEOUT_MIN_S)
        else:
            timeout_s = max(left_s * _TIMEOUT_SHARE_FIRST, _TIMEOUT_MIN_FIRST_S)
        timeout_s = max(timeout_s, self._answer_s * _USUAL_ANSWERS)
        return max(min(timeout_s, _TIMEOUT_MAX_S, left_s), 0.0)

    def answered(
        self, call: Sequence[DueRenewal], results: Sequence[ApiError | None], asked_at_s: float, now_s: float
    ) -> None:
        """What the answer to a call means for its leases; those that were let go meanwhile are passed over."""
        # One draw for the whole call: its leases fail together, and are tried again together.
        jitter = 0.5 + self._random.random()
        if None in results:
            self._answer_s = max(now_s - asked_at_s, 0.95 * self._answer_s)
        for renewal, problem in zip(call, results, strict=True):
            held = renewal.held
            held.under_way = False
            if held.gone:
                continue
            if problem is None:
                self._granted(renewal, asked_at_s)
            elif problem.failure is Failure.LOST:
                self._lose(held, f"the service says: {problem}")
                continue
            elif problem.failure is Failure.CAPPED:
                self._cap(held, f"the service says: {problem}")
            else:
                self._try_again(held, problem, jitter, now_s)
            self._schedule(held)

    def _happened(self, name: str, held: Held, *facts: object) -> None:
        self._events.append(LeaseEvent(name, held.lease, facts))

    # ---- one lease

    def lost_at_s(self, held: Held) -> float:
        """From when on the lease counts as lost."""
        deadline_s = held.deadline_s
        if not held.renewals:
            # A receive may have waited twenty seconds for its message, so its window may end that much later than the
            # careful count says. Until the service has granted a renewal, nothing is known for certain.
            deadline_s = max(deadline_s, held.held_at_s + held.visibility_s)
        if held.last or held.lease.by_hand:
            return deadline_s
        try:
            lost_at_s = deadline_s + self.policy.grace_s(held)
        except Exception as error:
            self._policy_failed(held, error)
            return deadline_s
        promised_s = held.lease.grace_s
        if promised_s and held.unanswered:
            kept_s = max(held.deadline_s, held.away_s) + promised_s
            lost_at_s = max(lost_at_s, min(kept_s, held.received_at_s + LIFETIME_S))
        return lost_at_s

    def _end_s(self, held: Held) -> float:
        return min(
            held.held_at_s + self.policy.maximum_s, held.received_at_s + LIFETIME_S - _LIFETIME_MARGIN_S
        )

    def _warn_at_s(self, held: Held) -> float:
        end_s = self._end_s(held)
        return max(end_s - self.policy.warn_before_s, (held.held_at_s + end_s) / 2)

    def _due_s(self, held: Held) -> float:
        if held.under_way or held.last or held.lease.by_hand:
            return math.inf
        try:
            return held.retry_s if held.tries else self.policy.due_s(held)
        except Exception as error:
            self._policy_failed(held, error)
            return math.inf

    def _schedule(self, held: Held) -> None:
        lost_at_s = held.lease.lost_at_s = self.lost_at_s(held)
        next_s = lost_at_s
        if not held.last and not held.lease.by_hand and self.policy.renews:
            next_s = min(next_s, self._due_s(held), self._end_s(held))
            if not held.warned:
                next_s = min(next_s, self._warn_at_s(held))
        held.next_s = next_s
        heapq.heappush(self._heap, (next_s, next(self._numbers), held))

    def _look(self, held: Held, now_s: float, renewals: list[DueRenewal]) -> None:
        if not held.lease.by_hand and not held.last:
            if now_s >= self._end_s(held):
                held_s = now_s - held.held_at_s
                self._cap(held, f"it was renewed for {held_s:.0f} s, the most that is allowed")
            else:
                if not held.warned and now_s >= self._warn_at_s(held):
                    held.warned = True
                    self._happened("warned", held, self._end_s(held))
                if now_s >= self._due_s(held):
                    self._begin_renewal(held, now_s, renewals)
        self._schedule(held)

    def _begin_renewal(self, held: Held, now_s: float, renewals: list[DueRenewal]) -> None:
        # One series of tries asks for one length: a cut call that arrives late then can only lengthen the window.
        try:
            ask_s = held.asking_s if held.tries else self.policy.ask_s(held, now_s)
        except Exception as error:
            self._policy_failed(held, error)
            return
        left_s = math.floor(held.received_at_s + LIFETIME_S - _LIFETIME_MARGIN_S - now_s + 1e-6)
        clamped = ask_s > left_s
        if ask_s == 0 or (clamped and now_s + left_s <= held.deadline_s):
            why = (
                "twelve hours after the receive" if clamped else "the most that is allowed after the receive"
            )
            self._cap(held, f"it cannot be renewed beyond {why}")
            return
        held.asking_s = ask_s
        held.under_way = True
        renewals.append(DueRenewal(held, min(ask_s, left_s), clamped))

    def _fill_up(self, now_s: float, renewals: list[DueRenewal]) -> None:
        """Places left in the last call cost nothing: give them to those that are due next."""
        aside: list[tuple[float, int, Held]] = []
        horizon_s = now_s + 60.0
        while len(renewals) % BATCH_MAX and len(aside) < _SCAN_MAX and self.next_s() <= horizon_s:
            entry = heapq.heappop(self._heap)
            held = entry[2]
            try:
                slack_s = _GAP_MIN_S if held.tries else self.policy.slack_s(held)
            except Exception as error:
                self._policy_failed(held, error)
                slack_s = 0.0
            if self._due_s(held) - slack_s > now_s:
                aside.append(entry)
            elif held.together:
                self._part(held)
            else:
                self._begin_renewal(held, now_s, renewals)
                self._schedule(held)
        for entry in aside:
            heapq.heappush(self._heap, entry)

    def _calls(self, renewals: list[DueRenewal]) -> list[list[DueRenewal]]:
        by_queue: dict[str, list[DueRenewal]] = {}
        for renewal in renewals:
            by_queue.setdefault(renewal.held.lease.queue_url, []).append(renewal)
        return [
            same[at : at + BATCH_MAX] for same in by_queue.values() for at in range(0, len(same), BATCH_MAX)
        ]

    def _granted(self, renewal: DueRenewal, asked_at_s: float) -> None:
        held = renewal.held
        held.asked_at_s, held.deadline_s = asked_at_s, asked_at_s + renewal.ask_s
        held.renewals += 1
        held.tries, held.retry_s, held.problem, held.refused = 0, math.inf, "", False
        held.unanswered = False
        held.lease.renewed(held.deadline_s)
        self._happened("renewed", held, renewal.ask_s)
        if renewal.clamped:
            self._cap(held, "it cannot be renewed beyond twelve hours after the receive")

    def _try_again(self, held: Held, problem: ApiError, jitter: float, now_s: float) -> None:
        held.tries += 1
        held.problem = str(problem)
        held.unanswered = problem.failure is Failure.UNREACHABLE
        if problem.away:
            held.away_s = now_s
        share, least_s = (
            (_SHARE_OF_LEFT_THROTTLED, _GAP_MIN_THROTTLED_S)
            if problem.failure is Failure.THROTTLED
            else (_SHARE_OF_LEFT, _GAP_MIN_S)
        )
        lost_in_s = self.lost_at_s(held) - now_s
        # The tries are for the time before the deadline; the grace after it is for those that came too late for that.
        left_s = held.deadline_s - now_s
        if left_s < least_s:
            left_s = lost_in_s
        gap_s = max(left_s * share, least_s) * jitter
        if problem.failure is Failure.REFUSED:
            gap_s *= _REFUSED_SLOWER
        elif gap_s >= left_s > _GAP_MIN_S:
            gap_s = left_s / 2  # the last one still gets a chance to be answered
        held.retry_s = now_s + gap_s
        if problem.failure is not Failure.REFUSED or not held.refused:
            self._happened("failed", held, problem, held.retry_s < now_s + lost_in_s)
        held.refused = problem.failure is Failure.REFUSED

    def _cap(self, held: Held, why: str) -> None:
        if held.last:
            return
        held.last, held.why_last = True, why
        if not held.warned:
            held.warned = True
            self._happened("warned", held, held.deadline_s)
        self._happened("capped", held, why)

    def _policy_failed(self, held: Held, error: Exception) -> None:
        """A policy of the user's has raised this: the other leases must not miss their renewal."""
        self._cap(held, f"its policy failed: {error!r}")

    # Not `lease.lost`, which may run callbacks, and the caller has us locked.
    def _is_lost(self, held: Held, now_s: float) -> bool:
        state = held.lease.noticed
        return state is LeaseStatus.LOST or (state is LeaseStatus.HELD and now_s >= self.lost_at_s(held))

    def _lose(self, held: Held, why: str = "") -> None:
        self._remove(held)
        self._happened("lost", held, why or held.lease.why or self._why_lapsed(held))

    def _part(self, held: Held) -> None:
        """Something is due for those that stand together: each gets a place of its own."""
        for lease in held.together:
            if self._table.get(lease) is held:
                self._apart(lease, held)

    def _apart(self, lease: Lease, held: Held) -> Held:
        self._leave(lease, held)
        own = self._table[lease] = replace(held, lease=lease, together=(), left=1, gone=False, waiting=[])
        self._schedule(own)
        return own

    def _leave(self, lease: Lease, held: Held) -> None:
        del self._table[lease]
        held.left -= 1
        held.gone = not held.left

    def _remove(self, held: Held) -> None:
        held.gone = True
        self._table.pop(held.lease, None)

    def _why_lapsed(self, held: Held) -> str:
        if held.lease.by_hand:
            return "the window that its handler had set ended"
        if held.last:
            return f"its last window ended: {held.why_last}"
        if held.problem:
            return f"its visibility deadline passed, renewal failed {held.tries} times: {held.problem}"
        return "its visibility deadline passed without a renewal"

    def _forget_the_stale(self) -> None:
        self._heap = [(held.next_s, next(self._numbers), held) for held in set(self._table.values())]
        heapq.heapify(self._heap)
