"""Immediate stops of PostgreSQL under load, again and again; the nodes stay, and are there again when it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

from tests.faults.client import Client
from tests.faults.postgres_kit import Stage, create_database, is_served, run_on_postgres
from tests.faults.rig import Outcome
from tests.postgres_server import PostgresServer

STOPS = 50
_LOAD_S = (0.3, 1.5)  # how long a life under load lasts
_GONE_S = (0.0, 1.0)  # how long it stays away
_GONE_LONG_S = 15.0  # now and then: whoever waits longer and longer between tries would come late
_LONG_EVERY = 10
_ASKED_MEANWHILE = 20


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


def run_server_stops(cycles: int = STOPS, seed: int = 1, *, nodes: int = 2) -> Outcome:
    """Two servers under one set of queues, one of them killed at a time: the queues of the other must not notice."""
    outcome = Outcome("postgres-servers", seed)
    rng = random.Random(seed)
    with PostgresServer() as first, PostgresServer() as second:
        servers = (first, second)

        async def work(stage: Stage) -> None:
            client = Client(stage.nodes[0].port)
            probes: dict[int, str] = {}
            number = 0
            while len(probes) < len(servers):
                name, number = f"probe-{number}", number + 1
                await client.call("CreateQueue", QueueName=name)
                probes.setdefault(_server_of(first, name), name)
            for cycle in range(1, cycles + 1):
                await asyncio.sleep(rng.uniform(*_LOAD_S))
                stopped = cycle % 2
                await asyncio.to_thread(servers[stopped].stop, "kill")
                for _ in range(_ASKED_MEANWHILE):
                    if not await is_served(client, probes[1 - stopped]):
                        outcome.add(
                            "company", f"a queue of server {1 - stopped} failed while {stopped} was away"
                        )
                since_s = time.monotonic()
                await asyncio.to_thread(servers[stopped].start)
                for queue in probes.values():
                    await stage.until_served(since_s, *(node.port for node in stage.nodes), queue=queue)
            client.close()

        run_on_postgres(outcome, " ".join(map(create_database, servers)), work, nodes=nodes)
    return outcome


def _server_of(first: PostgresServer, queue: str) -> int:
    import psycopg

    with psycopg.connect(first.dsn("veil")) as connection:
        row = connection.execute("SELECT server FROM veil.placement WHERE name = %s", (queue,)).fetchone()
    assert row is not None
    return int(row[0])
