"""Kills under load break no promise, and the same rig catches builds that break one."""

from __future__ import annotations

import pytest

from tests.faults.broken_server import SHOWS_AS
from tests.faults.crash import run_crashes

CYCLES = 5
SEED = 20_261_115
ACK_EARLY = "ack-before-commit"


@pytest.mark.slow
def test_kills_under_load_lose_invent_and_misplace_nothing() -> None:
    outcome = run_crashes(CYCLES, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
def test_kills_of_workers_and_of_their_store_process_lose_invent_and_misplace_nothing() -> None:
    outcome = run_crashes(3, SEED, workers=2)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        ACK_EARLY,
        *(
            pytest.param(fault, marks=pytest.mark.soak)
            for fault in SHOWS_AS
            if fault not in (ACK_EARLY, "nosync")
        ),
    ],
)
def test_the_rig_catches_a_broken_build(fault: str) -> None:
    # What was acknowledged and is not there may have been a send or a delete.
    shows_as = {"lost", "resurrected"} if fault == ACK_EARLY else {SHOWS_AS[fault]}
    # Whether a fault shows in one short run is a matter of timing: two of three do. That none of ten does will not be seen.
    for attempt in range(10):
        outcome = run_crashes(3, SEED + attempt, broken=fault, kills=fault == ACK_EARLY)
        outcome.discard()
        if any(outcome.violations.get(kind) for kind in shows_as):
            return
    pytest.fail(f"the rig did not see that the build is broken: {outcome}")
