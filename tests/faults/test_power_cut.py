"""Power cuts lose nothing that was acknowledged, and a build that does not sync is caught."""

from __future__ import annotations

import pytest

from tests.faults.power_cut import run_power_cuts, why_not

SEED = 20_261_115


@pytest.fixture(autouse=True, scope="module")
def _permitted() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.slow
def test_three_power_cuts_under_load_lose_nothing() -> None:
    outcome = run_power_cuts(3, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
def test_the_rig_catches_a_server_that_does_not_sync() -> None:
    for attempt in range(10):  # what the kernel had written by itself before the cut is a matter of timing
        outcome = run_power_cuts(2, SEED + attempt, broken="nosync")
        outcome.discard()
        if outcome.violations.get("lost"):
            return
    pytest.fail(f"the rig did not see that nothing was synced: {outcome}")
