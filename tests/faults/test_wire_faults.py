"""Clients that vanish, a server that is told to stop, a consumer that sleeps too long."""

from __future__ import annotations

import pytest

from tests.faults.paused import run_pauses
from tests.faults.stopping import run_stops
from tests.faults.uploads import run_unread, run_uploads
from tests.faults.vanishing import run_vanishing

SEED = 20_261_115


@pytest.mark.slow
def test_nothing_stays_hidden_for_clients_that_vanished_in_a_long_poll() -> None:
    outcome = run_vanishing(150, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
def test_a_stop_under_load_answers_every_long_poll_and_hides_nothing() -> None:
    outcome = run_stops(2, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
def test_a_consumer_that_was_stopped_for_too_long_takes_nothing_from_the_next_holder() -> None:
    outcome = run_pauses(1, SEED)

    assert outcome.ok, str(outcome)


def test_the_memory_of_uploads_that_were_broken_off_is_given_back_at_once() -> None:
    outcome = run_uploads(40, SEED)

    assert outcome.ok, str(outcome)


def test_answers_that_nobody_reads_are_bounded_while_they_are_made_too() -> None:
    outcome = run_unread(100, SEED)

    assert outcome.ok, str(outcome)
