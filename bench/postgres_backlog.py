"""What a large queue costs on PostgreSQL: a million messages waiting, and a hundred thousand in flight, against an empty table.

    python -m bench.postgres_backlog [--backlog 1000000] [--in-flight 100000] [--rounds 5] [--seconds 3]

Three databases on one server, measured in turns through the store itself: the whole life of a message, singly and by ten.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from statistics import median
from typing import Final

import psycopg
import uvloop

from bench.postgres import BATCHES, Round, live_for
from bench.postgres_queues import VeilQueue
from bench.postgres_server import a_database, sizes_mb, tidy

RATIO_MAX: Final = 1.5
EMPTY, WAITING, IN_FLIGHT = "empty", "waiting", "in flight"
_FILL_BATCH: Final = 500
_TAKE_BATCH: Final = 10
_FILLERS: Final = 8


def main(arguments: list[str] | None = None) -> int:
    """Fill, measure and print; 1 if a large queue costs more than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--smoke", action="store_true", help="in memory: that it runs, not how fast")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        first = stack.enter_context(a_database(None, in_memory=given.smoke))
        dsns = {EMPTY: first, WAITING: _sibling(first, "waiting"), IN_FLIGHT: _sibling(first, "in_flight")}
        return uvloop.run(
            _measure(dsns, given.backlog, given.in_flight, given.rounds, given.seconds, given.callers)
        )


def _sibling(dsn: str, name: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return dsn.replace("/bench?", f"/{name}?")


async def _measure(
    dsns: dict[str, str], backlog: int, in_flight: int, rounds: int, seconds: float, callers: int
) -> int:
    queues = {name: VeilQueue() for name in dsns}
    for name, queue in queues.items():
        await queue.open(dsns[name], callers)
    took_s = await _fill(queues[WAITING], backlog)
    print(f"{backlog:,} messages sent in {took_s:.0f} s, {backlog / took_s:,.0f}/s")
    await _fill(queues[IN_FLIGHT], in_flight)
    took_s = await _take(queues[IN_FLIGHT], in_flight)
    print(f"{in_flight:,} messages received in {took_s:.0f} s, {in_flight / took_s:,.0f}/s")
    measured: dict[tuple[int, str], list[Round]] = defaultdict(list)
    for number in range(rounds + 1):
        for batch in BATCHES:
            for name in list(queues)[:: 1 if number % 2 else -1]:
                await asyncio.to_thread(tidy, dsns[name])
                one = await live_for(queues[name], batch, callers, seconds, None)
                if number:  # the first round warms up
                    measured[batch, name].append(one)
    good = True
    for batch in BATCHES:
        usual = median(one.messages / one.seconds for one in measured[batch, EMPTY])
        for name in (WAITING, IN_FLIGHT):
            found = median(one.messages / one.seconds for one in measured[batch, name])
            ratio = usual / max(found, 1e-9)
            good &= ratio <= RATIO_MAX
            verdict = "good" if ratio <= RATIO_MAX else "TOO MUCH"
            print(
                f"{name}, by {batch}: {found:,.0f} messages/s against {usual:,.0f}, "
                f"ratio {ratio:.2f} (at most {RATIO_MAX}): {verdict}"
            )
    for name in queues:
        table_mb, index_mb = sizes_mb(dsns[name], VeilQueue.tables)
        print(f"{name}: table {table_mb:,.0f} MB, indexes {index_mb:,.0f} MB")
    for queue in queues.values():
        await queue.close()
    return 0 if good else 1


async def _fill(queue: VeilQueue, messages: int) -> float:
    """Send so many; how long it took."""
    begun_s = time.perf_counter()
    left = [min(_FILL_BATCH, messages - sent) for sent in range(0, messages, _FILL_BATCH)]

    async def fill() -> None:
        while left:
            await queue.send(0, left.pop())

    await asyncio.gather(*(fill() for _ in range(_FILLERS)))
    return max(1e-9, time.perf_counter() - begun_s)


async def _take(queue: VeilQueue, messages: int) -> float:
    """Receive so many and keep them in flight; how long it took."""
    begun_s = time.perf_counter()
    left = messages // _TAKE_BATCH

    async def take() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await queue.receive(0, _TAKE_BATCH)

    await asyncio.gather(*(take() for _ in range(_FILLERS)))
    return max(1e-9, time.perf_counter() - begun_s)


if __name__ == "__main__":
    sys.exit(main())
