"""Immediate stops of PostgreSQL under load, again and again; the nodes stay, and are there again when it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

from tests.faults.postgres_kit import Stage, create_database, run_on_postgres
from tests.faults.rig import Outcome
from tests.postgres_server import PostgresServer

STOPS = 50
_LOAD_S = (0.3, 1.5)  # how long a life under load lasts
_GONE_S = (0.0, 1.0)  # how long it stays away
_GONE_LONG_S = 15.0  # now and then: whoever waits longer and longer between tries would come late
_LONG_EVERY = 10


def run_stops(
    cycles: int = STOPS, seed: int = 1, *, nodes: int = 2, settings: Mapping[str, str] | None = None
) -> Outcome:
    """Stop and start it so many times, as a crash does: nothing is finished, nothing is written."""
    outcome = Outcome("postgres-stops", seed)
    rng = random.Random(seed)
    with PostgresServer(settings=settings) as postgres:

        async def work(stage: Stage) -> None:
            for cycle in range(1, cycles + 1):
                await asyncio.sleep(rng.uniform(*_LOAD_S))
                await asyncio.to_thread(postgres.stop, "immediate")
                await asyncio.sleep(_GONE_LONG_S if cycle % _LONG_EVERY == 0 else rng.uniform(*_GONE_S))
                since_s = time.monotonic()
                await asyncio.to_thread(postgres.start)
                await stage.until_served(since_s, *(node.port for node in stage.nodes))

        run_on_postgres(outcome, create_database(postgres), work, nodes=nodes)
    return outcome
