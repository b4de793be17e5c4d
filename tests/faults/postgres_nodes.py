"""kill -9 of one of two nodes under load, again and again: the other serves on, and what the dead one held comes back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.postgres_kit import Stage, create_database, run_on_postgres
from tests.faults.rig import Outcome
from tests.postgres_kit import GIVEN, drop_database, new_database
from tests.postgres_server import PostgresServer

KILLS = 50
_LOAD_S = (0.3, 1.2)
_ALONE_S = (0.2, 1.0)  # how long the other is alone


@contextmanager
def database() -> Iterator[str]:
    """The DSN of a database for the nodes: on the server that VEIL_TEST_POSTGRES names, else on one that syncs to a disk."""
    if GIVEN:
        dsn = new_database()
        yield dsn
        drop_database(dsn)
    else:
        with PostgresServer() as postgres:
            yield create_database(postgres)


def run_node_kills(cycles: int = KILLS, seed: int = 1) -> Outcome:
    """Kill so many nodes, one or the other; each is started again."""
    outcome = Outcome("postgres-nodes", seed)
    rng = random.Random(seed)
    with database() as dsn:

        async def work(stage: Stage) -> None:
            for _ in range(cycles):
                await asyncio.sleep(rng.uniform(*_LOAD_S))
                victim, other = rng.sample(stage.nodes, 2)
                victim.require_alive()
                victim.kill()
                await stage.until_served(time.monotonic(), other.port)
                await asyncio.sleep(rng.uniform(*_ALONE_S))
                other.require_alive()
                await asyncio.to_thread(victim.start)

        run_on_postgres(outcome, dsn, work, nodes=2)
    return outcome
