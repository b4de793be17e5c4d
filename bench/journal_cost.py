"""What the journal costs: the whole life of a message with it and without, in turns, in one run.

    python -m bench.journal_cost [--only store http] [--rounds N] [--seconds S] [--connections N] [--out FILE]

`store` runs the embedded store alone, in this process, which shows the cost of recording most exactly. `http` runs the
real server four times over: without a journal, recording only (nothing is exported meanwhile), recording with the exporter at
work, and recording without the grace that leases have after the server's own trouble: beside `recording`, what that costs. The
ratio is that of the messages per second; CPU is that of the server for one message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

from bench.contenders import Contender, running, scratch, veil_command
from bench.generator import LIFE, Lap, generator, run_lap, warm_up
from bench.processes import free_port
from veil.core.message import Caller, NewMessage
from veil.core.queue import Queue, QueueKey, QueueSettings
from veil.core.receipt import Receipt
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore
from veil.stores.store import QueueContent

OFF, RECORDING, EXPORTING, NO_GRACE = "off", "recording", "exporting", "no grace"
BATCHES: Final = (1, 10)
AIM: Final = 0.85  # of the throughput without a journal
_BODY: Final = "x" * 300
_BODY_MD5: Final = hashlib.md5(_BODY.encode(), usedforsecurity=False).hexdigest()
_CALLER: Final = Caller("000000000000", "AKIDEXAMPLE", "bench/1.0", "127.0.0.1")
_EVERY_HOUR: Final = ("--journal-interval-s", "3600")


@dataclass(frozen=True, slots=True)
class Round:
    """One timed round of whole lives."""

    messages: int
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one setting, and the medians of its ratios to the round without a journal beside it."""

    level: str
    batch: int
    journal: str
    messages_per_s: float
    cpu_us_per_message: float
    of_off: float
    cpu_of_off: float


def main(arguments: list[str] | None = None) -> int:
    """Measure what the arguments ask for; 1 if the journal costs more than it may."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.journal_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=("store", "http"), default=("store", "http"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timed round (2)")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, default=Path("build/journal-cost.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    if "store" in given.only:
        with scratch(given.build) as directory:
            measured = asyncio.run(_stores(directory, given.rounds, given.seconds, given.connections))
        rows += _rows("store", measured)
    if "http" in given.only:
        rows += _rows("http", _servers(given.build, given.rounds, given.seconds, given.connections))
    print(f"the whole life of a message, {given.connections} at a time, median of {given.rounds} rounds\n")
    print(_table(rows))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    aimed_at = [row for row in rows if row.level == "http" and row.journal == RECORDING]
    return 0 if all(row.of_off >= AIM for row in aimed_at) else 1


# ---- the store alone


async def _stores(
    directory: Path, rounds: int, seconds: float, connections: int
) -> dict[tuple[int, str], list[Round]]:
    measured: dict[tuple[int, str], list[Round]] = defaultdict(list)
    stores = {
        name: SqliteStore(directory / name, SystemClock(), journal=name != OFF) for name in (OFF, RECORDING)
    }
    queues = {}
    for name, store in stores.items():
        await store.open()
        key = QueueKey("us-east-1", "000000000000", "lives")
        queues[name] = await store.create_queue(key, QueueContent(QueueSettings(), {}), rest_ms=0)
        await _lives(store, queues[name], 10, connections, 0.3)
    for batch in BATCHES:
        for number in range(rounds):
            _tell(f"store, batches of {batch}, round {number + 1}")
            # Turned round each time: whoever comes second finds a warmer or a busier machine.
            for name in (OFF, RECORDING) if number % 2 else (RECORDING, OFF):
                gc.collect()
                measured[batch, name].append(
                    await _lives(stores[name], queues[name], batch, connections, seconds)
                )
                await _empty_outbox(stores[name])
    for store in stores.values():
        await store.close()
    return measured


async def _lives(store: SqliteStore, queue: Queue, batch: int, connections: int, seconds: float) -> Round:
    until_s = time.perf_counter() + seconds
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*(_live(store, queue, batch, until_s) for _ in range(connections)))
    return Round(sum(counts), time.perf_counter() - begun_s, time.process_time() - cpu_s)


async def _live(store: SqliteStore, queue: Queue, batch: int, until_s: float) -> int:
    messages = 0
    while time.perf_counter() < until_s:
        await store.send(
            queue, [NewMessage(str(uuid4()), _BODY, _BODY_MD5) for _ in range(batch)], caller=_CALLER
        )
        taken = await store.receive(queue, batch, caller=_CALLER)
        receipts = [Receipt(queue.id, message.seq, message.delivery) for message in taken]
        await store.delete(queue, receipts, caller=_CALLER)
        messages += len(taken)
    return messages


async def _empty_outbox(store: SqliteStore) -> None:
    while plan := await store.plan_export(rows_max=100_000, bytes_max=1 << 30):
        await store.finish_export(plan)


# ---- through HTTP


def _servers(
    build: Path, rounds: int, seconds: float, connections: int
) -> dict[tuple[int, str], list[Round]]:
    measured: dict[tuple[int, str], list[Round]] = defaultdict(list)
    with _all_running(build) as servers, generator() as load:
        for server in servers:
            lap = Lap(server.port, server.pid, (LIFE,), 10, connections, 0.5)
            load.submit(warm_up, lap).result()
        for batch in BATCHES:
            for number in range(rounds):
                _tell(f"http, batches of {batch}, round {number + 1}")
                for server in servers if number % 2 else servers[::-1]:
                    lap = Lap(server.port, server.pid, (LIFE,), batch, connections, seconds)
                    (figure,) = load.submit(run_lap, lap).result()
                    measured[batch, server.name].append(
                        Round(figure.messages, figure.seconds, figure.server_cpu_s)
                    )
    return measured


@contextlib.contextmanager
def _all_running(build: Path) -> Iterator[list[Contender]]:
    options = {
        OFF: ("--journal", "off"),
        RECORDING: ("--journal", "on", *_EVERY_HOUR),
        EXPORTING: ("--journal", "on"),
        NO_GRACE: ("--journal", "on", *_EVERY_HOUR, "--no-lease-grace"),
    }
    with contextlib.ExitStack() as stack:
        servers = []
        for name, more in options.items():
            port, data = free_port(), stack.enter_context(scratch(build))
            command = veil_command(data, port, *more)
            pid = stack.enter_context(running(command, port, build / f"journal-{name.replace(' ', '-')}.log"))
            servers.append(Contender(name, name, port, pid))
        yield servers


# ---- what it comes to


def _rows(level: str, measured: dict[tuple[int, str], list[Round]]) -> list[Row]:
    rows = []
    for (batch, name), rounds in measured.items():
        # Each round beside the one without a journal in the same turn: what slows the machine down slows both.
        pairs = list(zip(rounds, measured[batch, OFF], strict=True))
        rows.append(
            Row(
                level,
                batch,
                name,
                median(_per_s(each) for each in rounds),
                median(_cpu_us(each) for each in rounds),
                median(_per_s(each) / _per_s(off) for each, off in pairs),
                median(_cpu_us(each) / _cpu_us(off) for each, off in pairs),
            )
        )
    order = (OFF, RECORDING, EXPORTING, NO_GRACE)
    return sorted(rows, key=lambda row: (row.batch, order.index(row.journal)))


def _per_s(one: Round) -> float:
    return one.messages / one.seconds


def _cpu_us(one: Round) -> float:
    return one.cpu_s / one.messages * 1e6


def _table(rows: Sequence[Row]) -> str:
    head = ("level", "batch", "journal", "msg/s", "CPU µs/msg", "of off", "CPU of off")
    lines: list[Sequence[Any]] = [head]
    for row in rows:
        figures = (f"{row.messages_per_s:,.0f}", f"{row.cpu_us_per_message:.1f}")
        lines.append(
            (row.level, row.batch, row.journal, *figures, f"{row.of_off:.3f}", f"{row.cpu_of_off:.3f}")
        )
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
