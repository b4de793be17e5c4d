"""The primary dies under load and its synchronous standby is promoted; the nodes follow by a DSN that names both.

On a PostgreSQL that others run, `VEIL_TEST_FAILOVER` is the command that has the server of `VEIL_TEST_POSTGRES` fail over.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from urllib.parse import quote

from tests.faults.postgres_kit import DATABASE, Stage, create_database, run_on_postgres
from tests.faults.postgres_nodes import database
from tests.faults.rig import Outcome
from tests.postgres_kit import GIVEN
from tests.postgres_server import USER, PostgresServer, why_no_server

PROMOTIONS = 10
_LOAD_S = (0.5, 2.0)
_IN_STEP_S = 30.0
STANDBY_SETTINGS = {
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "wal_keep_size": "256MB",
}


_FAILOVER = os.environ.get("VEIL_TEST_FAILOVER") if GIVEN else None


def why_no_failover() -> str | None:
    """Why there can be none here; None where there can."""
    return None if _FAILOVER else why_no_server()


def run_promotions(cycles: int = PROMOTIONS, seed: int = 1) -> Outcome:
    """Fail over so many times, by the command that was given or on two servers of our own."""
    return _run_given(_FAILOVER, cycles, seed) if _FAILOVER else _run_own(cycles, seed)


def _run_given(command: str, cycles: int, seed: int) -> Outcome:
    outcome, rng = Outcome("postgres-promotions", seed), random.Random(seed)

    async def work(stage: Stage) -> None:
        for _ in range(cycles):
            await asyncio.sleep(rng.uniform(*_LOAD_S))
            await asyncio.to_thread(subprocess.run, command, shell=True, check=True)
            await stage.until_served(time.monotonic(), *(node.port for node in stage.nodes))

    with database() as dsn:
        run_on_postgres(outcome, dsn, work, nodes=2)
    return outcome


def _run_own(cycles: int, seed: int) -> Outcome:
    """Kill the primary and promote the other; the dead one comes back as the new standby."""
    outcome = Outcome("postgres-promotions", seed)
    rng = random.Random(seed)
    primary, standby = PostgresServer(settings=STANDBY_SETTINGS), PostgresServer(settings=STANDBY_SETTINGS)
    try:
        primary.create()
        primary.start()
        create_database(primary)
        follow(standby, primary)

        async def work(stage: Stage) -> None:
            nonlocal primary, standby
            for cycle in range(cycles):
                await asyncio.sleep(rng.uniform(*_LOAD_S))
                since_s = time.monotonic()
                # First dead, then replaced: with both alive for a moment, each would take writes of its own.
                await asyncio.to_thread(primary.stop, "kill")
                await asyncio.to_thread(standby.promote)
                primary, standby = standby, primary
                await stage.until_served(since_s, *(node.port for node in stage.nodes))
                if cycle + 1 < cycles:
                    await asyncio.to_thread(follow, standby, primary)

        run_on_postgres(outcome, dsn_of(primary, standby), work, nodes=2)
    finally:
        primary.remove()
        standby.remove()
    return outcome


def dsn_of(*servers: PostgresServer) -> str:
    """A DSN that leads to whichever of them takes writes."""
    hosts = quote(",".join(server.host for server in servers), safe="")
    ports = quote(",".join(str(server.port) for server in servers), safe="")
    return f"postgresql://{USER}@/{DATABASE}?host={hosts}&port={ports}&target_session_attrs=read-write&connect_timeout=3"


def follow(standby: PostgresServer, primary: PostgresServer) -> None:
    """Make the standby a copy of the primary, and wait until every commit of the primary is on it too."""
    import psycopg

    standby.copy_from(primary, name="veil_standby")
    standby.start()
    with psycopg.connect(primary.dsn("postgres"), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (veil_standby)'")
        connection.execute("SELECT pg_reload_conf()")
        deadline_s = time.monotonic() + _IN_STEP_S
        # What was committed before the setting took effect waited for nobody: all of it must have arrived too.
        written = None
        while True:
            row = connection.execute(
                "SELECT sync_state, flush_lsn >= %s FROM pg_stat_replication", (written,)
            ).fetchone()
            if row is not None and row[0] == "sync":
                if row[1]:
                    return
                if written is None:
                    (written,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone() or (None,)
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"the standby was not in step after {_IN_STEP_S:g} s: {row}, {standby.talk()}"
                )
            time.sleep(0.05)
