"""kill -9 at random moments under load, restart on the same data, again and again; then drain and check.

Writers and consumers go on through the crashes as real ones do, so receipts and windows from one life of the server are
used in the next.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

from tests.faults.checker import check
from tests.faults.history import History
from tests.faults.load import Load
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess

CYCLES = 10
_LOAD_S = (0.2, 1.0)  # how long a life under load lasts
_DRAIN_S = 60.0
_DRAIN_BROKEN_S = 12.0


def run_crashes(
    cycles: int = CYCLES,
    seed: int = 1,
    *,
    broken: str | None = None,
    kills: bool = True,
    load_s: tuple[float, float] = _LOAD_S,
    consumers: int = 8,
    workers: int = 1,
) -> Outcome:
    """Kill and restart so many times; without kills the load alone runs as long. Of several workers one dies in each life."""
    name = "crash" if workers == 1 else "crash-workers"
    outcome = Outcome(name if broken is None else f"crash-{broken}", seed)
    with scratch(outcome) as place:
        # After each kill open leases would have a grace, in which their messages are late by design.
        arguments = ("--no-lease-grace", *(("--workers", str(workers)) if workers > 1 else ()))
        server = ServerProcess(place / "data", place, broken=broken, arguments=arguments)
        history = History(place / "history.jsonl")
        load = Load(server.port, seed, history, consumers=consumers)
        began_s = time.monotonic()
        try:
            drain_s = _DRAIN_S if broken is None else _DRAIN_BROKEN_S
            asyncio.run(_run(outcome, server, load, cycles, random.Random(seed), kills, load_s, drain_s))
        except ServerGone as problem:
            outcome.add("server", str(problem))
        finally:
            server.kill()
            history.close()
        verdict = check(history.events, drained=outcome.ok)
        outcome.take(verdict)
        counts = " ".join(f"{name}={count}" for name, count in verdict.counts.items())
        outcome.done = f"{cycles} cycles in {time.monotonic() - began_s:.0f} s, {counts}"
    return outcome


async def _run(
    outcome: Outcome,
    server: ServerProcess,
    load: Load,
    cycles: int,
    rng: random.Random,
    kills: bool,
    load_s: tuple[float, float],
    drain_s: float,
) -> None:
    await asyncio.to_thread(server.start)
    await load.create_queues()
    load.start()
    try:
        for _ in range(cycles):
            await asyncio.sleep(rng.uniform(*load_s))
            server.require_alive()
            for worker in server.workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                await asyncio.sleep(rng.uniform(*load_s))
                server.require_alive()
            if kills:
                server.kill()
                await asyncio.to_thread(server.start)
    finally:
        await load.stop()
    left = await load.drain(drain_s)
    if left:
        outcome.add("undrained", f"{left} messages were left after {drain_s:g} s of draining")
