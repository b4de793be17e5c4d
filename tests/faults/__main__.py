"""All rigs, long: `python -m tests.faults [RIG …] [--cycles N] [--seed N] [--seconds N] [--at-once N] [--workers N]`.

Prints the seed of every run, a table at the end, and exits with 1 if any rig saw a violation. With --seconds a rig is run
again and again, under seeds that follow one another, until its time is up. With --at-once its cycles are shared among as
many runs side by side: rigs that mostly wait take less time so. With --workers every server that a rig starts has as many.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.faults import (
    autopilot_kills,
    broken_server,
    consumer_gil,
    consumer_kills,
    consumer_long,
    consumer_pauses,
    consumer_stops,
    consumer_wire,
    crash,
    demo,
    fuzz,
    lease_troubles,
    model_volume,
    paused,
    postgres_nodes,
    postgres_partitions,
    postgres_promotions,
    postgres_stops,
    power_cut,
    smq_fuzz,
    spark_source,
    stopping,
    uploads,
    vanishing,
    work,
)
from tests.faults.rig import Outcome
from tests.faults.server_process import WORKERS
from tests.pgbouncer import why_no_pgbouncer
from tests.postgres_kit import why_no_postgres
from tests.postgres_server import why_no_server


class Rig(NamedTuple):
    """A rig by name: how to run it, how long the long version is, and what could prevent it here."""

    run: Callable[[int, int], Outcome]
    cycles: int
    counts: str
    why_not: Callable[[], str | None] = lambda: None


_ATTEMPTS = 10


def _crashes(cycles: int, seed: int) -> Outcome:
    # The aim is 20 consumers; the writers' pace leaves the machine room for the server.
    return crash.run_crashes(cycles, seed, consumers=20)


def _broken_builds(cycles: int, seed: int) -> Outcome:
    """Each broken build must be caught; one that is not is the violation."""
    outcome = Outcome("broken", seed)
    caught = []
    for fault, shows_as in broken_server.SHOWS_AS.items():
        if fault == "nosync" and power_cut.why_not() is not None:
            continue
        # Whether a fault shows in one short run is a matter of timing: two of three do.
        for attempt in range(_ATTEMPTS):
            if fault == "nosync":
                found = power_cut.run_power_cuts(cycles, seed + attempt, broken=fault)
            else:
                kills = fault == "ack-before-commit"
                found = crash.run_crashes(cycles, seed + attempt, broken=fault, kills=kills)
            found.discard()
            if found.violations.get(shows_as):
                caught.append(fault)
                break
        else:
            outcome.add("missed", f"{fault} should show as {shows_as}: {found}")
    outcome.done = f"caught {', '.join(caught)} within {_ATTEMPTS} times {cycles} cycles each"
    return outcome


RIGS = {
    "crash": Rig(_crashes, 200, "kill -9"),
    "crash-workers": Rig(
        lambda cycles, seed: crash.run_crashes(cycles, seed, consumers=20, workers=2),
        100,
        "kill -9 of a worker, and then of the store process",
    ),
    "power-cut": Rig(power_cut.run_power_cuts, 200, "cuts, ext4", power_cut.why_not),
    "power-cut-xfs": Rig(
        lambda cycles, seed: power_cut.run_power_cuts(cycles, seed, file_system="xfs"),
        50,
        "cuts, xfs",
        lambda: power_cut.why_not("xfs"),
    ),
    "broken": Rig(_broken_builds, 4, "cycles per broken build"),
    "vanishing": Rig(vanishing.run_vanishing, 3_000, "long polls"),
    "uploads": Rig(uploads.run_uploads, uploads.UPLOADS, "uploads that are broken off"),
    "unread": Rig(uploads.run_unread, uploads.UNREAD, "answers of each kind that nobody reads"),
    "stopping": Rig(stopping.run_stops, 50, "SIGTERM"),
    "stalls": Rig(lease_troubles.run_stalls, lease_troubles.STALLS, "stalls of disk and process"),
    "stalls-no-grace": Rig(
        lambda cycles, seed: lease_troubles.without_grace(lease_troubles.run_stalls, cycles, seed),
        lease_troubles.STALLS // 4,
        "stalls that leases do lapse in",
    ),
    "restarts": Rig(lease_troubles.run_restarts, lease_troubles.RESTARTS, "restarts"),
    "restarts-no-grace": Rig(
        lambda cycles, seed: lease_troubles.without_grace(lease_troubles.run_restarts, cycles, seed),
        lease_troubles.RESTARTS // 4,
        "restarts that leases do lapse in",
    ),
    "failovers": Rig(
        lease_troubles.run_failovers, lease_troubles.FAILOVERS, "failovers of PostgreSQL", why_no_server
    ),
    "demo": Rig(demo.run_demos, demo.RUNS, "demos, half of them on a machine that is made bad"),
    "failovers-pgbouncer": Rig(
        lambda cycles, seed: lease_troubles.run_failovers(cycles, seed, pooled=True),
        lease_troubles.FAILOVERS,
        "failovers of PostgreSQL behind PgBouncer",
        why_no_pgbouncer,
    ),
    "paused": Rig(paused.run_pauses, 20, "SIGSTOP"),
    "consumer-long": Rig(consumer_long.run_long, consumer_long.HANDLERS, "handlers of ten windows"),
    "consumer-gil": Rig(consumer_gil.run_gil, consumer_gil.HOLDS, "holds of the interpreter"),
    "consumer-wire": Rig(consumer_wire.run_wire, consumer_wire.HANDLERS, "handlers with spoiled renewals"),
    "consumer-pauses": Rig(consumer_pauses.run_pauses, consumer_pauses.PAUSES, "SIGSTOP of a consumer"),
    "consumer-kills": Rig(consumer_kills.run_kills, consumer_kills.KILLS, "kill -9 of a consumer"),
    "consumer-stops": Rig(consumer_stops.run_stops, consumer_stops.STOPS, "SIGTERM of a consumer"),
    "autopilot-kills": Rig(autopilot_kills.run_kills, autopilot_kills.KILLS, "kill -9 of an autopilot"),
    "spark-source": Rig(spark_source.run_source_kills, spark_source.KILLS, "kill -9 of a Spark driver"),
    "postgres-stops": Rig(
        postgres_stops.run_stops, postgres_stops.STOPS, "immediate stops of PostgreSQL", why_no_server
    ),
    "postgres-servers": Rig(
        postgres_stops.run_server_stops,
        postgres_stops.STOPS,
        "kill -9 of one of two PostgreSQL servers under one set of queues",
        why_no_server,
    ),
    "postgres-promotions": Rig(
        postgres_promotions.run_promotions,
        postgres_promotions.PROMOTIONS,
        "promotions of a standby",
        postgres_promotions.why_no_failover,
    ),
    "postgres-partitions": Rig(
        postgres_partitions.run_partitions,
        postgres_partitions.PARTITIONS,
        "partitions that leave a node with the old primary",
        postgres_partitions.why_no_network,
    ),
    "postgres-nodes": Rig(
        postgres_nodes.run_node_kills, postgres_nodes.KILLS, "kill -9 of one of two nodes", why_no_postgres
    ),
    "fuzz": Rig(fuzz.run_fuzz, 1_000_000, "malformed requests"),
    "work": Rig(work.run_work, work.REQUESTS, "requests of all sizes, by the time that they keep the loop"),
    "smq-fuzz": Rig(smq_fuzz.run_smq_fuzz, smq_fuzz.REQUESTS, "malformed requests at SMQ's port"),
    "model": Rig(model_volume.run_model_volume, model_volume.STEPS, "steps"),
    "model-postgres": Rig(
        lambda cycles, seed: model_volume.run_model_volume(cycles, seed, store="postgres"),
        model_volume.STEPS_ON_POSTGRES,
        "steps on PostgreSQL",
        why_no_postgres,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the rigs that are named, or all of them, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Fault rigs, long versions.")
    parser.add_argument("rigs", nargs="*", metavar="RIG", help=f"of {', '.join(RIGS)}; all by default")
    parser.add_argument("--cycles", type=int, help="how much of it; each rig has a number of its own")
    parser.add_argument(
        "--seed", type=int, help="where the random choices start; drawn and printed by default"
    )
    parser.add_argument("--seconds", type=float, help="repeat each rig for as long, seed by seed")
    parser.add_argument(
        "--at-once", type=int, default=1, help="share the cycles among so many runs side by side"
    )
    parser.add_argument("--workers", type=int, help="run every server with so many workers")
    given = parser.parse_args(arguments)
    if given.workers is not None:
        os.environ[WORKERS] = str(given.workers)
    unknown = set(given.rigs) - RIGS.keys()
    if unknown:
        parser.error(f"unknown rig {', '.join(sorted(unknown))}; there are {', '.join(RIGS)}")
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    rows = []
    for name in given.rigs or RIGS:
        rows += _run_rig(name, RIGS[name], given.cycles, seed, given.seconds, given.at_once)
    print("\n" + "\n".join(f"{result:<9}{name:<21}{text}" for result, name, text in rows))
    return 1 if any(result == "VIOLATED" for result, _, _ in rows) else 0


def _run_rig(
    name: str, rig: Rig, cycles: int | None, seed: int, seconds: float | None, at_once: int
) -> list[tuple[str, str, str]]:
    reason = rig.why_not()
    if reason is not None:
        print(f"{name}: skipped, {reason}", flush=True)
        return [("skipped", name, reason)]
    rows: list[tuple[str, str, str]] = []
    deadline_s = time.monotonic() + (seconds or 0)
    while True:
        count = rig.cycles if cycles is None else cycles
        print(f"{name}: {count} {rig.counts}, seed {seed}", flush=True)
        shares = [(count + n) // at_once for n in range(at_once)]
        if at_once == 1:
            outcomes = [_run_once(name, count, seed)]
        else:
            with ProcessPoolExecutor(at_once, multiprocessing.get_context("fork")) as pool:
                outcomes = list(pool.map(_run_once, [name] * at_once, shares, range(seed, seed + at_once)))
        for outcome in outcomes:
            print(outcome, flush=True)
            found = " ".join(f"{kind}={len(lines)}" for kind, lines in outcome.violations.items())
            result = "ok" if outcome.ok else "VIOLATED"
            rows.append((result, name, f"seed={outcome.seed} {outcome.done} {found}".strip()))
        seed += at_once
        if time.monotonic() >= deadline_s or not all(outcome.ok for outcome in outcomes):
            return rows


def _run_once(name: str, cycles: int, seed: int) -> Outcome:
    try:
        return RIGS[name].run(cycles, seed)
    except Exception:
        outcome = Outcome(name, seed)
        outcome.add("rig", traceback.format_exc())
        return outcome


if __name__ == "__main__":
    sys.exit(main())
