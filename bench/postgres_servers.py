"""What nodes and several PostgreSQL servers under one set of queues cost: CPU per message, beside a single server.

    python -m bench.postgres_servers [--nodes N …] [--rounds N] [--seconds S] [--callers N] [--smoke]

Whole lives (sent, received, deleted) singly and by ten, HTTP left out: one node over 1 and over 100 queues, more nodes over 100;
one server and two take turns. On one machine neither nodes nor servers make it faster, since they share its cores and its disk.
What shows is whether the work of a message grows with them, and whether any of it falls on a server that all queues share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple
from uuid import uuid4

import uvloop

from bench.postgres_queues import BODY, VISIBILITY_S
from bench.postgres_server import a_database, server_cpu_s, server_pid, tidy
from veil.core.message import NewMessage
from veil.core.queue import Queue, QueueKey, QueueSettings
from veil.core.receipt import Receipt
from veil.stores.postgres import PostgresStore
from veil.stores.sharded import ShardedStore
from veil.stores.store import QueueContent, Store

AIM: Final = 1.5  # times the CPU of a single server, node and databases together
_MD5: Final = "0" * 32


class Load(NamedTuple):
    """How long, and by how many at once."""

    rounds: int
    seconds: float
    callers: int


async def _live(store: Store, queues: Sequence[Queue], batch: int, until_s: float) -> int:
    lived = 0
    for queue in itertools.cycle(queues):
        await store.send(queue, [NewMessage(str(uuid4()), BODY, _MD5) for _ in range(batch)])
        received = await store.receive(queue, batch)
        if received:
            receipts = [Receipt(queue.id, each.seq, each.delivery, "") for each in received]
            await store.delete(queue, receipts)
        lived += len(received)
        if time.perf_counter() >= until_s:
            break
    return lived


async def _queues(store: Store) -> list[Queue]:
    content = QueueContent(QueueSettings(visibility_s=VISIBILITY_S), {})
    keys = (QueueKey("us-east-1", "000000000000", f"lives-{number}") for number in range(100))
    return [await store.create_queue(key, content, rest_ms=0) for key in keys]


class Costs(NamedTuple):
    """CPU seconds for a message."""

    nodes: float
    databases: float
    busiest: float  # of the databases


async def _cost(
    stores: Sequence[Store], pids: Sequence[int | None], queues: Sequence[Queue], batch: int, load: Load
) -> Costs:
    before = [server_cpu_s(pid) for pid in pids]
    own_s, until_s = time.process_time(), time.perf_counter() + load.seconds
    lives = await asyncio.gather(
        *(
            _live(
                stores[n % len(stores)],
                queues[n :: load.callers] or queues[n % len(queues) :],
                batch,
                until_s,
            )
            for n in range(load.callers)
        )
    )
    messages = max(1, sum(lives))
    own_s = time.process_time() - own_s
    spent = [server_cpu_s(pid) - at for pid, at in zip(pids, before, strict=True)]
    return Costs(own_s / messages, sum(spent) / messages, max(spent) / messages)


async def _measure(dsns: Sequence[str], nodes: int, load: Load) -> float:
    """The worst ratio of two servers to one."""
    pids = [server_pid(dsn) for dsn in dsns]
    servers: dict[str, tuple[list[Store], list[int | None]]] = {
        "one server": ([PostgresStore(dsns[0]) for _ in range(nodes)], pids[:1]),
        "two servers": ([ShardedStore(dsns[1:]) for _ in range(nodes)], pids[1:]),
    }
    worst = 0.0
    async with contextlib.AsyncExitStack() as stack:
        for stores, _ in servers.values():
            for store in stores:
                await store.open()
                stack.push_async_callback(store.close)
        queues = {name: await _queues(stores[0]) for name, (stores, _) in servers.items()}
        for count in (1, 100) if nodes == 1 else (100,):
            for batch in (1, 10):
                costs: dict[str, list[Costs]] = defaultdict(list)
                for number in range(load.rounds):
                    for name in list(servers)[:: 1 if number % 2 else -1]:
                        for dsn in dsns:
                            await asyncio.to_thread(tidy, dsn)
                        stores, postmasters = servers[name]
                        # As many for each server that is in use: they share transactions, and fewer would share less.
                        callers = load.callers * min(count, len(postmasters))
                        some = load._replace(callers=callers)
                        costs[name].append(
                            await _cost(stores, postmasters, queues[name][:count], batch, some)
                        )
                base = 0.0
                for name in servers:
                    own, databases, busiest = (
                        median(column) * 1e6 for column in zip(*costs[name], strict=True)
                    )
                    base = base or own + databases
                    ratio = (own + databases) / base
                    worst = max(worst, ratio)
                    print(
                        f"{nodes:5}  {count:6}  {batch:2}  {name:12} {own:8.0f} {databases:13.0f} {busiest:20.0f} "
                        f"{own + databases:6.0f} {ratio:17.2f}",
                        flush=True,
                    )
    return worst


async def _measure_all(dsns: Sequence[str], nodes: Sequence[int], load: Load) -> bool:
    print(
        "nodes  queues  by  servers       µs nodes  µs databases  of them the busiest  total  times one server"
    )
    return max([await _measure(dsns, n, load._replace(callers=n * load.callers)) for n in nodes]) <= AIM


def main() -> int:
    """Measure, print, and say whether the aim is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1, 2, 4, 8], help="one after the other (1 2 4 8)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each timed round (1.5)")
    parser.add_argument("--callers", type=int, default=32, help="at once, for each node and server (32)")
    parser.add_argument(
        "--smoke", action="store_true", help="one short round: that it runs, not how much it costs"
    )
    given = parser.parse_args()
    load = Load(1, 0.2, given.callers) if given.smoke else Load(given.rounds, given.seconds, given.callers)
    with contextlib.ExitStack() as stack:
        dsns = [stack.enter_context(a_database(None, in_memory=given.smoke)) for _ in range(3)]
        met = uvloop.run(_measure_all(dsns, given.nodes[:2] if given.smoke else given.nodes, load))
    return 0 if met or given.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
