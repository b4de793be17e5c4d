"""What the rigs on PostgreSQL share: nodes on one database, a load over all of them, and a watch on how long service is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.checker import check
from tests.faults.client import Client, Refused, Unknown
from tests.faults.history import History
from tests.faults.load import Load
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess
from tests.postgres_server import PostgresServer

if TYPE_CHECKING:
    from tests.faults.postgres_partitions import Network

AWAY_S_MAX = 10.0  # how long service may be away
DATABASE = "veil"
PROBE = "probe"
_DRAIN_S = 60.0
_LOOK_EVERY_S = 0.02
_TICK_S, _STILL_S = 0.1, 1.0
_COUNTS_AND_MESSAGES = """
SELECT q.name, coalesce(c.visible, 0), coalesce(c.in_flight, 0), coalesce(c.delayed, 0), m.visible, m.in_flight, m.delayed
FROM veil.queue q
CROSS JOIN LATERAL (
    SELECT sum(visible)::bigint AS visible, sum(in_flight)::bigint AS in_flight, sum(delayed)::bigint AS delayed
    FROM veil.queue_count c WHERE c.queue_id = q.id) c
CROSS JOIN LATERAL (
    -- The states are core.lease.State's.
    SELECT count(*) FILTER (WHERE state = 0) AS visible, count(*) FILTER (WHERE state = 2) AS in_flight,
           count(*) FILTER (WHERE state = 1) AS delayed
    FROM veil.message m WHERE m.queue_id = q.id) m
WHERE q.deleted_at_ms IS NULL"""


class Stage:
    """The nodes, the load over them, and what was seen."""

    def __init__(self, outcome: Outcome, nodes: list[ServerProcess], load: Load, away_s_max: float) -> None:
        self.outcome, self.nodes, self.load, self._away_s_max = outcome, nodes, load, away_s_max
        self.away_s: list[float] = []
        self.still_s = 0.0  # how long the rig itself stood still, and the nodes with it

    async def watch_machine(self) -> None:
        """Notice, until cancelled, when the whole machine is held up: what it takes away is not held against the nodes."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            late_s = time.monotonic() - before_s - _TICK_S
            if late_s > _STILL_S:
                self.still_s += late_s

    async def until_served(self, since_s: float, *ports: int, queue: str = PROBE) -> None:
        """Wait until a send is answered again on each of these ports, and hold it against the nodes if that took too long."""
        still_before_s = self.still_s
        for port in ports:
            client = Client(port, retry_s=1.0)
            while not await is_served(client, queue):
                if time.monotonic() - since_s - self.still_s + still_before_s > 3 * self._away_s_max:
                    self.outcome.add("away", f"no service after {3 * self._away_s_max:g} s")
                    break
                await asyncio.sleep(_LOOK_EVERY_S)
            client.close()
        away_s = time.monotonic() - since_s - self.still_s + still_before_s
        self.away_s.append(away_s)
        if away_s > self._away_s_max:
            self.outcome.add("away", f"service was away for {away_s:.1f} s")


async def is_served(client: Client, queue: str = PROBE) -> bool:
    """Whether a send to the queue is answered."""
    try:
        await client.call("SendMessage", QueueUrl=queue, MessageBody="are you there")
    except (Refused, Unknown):
        return False
    return True


def run_on_postgres(
    outcome: Outcome,
    dsn: str,
    work: Callable[[Stage], Awaitable[None]],
    *,
    nodes: int,
    consumers: int = 8,
    network: Network | None = None,
    away_s_max: float | None = None,
) -> None:
    """Run the work under load on so many nodes of one database, drain, and judge what the clients saw.

    In a network of our own each node is on a machine of its own.
    """
    with scratch(outcome) as place:
        machines = [None] * nodes if network is None else network.machines
        servers = [_node(place / f"node{number}", dsn, machines[number]) for number in range(nodes)]
        if network is not None:
            for machine, server in enumerate(servers):
                network.lend_port(machine, server.port)
        history = History(place / "history.jsonl")
        ports = [server.port for server in servers]
        load = Load(ports[0], outcome.seed, history, consumers=consumers, other_ports=tuple(ports[1:]))
        stage = Stage(outcome, servers, load, away_s_max or AWAY_S_MAX)
        began_s = time.monotonic()
        try:
            asyncio.run(_run(stage, work))
        except ServerGone as problem:
            outcome.add("server", str(problem))
        finally:
            for server in servers:
                server.kill()
            history.close()
        with contextlib.nullcontext() if network is None else network.on(0):
            judge_counts(outcome, dsn)
        verdict = check(history.events, drained=outcome.ok)
        outcome.take(verdict)
        counts = " ".join(f"{name}={count}" for name, count in verdict.counts.items())
        cycles, longest_s = len(stage.away_s), max(stage.away_s, default=0)
        took_s = time.monotonic() - began_s
        away = f"away {longest_s:.1f} s at most, machine {stage.still_s:.1f} s"
        outcome.done = f"{cycles} cycles in {took_s:.0f} s, {away}, {counts}"


def _node(place: Path, dsn: str, machine: str | None) -> ServerProcess:
    place.mkdir()
    # Judged here is whether what is due comes at once; that leases have a grace after trouble, lease_troubles.py judges.
    return ServerProcess(
        place / "data", place, arguments=("--store", dsn, "--no-lease-grace"), network=machine
    )


async def _run(stage: Stage, work: Callable[[Stage], Awaitable[None]]) -> None:
    for node in stage.nodes:
        await asyncio.to_thread(node.start)
    client = Client(stage.nodes[0].port)
    await client.call("CreateQueue", QueueName=PROBE)
    client.close()
    await stage.load.create_queues()
    stage.load.start()
    watching = asyncio.create_task(stage.watch_machine())
    try:
        await work(stage)
        for node in stage.nodes:
            node.require_alive()
    finally:
        watching.cancel()
        await stage.load.stop()
    left = await stage.load.drain(_DRAIN_S)
    if left:
        stage.outcome.add("undrained", f"{left} messages were left after {_DRAIN_S:g} s of draining")


def judge_counts(outcome: Outcome, dsn: str) -> None:
    """Compare the counts of every queue with its messages, on each server that the DSN names: they agree in every snapshot."""
    import psycopg

    for server in dsn.split():
        with psycopg.connect(server) as connection:
            for name, *numbers in connection.execute(_COUNTS_AND_MESSAGES):
                if numbers[:3] != numbers[3:]:
                    outcome.add(
                        "counts",
                        f"{name} counts {numbers[:3]} visible, in flight, delayed and has {numbers[3:]}",
                    )


def create_database(server: PostgresServer) -> str:
    """The DSN of a new database for the nodes."""
    import psycopg

    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
    return server.dsn(DATABASE)
