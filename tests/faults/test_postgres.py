"""The database crashes, its standby takes over, a node is killed: no promise is broken, and service is there again at once."""

from __future__ import annotations

import pytest

from tests.faults import postgres_kit
from tests.faults.postgres_nodes import run_node_kills
from tests.faults.postgres_partitions import run_partitions, why_no_network
from tests.faults.postgres_promotions import run_promotions
from tests.faults.postgres_stops import run_server_stops, run_stops
from tests.postgres_server import why_no_server

SEED = 20_261_116

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_no_server() is not None, reason=str(why_no_server()))]


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits longer and longer is still found; seconds are measured by make faults, which has the machine for itself."""
    monkeypatch.setattr(postgres_kit, "AWAY_S_MAX", 60.0)


def test_immediate_stops_of_postgresql_lose_invent_and_resurrect_nothing() -> None:
    outcome = run_stops(2, SEED)

    assert outcome.ok, str(outcome)


def test_the_rig_catches_a_database_that_does_not_wait_for_its_disk() -> None:
    careless = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    # Sends that are lost, or deletes: which of them were in the second that the stop takes is chance, and now and then none was.
    for attempt in range(10):
        outcome = run_stops(1, SEED + attempt, nodes=1, settings=careless)
        outcome.discard()
        if {"lost", "resurrected"} & outcome.violations.keys():
            return
    pytest.fail(f"the rig did not see that the database does not wait for its disk: {outcome}")


def test_the_promotion_of_a_synchronous_standby_loses_nothing() -> None:
    outcome = run_promotions(1, SEED)

    assert outcome.ok, str(outcome)


def test_when_one_node_is_killed_the_other_serves_on() -> None:
    outcome = run_node_kills(2, SEED)

    assert outcome.ok, str(outcome)


def test_the_stop_of_one_of_two_servers_concerns_its_own_queues_only() -> None:
    outcome = run_server_stops(1, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.soak
@pytest.mark.skipif(why_no_network() is not None, reason=str(why_no_network()))
def test_a_node_that_is_left_with_the_old_primary_acknowledges_nothing() -> None:
    outcome = run_partitions(1, SEED)

    assert outcome.ok, str(outcome)


@pytest.mark.soak
@pytest.mark.skipif(why_no_network() is not None, reason=str(why_no_network()))
def test_the_rig_sees_two_queues_where_the_standby_is_not_synchronous() -> None:
    outcome = run_partitions(1, SEED, synchronous=False)
    outcome.discard()

    assert outcome.violations.get("two queues"), str(outcome)
