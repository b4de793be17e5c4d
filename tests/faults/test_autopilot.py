"""The short version of the rig that kills autopilots."""

from __future__ import annotations

import pytest

from tests.faults.autopilot_kills import run_kills


@pytest.mark.slow
def test_killed_at_any_step_a_change_is_made_once_and_audited_once() -> None:
    outcome = run_kills(4, 20_261_117)
    assert outcome.ok, str(outcome)
