"""Consumers that are slow, held up, cut off, frozen, killed and stopped: each message is handled, and held by one at a time."""

from __future__ import annotations

import pytest

from tests.faults.consumer_gil import run_gil
from tests.faults.consumer_kills import run_kills
from tests.faults.consumer_long import run_long, run_renewed
from tests.faults.consumer_pauses import run_pauses
from tests.faults.consumer_stops import run_stops
from tests.faults.consumer_wire import run_wire

SEED = 20_261_115
pytestmark = pytest.mark.slow


def test_handlers_that_wait_or_compute_keep_their_messages() -> None:
    outcome = run_renewed(100, SEED)

    assert outcome.ok, str(outcome)


def test_the_rig_catches_a_consumer_that_does_not_renew() -> None:
    outcome = run_long(4, SEED, windows=2, renews=False)

    outcome.discard()
    assert outcome.violations.get("redelivered"), str(outcome)


def test_a_held_interpreter_costs_no_lease_with_a_helper_process_and_is_reported_without() -> None:
    outcome = run_gil(1, SEED)

    assert outcome.ok, str(outcome)


def test_a_consumer_frozen_for_two_windows_loses_its_message_once_is_told_and_does_no_harm() -> None:
    outcome = run_pauses(2, SEED)

    assert outcome.ok, str(outcome)


def test_what_a_killed_consumer_held_comes_back_after_its_deadline_and_not_before() -> None:
    outcome = run_kills(1, SEED, window_s=8, interval_s=0.2, late_s_max=60)

    assert outcome.ok, str(outcome)


def test_stops_under_load_hide_lose_and_double_nothing() -> None:
    outcome = run_stops(4, SEED)

    assert outcome.ok, str(outcome)


def test_no_lease_is_lost_while_one_renewal_in_three_gets_through() -> None:
    outcome = run_wire(12, SEED, renewals=2)

    assert outcome.ok, str(outcome)
