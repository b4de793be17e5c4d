"""The timeout of least expected cost: near the true one on queues that nothing was tuned on, and within the owner's bound."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline.queue_histories import ALL, EXPONENTIAL, Known, quick_history_of
from veil.core.findings import CLEAR, NOT_ENOUGH, Finding
from veil.pipeline.lifecycles.tables import bucket_of
from veil.pipeline.timeouts.history import History, Work
from veil.pipeline.timeouts.recommendation import SENSIBLE_S
from veil.pipeline.timeouts.run import Goal, find_all

SEEDS = range(5)
ATTEMPTS = 100_000


def found(history: History, target: float = 1.0) -> Finding:
    goals = {Work("r", "a", "q", ""): Goal(target, least_cost=True)}
    (finding,) = find_all({Work("r", "a", "q", ""): history}, goals=goals)
    return finding


def a_history(known: Known, seed: int, crashed: float, timeout_s: int = 30) -> History:
    history = quick_history_of(known, seed, leases=ATTEMPTS, timeout_s=timeout_s)
    crashes = int(np.random.default_rng(seed).poisson(ATTEMPTS * crashed))
    history.crashed += crashes
    history.recovery[bucket_of(timeout_s * 1000)] += crashes
    return history


@pytest.mark.parametrize("crashed", [1 / 50_000, 1 / 5_000, 1 / 500])
@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name)
def test_it_costs_hardly_more_than_the_timeout_that_truly_costs_least(known: Known, crashed: float):
    median_s = next(at / 100 for at in range(1, 10_000) if known.survival(at / 100) <= 0.5)

    def cost_s(timeout_s: int) -> float:
        return known.survival(timeout_s) * median_s + crashed * timeout_s

    least_s = min(cost_s(each) for each in SENSIBLE_S)
    findings = [found(a_history(known, seed, crashed)) for seed in SEEDS]
    costs = [cost_s(each.recommended_timeout_s or 0) / least_s for each in findings]
    # Of one crash in 50,000 a hundred thousand attempts tell little.
    assert sum(costs) / len(costs) < (1.2 if crashed < 1e-4 else 1.05)


def test_without_a_crash_it_grows_with_what_is_known_and_is_never_the_longest_there_is():
    few = quick_history_of(EXPONENTIAL, 1, leases=1_000, timeout_s=30)
    many = quick_history_of(EXPONENTIAL, 1, leases=1_000_000, timeout_s=30)
    assert (found(few).recommended_timeout_s or 0) < (found(many).recommended_timeout_s or 0) < 120


def test_the_owners_target_is_a_bound_on_what_costs_least():
    history = a_history(EXPONENTIAL, 1, 0.05, timeout_s=3)
    least, bounded = found(history), found(history, target=0.001)
    (means,) = [each for each in bounded.candidates if each.timeout_s == bounded.recommended_timeout_s]
    assert (least.recommended_timeout_s or 0) < (bounded.recommended_timeout_s or 0)
    assert means.policies[0].duplicate_chance_high <= 0.001
    assert bounded.certainty == CLEAR


@pytest.mark.parametrize(("timeout_s", "after_s"), [(30, 120), (300, 900), (900, None)])
def test_work_that_is_given_up_at_its_deadline_is_given_longer_up_to_a_bound(
    timeout_s: int, after_s: int | None
):
    # Of the last ones it is not known yet what became of them.
    for completed, unknown in ((0, 0), (1_000, 0), (1_000, 200)):
        history = quick_history_of(EXPONENTIAL, 1, leases=completed, timeout_s=timeout_s)
        history.leases += 500
        history.unknown = unknown
        history.lapses[bucket_of(timeout_s * 1000)] = 500
        finding = found(history)
        assert finding.recommended_timeout_s == after_s
        assert finding.certainty == (NOT_ENOUGH if after_s is None else CLEAR)


def test_a_handful_of_attempts_is_no_evidence():
    assert found(quick_history_of(EXPONENTIAL, 1, leases=10, timeout_s=1)).certainty == NOT_ENOUGH
