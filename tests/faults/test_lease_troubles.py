"""Short runs of the rigs of lease troubles: no holder loses its lease by the server's trouble. That they would find one that
does is shown in virtual time, by test_lease_holders.py."""

from __future__ import annotations

import pytest

from tests.faults.lease_troubles import run_failovers, run_restarts, run_stalls
from tests.pgbouncer import why_no_pgbouncer
from tests.postgres_server import why_no_server

SEED = 20_261_117
SHORT = {"count": 10, "windows_s": (2, 4)}


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
