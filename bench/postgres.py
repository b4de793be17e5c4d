"""The whole life of a message on PostgreSQL: Veil beside pgmq's functions and a plain SKIP LOCKED table.

    python -m bench.postgres [--only store http] [--queues veil pgmq plain] [--rounds N] [--seconds S] [--callers N]
                             [--dsn DSN] [--engine] [--smoke]

`store` leaves HTTP out: the same driver, server, durability and number of callers for all three. `http` runs real nodes, one
and then two, under the same load. Rounds take turns; CPU is that of the callers (or the nodes) and of PostgreSQL for one
message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from bench import pgmq
from bench.contenders import running, scratch, veil_command
from bench.elasticmq import NotAvailable
from bench.generator import LIFE, Lap, run_lap
from bench.load import process_cpu_s
from bench.postgres_queues import PgmqQueue, PlainQueue, QueueOnPostgres, VeilQueue
from bench.postgres_server import a_database, server_cpu_s, server_pid, tidy
from bench.processes import free_port, sync_us
from veil.stores.postgres import bulk

BATCHES: Final = (1, 10)
QUEUES: Final = ("veil", "pgmq", "plain")
AIM: Final = 1.5  # times pgmq, with HTTP left out


@dataclass(frozen=True, slots=True)
class Round:
    """One timed round of whole lives."""

    messages: int
    seconds: float
    own_cpu_s: float  # of the callers, or of the nodes
    postgres_cpu_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one contender, and of its ratio to pgmq's round in the same turn."""

    level: str
    batch: int
    name: str
    messages_per_s: float
    own_cpu_us: float
    postgres_cpu_us: float
    of_pgmq: float | None


def main(arguments: list[str] | None = None) -> int:
    """Measure what the arguments ask for; 1 if Veil is not as far ahead as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.postgres",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=("store", "http"), default=("store", "http"))
    parser.add_argument("--queues", nargs="+", choices=QUEUES, default=QUEUES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timed round (3)")
    parser.add_argument("--callers", type=int, default=32, help="at once (32)")
    parser.add_argument("--dsn", help="a database to use instead of a server of its own")
    parser.add_argument("--engine", action="store_true", help="without the group of plain operations (store)")
    parser.add_argument("--smoke", action="store_true", help="one short round: that it runs, not how fast")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, default=Path("build/postgres.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    if given.engine:
        bulk.fits = lambda engine, operation: False
    rounds, seconds = (1, 0.2) if given.smoke else (given.rounds, given.seconds)
    rows: list[Row] = []
    with a_database(given.dsn, in_memory=given.smoke) as dsn, scratch(given.build) as directory:
        disk_us = sync_us(directory)
        if "store" in given.only:
            queues = _queues(given.queues, given.build)
            rows += _rows("store", uvloop.run(_stores(queues, dsn, rounds, seconds, given.callers)))
        if "http" in given.only:
            rows += _rows("http", _nodes(directory, dsn, rounds, seconds, given.callers))
    print(
        f"the whole life of a message on PostgreSQL, {given.callers} callers, 4 KiB to disk in {disk_us:,.0f} µs, "
        f"median of {rounds} × {seconds:g} s\n"
    )
    print(_table(rows))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if given.smoke or _is_ahead(rows) else 1


# ---- HTTP left out


def _queues(names: Sequence[str], build: Path) -> list[QueueOnPostgres]:
    queues: list[QueueOnPostgres] = []
    for name in names:
        if name == "veil":
            queues.append(VeilQueue())
        elif name == "plain":
            queues.append(PlainQueue())
        else:
            try:
                version, sql = pgmq.fetch(build / "pgmq")
            except NotAvailable as reason:
                _tell(f"pgmq is not available: {reason}")
                continue
            _tell(f"pgmq {version}")
            queues.append(PgmqQueue(sql))
    return queues


async def _stores(
    queues: Sequence[QueueOnPostgres], dsn: str, rounds: int, seconds: float, callers: int
) -> dict[tuple[int, str], list[Round]]:
    measured: dict[tuple[int, str], list[Round]] = defaultdict(list)
    postmaster = server_pid(dsn)
    for queue in queues:
        await queue.open(dsn, callers)
        await live_for(queue, 10, callers, min(0.5, seconds), None)
    for batch in BATCHES:
        for number in range(rounds):
            _tell(f"store, batches of {batch}, round {number + 1}")
            # Turned round each time: whoever comes second finds a warmer or a busier machine.
            for queue in queues if number % 2 else queues[::-1]:
                await asyncio.to_thread(tidy, dsn)
                gc.collect()
                measured[batch, queue.name].append(await live_for(queue, batch, callers, seconds, postmaster))
    for queue in queues:
        await queue.close()
    return measured


async def live_for(
    queue: QueueOnPostgres, batch: int, callers: int, seconds: float, postmaster: int | None
) -> Round:
    """Let so many callers live lives for so long."""
    postgres_s, own_s, begun_s = server_cpu_s(postmaster), time.process_time(), time.perf_counter()
    until_s = begun_s + seconds
    counts = await asyncio.gather(*(_live(queue, caller, batch, until_s) for caller in range(callers)))
    took_s = time.perf_counter() - begun_s
    return Round(sum(counts), took_s, time.process_time() - own_s, server_cpu_s(postmaster) - postgres_s)


async def _live(queue: QueueOnPostgres, caller: int, batch: int, until_s: float) -> int:
    messages = 0
    while time.perf_counter() < until_s:
        await queue.send(caller, batch)
        received = await queue.receive(caller, batch)
        if received:
            await queue.delete(caller, received)
        messages += len(received)
    return messages


# ---- through HTTP


def _nodes(
    directory: Path, dsn: str, rounds: int, seconds: float, connections: int
) -> dict[tuple[int, str], list[Round]]:
    measured: dict[tuple[int, str], list[Round]] = defaultdict(list)
    postmaster = server_pid(dsn)
    with contextlib.ExitStack() as stack:
        # One generator for each node: they spread the same number of connections over all of them.
        load = stack.enter_context(ProcessPoolExecutor(2, mp_context=get_context("spawn")))
        nodes = []
        for number in range(2):
            port = free_port()
            command = veil_command(directory / f"node{number}", port, "--store", dsn)
            nodes.append((port, stack.enter_context(running(command, port, directory / f"node{number}.log"))))
        _lap(load, nodes, 10, connections, min(0.5, seconds), None)
        for batch in BATCHES:
            for number in range(rounds):
                _tell(f"http, batches of {batch}, round {number + 1}")
                for name, some in (("one node", nodes[:1]), ("two nodes", nodes))[:: 1 if number % 2 else -1]:
                    tidy(dsn)
                    measured[batch, name].append(_lap(load, some, batch, connections, seconds, postmaster))
    return measured


def _lap(
    load: ProcessPoolExecutor,
    nodes: Sequence[tuple[int, int]],
    batch: int,
    connections: int,
    seconds: float,
    postmaster: int | None,
) -> Round:
    each = max(1, connections // len(nodes))
    own_s, postgres_s = sum(process_cpu_s(pid) for _, pid in nodes), server_cpu_s(postmaster)
    laps = [Lap(port, pid, (LIFE,), batch, each, seconds) for port, pid in nodes]
    figures = [figure for lap in [load.submit(run_lap, lap) for lap in laps] for figure in lap.result()]
    own_s = sum(process_cpu_s(pid) for _, pid in nodes) - own_s
    return Round(
        sum(figure.messages for figure in figures),
        max(figure.seconds for figure in figures),
        own_s,
        server_cpu_s(postmaster) - postgres_s,
    )


# ---- what it comes to


def _rows(level: str, measured: dict[tuple[int, str], list[Round]]) -> list[Row]:
    rows = []
    for (batch, name), rounds in measured.items():
        # Each round beside pgmq's in the same turn: what slows the machine down slows both.
        beside = measured.get((batch, "pgmq"))
        ratios = [_per_s(a) / _per_s(b) for a, b in zip(rounds, beside, strict=True)] if beside else None
        rows.append(
            Row(
                level, batch, name, median(_per_s(each) for each in rounds),
                median(_us(each.own_cpu_s, each) for each in rounds),
                median(_us(each.postgres_cpu_s, each) for each in rounds),
                median(ratios) if ratios else None,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: row.batch)


def _per_s(one: Round) -> float:
    return max(1, one.messages) / one.seconds


def _us(cpu_s: float, one: Round) -> float:
    return cpu_s / max(1, one.messages) * 1e6


def _is_ahead(rows: Sequence[Row]) -> bool:
    store = {(row.batch, row.name): row for row in rows if row.level == "store"}
    for batch in BATCHES:
        veil, plain = store.get((batch, "veil")), store.get((batch, "plain"))
        if veil is not None and veil.of_pgmq is not None and veil.of_pgmq < AIM:
            return False
        if veil is not None and plain is not None and veil.messages_per_s < plain.messages_per_s:
            return False
    return True


def _table(rows: Sequence[Row]) -> str:
    lines: list[Sequence[Any]] = [("level", "batch", "", "msg/s", "own CPU µs", "PG CPU µs", "of pgmq")]
    for row in rows:
        ratio = "-" if row.of_pgmq is None else f"{row.of_pgmq:.2f}"
        figures = (f"{row.messages_per_s:,.0f}", f"{row.own_cpu_us:.0f}", f"{row.postgres_cpu_us:.0f}", ratio)
        lines.append((row.level, row.batch, row.name, *figures))
    return "\n".join(
        "  ".join(
            str(cell).ljust(10) if at in (0, 2) else str(cell).rjust(10) for at, cell in enumerate(line)
        )
        for line in lines
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
