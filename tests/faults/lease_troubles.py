"""Holders that renew in time, under a server that cannot always take it: the disk stalls, the process is stopped or restarted,
the database fails over. None of them may lose its lease by that, and what holders that died had comes back in time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from tests.faults.client import Client
from tests.faults.lease_holders import HOLDERS, WINDOWS_S, Holders
from tests.faults.postgres_kit import DATABASE, create_database, judge_counts
from tests.faults.postgres_promotions import STANDBY_SETTINGS, dsn_of, follow
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerProcess
from tests.pgbouncer import PgBouncer
from tests.postgres_server import PostgresServer

STALLS, RESTARTS, FAILOVERS = 200, 100, 20
_STOP_S = 120.0  # a stop has only to end: how long it takes is not what is tried here


def run_stalls(
    cycles: int = STALLS,
    seed: int = 1,
    *,
    count: int = HOLDERS,
    windows_s: tuple[int, ...] = WINDOWS_S,
    longest_s: float = 30.0,
    grace: bool = True,
    kinds: tuple[str, ...] = ("sync", "pause", "checkpoint", "stop"),
) -> Outcome:
    """Stall the disk's sync, the checkpoint or the whole process so many times.

    Requests wait for a process that is stopped. Where the machine is paused with it they are lost, which is worse: without a
    grace whoever asks first afterwards has the message.
    """
    outcome, rng = Outcome("stalls", seed), random.Random(seed)

    async def work(server: ServerProcess, place: Path, holders: Holders) -> None:
        total_s = 0.0
        for cycle in range(cycles):
            await holders.pause()
            length_s = rng.uniform(1.0, longest_s)
            total_s += length_s
            kind = kinds[cycle % len(kinds)]
            is_process = kind in ("stop", "pause")
            holders.is_cut_off = kind == "pause"
            if is_process:
                os.kill(server.pid, signal.SIGSTOP)
            else:
                (place / kind).touch()
            await holders.suffer(length_s, holds_up=kind != "checkpoint")
            holders.is_cut_off = False
            if is_process:
                os.kill(server.pid, signal.SIGCONT)
            else:
                (place / kind).unlink()
            await holders.over()
        await holders.pause()
        outcome.done = f"{cycles} stalls, {total_s:.0f} s in all"

    _run(outcome, rng, work, count, windows_s, grace)
    return outcome


def run_restarts(
    cycles: int = RESTARTS,
    seed: int = 1,
    *,
    count: int = HOLDERS,
    windows_s: tuple[int, ...] = WINDOWS_S,
    longest_s: float = 60.0,
    grace: bool = True,
) -> Outcome:
    """Stop or kill the server so many times, and start it again after a while."""
    outcome, rng = Outcome("restarts", seed), random.Random(seed)

    async def work(server: ServerProcess, place: Path, holders: Holders) -> None:
        total_s = 0.0
        for cycle in range(cycles):
            await holders.pause()
            length_s = rng.uniform(1.0, longest_s)
            total_s += length_s
            await asyncio.to_thread(server.kill if cycle % 2 else lambda: server.terminate(_STOP_S))
            await holders.suffer(length_s)
            await asyncio.to_thread(server.start)
            await holders.over()
        await holders.pause()
        outcome.done = f"{cycles} restarts, {total_s:.0f} s away in all"

    _run(outcome, rng, work, count, windows_s, grace, stalls=False)
    return outcome


def without_grace(run: Callable[..., Outcome], cycles: int, seed: int) -> Outcome:
    """A rig again with leases that lapse as ever: one that finds none lost by that would find nothing else either."""
    found = run(cycles, seed, grace=False)
    found.discard()
    outcome = Outcome(f"{found.rig}-no-grace", seed, found.done)
    if len(found.violations.pop("doubled", ())) < cycles:
        outcome.add("missed", "fewer than one doubled attempt a trouble")
    outcome.violations |= found.violations  # none of the others needs a grace
    return outcome


def _noted(*servers: ServerProcess) -> list[float]:
    """When the troubles that they noted were over, as they logged it."""
    lines = [line for server in servers for line in server.log_path.read_text(errors="replace").splitlines()]
    noted = [line.split()[0] for line in lines if "renewals could not be taken" in line]
    return [datetime.fromisoformat(at).timestamp() for at in noted]


def _connect(*ports: int) -> Callable[..., Client]:
    """Connections to nodes on these ports by turns, as behind a balancer, or to one of them."""
    turns = itertools.cycle(range(len(ports)))

    def connect(answer_s: float, node: int | None = None) -> Client:
        first = next(turns)
        chosen = (*ports[first:], *ports[:first]) if node is None else ports[node : node + 1]
        return Client(*chosen, retry_s=answer_s)

    return connect


def _run(
    outcome: Outcome,
    rng: random.Random,
    work: Callable[[ServerProcess, Path, Holders], Awaitable[None]],
    count: int,
    windows_s: tuple[int, ...],
    grace: bool,
    *,
    stalls: bool = True,
) -> None:
    arguments = ("--stop-grace-s", "1") + (() if grace else ("--no-lease-grace",))
    with scratch(outcome) as place:
        server = ServerProcess(place / "data", place, stalls=place if stalls else None, arguments=arguments)

        async def run() -> None:
            holders = Holders(
                _connect(server.port), outcome, rng, 1, count, windows_s, lambda: _noted(server)
            )
            async with holders.at_work():
                await work(server, place, holders)

        with server:
            try:
                asyncio.run(run())
            finally:
                for name in ("sync", "checkpoint"):
                    (place / name).unlink(missing_ok=True)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGCONT)


def run_failovers(
    cycles: int = FAILOVERS,
    seed: int = 1,
    *,
    count: int = HOLDERS,
    windows_s: tuple[int, ...] = WINDOWS_S,
    grace: bool = True,
    pooled: bool = False,
) -> Outcome:
    """Kill the primary of the nodes' database so many times, and promote its standby after a while.

    The nodes know both servers, or a PgBouncer that is told of the new one.
    """
    outcome, rng = Outcome("failovers-pgbouncer" if pooled else "failovers", seed), random.Random(seed)
    primary, standby = PostgresServer(settings=STANDBY_SETTINGS), PostgresServer(settings=STANDBY_SETTINGS)
    bouncer: PgBouncer | None = None
    try:
        primary.create()
        primary.start()
        create_database(primary)
        follow(standby, primary)
        bouncer = PgBouncer(primary) if pooled else None
        dsn = dsn_of(primary, standby) if bouncer is None else bouncer.dsn(DATABASE)
        arguments = ("--store", dsn) + (() if grace else ("--no-lease-grace",))
        with scratch(outcome) as place:
            nodes = []
            for number in range(2):
                (place / f"node{number}").mkdir()
                nodes.append(ServerProcess(place / "data", place / f"node{number}", arguments=arguments))

            async def run() -> None:
                nonlocal primary, standby
                away_s: list[float] = []
                connect = _connect(*(node.port for node in nodes))
                holders = Holders(connect, outcome, rng, len(nodes), count, windows_s, lambda: _noted(*nodes))
                async with holders.at_work():
                    for cycle in range(cycles):
                        await holders.pause()
                        await asyncio.to_thread(primary.stop, "kill")
                        # Short ones too: nodes notice those by what they ask themselves, not by one another's silence.
                        await holders.suffer(rng.uniform(*((1.0, 15.0) if cycle % 2 else (0.2, 2.0))))
                        await asyncio.to_thread(standby.promote)
                        primary, standby = standby, primary
                        if bouncer is not None:
                            await asyncio.to_thread(bouncer.lead_to, primary)
                        away_s.append(await holders.until_served())
                        await holders.over()
                        await holders.pause()
                        if cycle + 1 < cycles:
                            await asyncio.to_thread(follow, standby, primary)
                    outcome.done = f"{cycles} failovers, served {max(away_s):.1f} s after a promotion at most"

            with nodes[0], nodes[1]:
                asyncio.run(run())
            judge_counts(outcome, primary.dsn(DATABASE))
    finally:
        if bouncer is not None:
            bouncer.remove()
        primary.remove()
        standby.remove()
    return outcome
