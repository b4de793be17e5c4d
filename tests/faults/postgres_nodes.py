"""kill -9 of one of two nodes under load, again and again: the other serves on, and what the dead one held comes back."""

from __future__ import annotations

import asyncio
import random
import time

from tests.faults.postgres_kit import Stage, create_database, run_on_postgres
from tests.faults.rig import Outcome
from tests.postgres_server import PostgresServer

KILLS = 50
_LOAD_S = (0.3, 1.2)
_ALONE_S = (0.2, 1.0)  # how long the other is alone


def run_node_kills(cycles: int = KILLS, seed: int = 1) -> Outcome:
    """Kill so many nodes, one or the other; each is started again."""
    outcome = Outcome("postgres-nodes", seed)
    rng = random.Random(seed)
    with PostgresServer() as postgres:

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

        run_on_postgres(outcome, create_database(postgres), work, nodes=2)
    return outcome
