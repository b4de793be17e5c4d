"""No input costs more than its size, and no request keeps the event loop for long: the short version of the rig."""

from __future__ import annotations

import random
import re

import pytest

from tests.faults.growth import functions, run_growth, too_fast
from tests.faults.work import run_work

SEED = 20_261_117
_FUNCTIONS = len(list(functions()))


@pytest.mark.slow
def test_a_sample_of_growing_inputs_costs_no_more_than_their_size() -> None:
    chosen = random.Random(SEED)
    sample = {place for place in range(4_000) if place < _FUNCTIONS or chosen.random() < 0.08}

    tried, problems = run_growth(32 * 1024, sample.__contains__)

    assert tried > 150
    assert problems == []


@pytest.mark.parametrize("way", ["blanks", "numbers"])
async def test_what_backtracks_is_found(way: str) -> None:
    pattern, text = {"blanks": (r"(?:\s|\w)*?\s+=", " "), "numbers": (r"\d+\.?\d*\Z", "1")}[way]

    def make(size: int):  # type: ignore[no-untyped-def]
        async def job() -> None:
            re.match(pattern, text * size + "x")

        return job

    assert await too_fast((way, make, 1 << 20), 1 << 20) is not None


@pytest.mark.slow
def test_no_request_of_any_size_keeps_the_loop_for_long() -> None:
    # A busy machine makes all work dearer; what this looks for took seconds.
    outcome = run_work(200, SEED, largest=False, growth_bytes=0, bound_s=0.5)

    assert outcome.ok, str(outcome)
