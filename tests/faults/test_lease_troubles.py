"""Short runs of the rigs of lease troubles: no holder loses its lease by the server's trouble, and without the grace some do."""

from __future__ import annotations

import pytest

from tests.faults.lease_troubles import run_failovers, run_restarts, run_stalls
from tests.pgbouncer import why_no_pgbouncer
from tests.postgres_server import why_no_server

SEED = 20_261_117
SHORT = {"holders": 10, "windows_s": (2, 4)}


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_stalls, run_restarts])
def test_no_holder_loses_its_lease_by_the_servers_trouble(run) -> None:
    outcome = run(3, SEED, longest_s=4.0, **SHORT)

    assert outcome.ok, str(outcome)
    assert "completed" in outcome.done


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(why_no_server() is not None, reason="needs a PostgreSQL of its own")
def test_no_holder_loses_its_lease_by_a_failover() -> None:
    outcome = run_failovers(1, SEED, **SHORT)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(why_no_pgbouncer() is not None, reason=str(why_no_pgbouncer()))
def test_no_holder_loses_its_lease_by_a_failover_behind_pgbouncer() -> None:
    outcome = run_failovers(1, SEED, pooled=True, **SHORT)

    assert outcome.ok, str(outcome)


@pytest.mark.slow
@pytest.mark.soak  # a few stalls do not always hit a holder that comes too late: what they find is chance
def test_the_rig_sees_leases_that_are_lost_without_the_grace() -> None:
    for attempt in range(4):
        outcome = run_stalls(2, SEED + attempt, longest_s=6.0, grace=False, **SHORT)
        outcome.discard()
        if outcome.violations.get("doubled"):
            return
    pytest.fail(f"no lease was lost: {outcome}")
