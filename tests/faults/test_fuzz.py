"""Malformed requests are refused, one by one and by the thousand."""

from __future__ import annotations

import random

import pytest

from tests.faults.fuzz import run_fuzz
from tests.faults.malformed_framed import framed
from tests.faults.malformed_inputs import operations
from tests.faults.malformed_raw import raw

SEED = 20_261_115


@pytest.mark.slow
def test_thousands_of_malformed_requests_are_answered_and_leave_the_server_well() -> None:
    outcome = run_fuzz(6_000, SEED)

    assert outcome.ok, str(outcome)


def test_the_same_seed_makes_the_same_requests() -> None:
    for make in (framed, raw):
        first, second = random.Random(7), random.Random(7)
        assert [make(first) for _ in range(300)] == [make(second) for _ in range(300)]


def test_every_action_is_spoiled_in_both_protocols() -> None:
    rng = random.Random(1)
    seen = b"".join(framed(rng)[:400] for _ in range(1_200))

    assert len(operations()) == 23
    for operation in operations():
        assert b"AmazonSQS." + operation.name.encode() in seen
        assert b"Action=" + operation.name.encode() in seen
