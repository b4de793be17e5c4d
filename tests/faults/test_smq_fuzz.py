"""Malformed requests at SMQ's port are refused in words that its clients can read."""

from __future__ import annotations

import random

import pytest

from tests.faults.smq_fuzz import run_smq_fuzz
from tests.faults.smq_malformed import smq_framed

SEED = 20_261_116


def test_a_thousand_malformed_requests_are_answered_and_leave_the_server_well() -> None:
    outcome = run_smq_fuzz(1_000, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.soak
def test_five_thousand_malformed_requests_too() -> None:
    outcome = run_smq_fuzz(5_000, SEED + 1)

    assert outcome.ok, str(outcome)


def test_the_same_seed_makes_the_same_requests() -> None:
    first, second = random.Random(7), random.Random(7)
    assert [smq_framed(first) for _ in range(300)] == [smq_framed(second) for _ in range(300)]
