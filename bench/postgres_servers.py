"""What several PostgreSQL servers under one set of queues cost: CPU per message, beside a single server.

    python -m bench.postgres_servers [--rounds N] [--seconds S] [--callers N] [--smoke]

Whole lives (sent, received, deleted) over 1 and over 100 queues, singly and by ten, HTTP left out; one server and two take turns.
On one machine two servers are not faster, since they share its cores and its disk. What shows is whether the work of a message
grows with the number of servers, and whether any of it falls on a server that all queues share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final
from uuid import uuid4

import uvloop

from bench.postgres_queues import BODY, VISIBILITY_S
from bench.postgres_server import a_database, server_cpu_s, server_pid, tidy
from veil.core.message import NewMessage
from veil.core.queue import Queue, QueueKey, QueueSettings
from veil.core.receipt import Receipt
from veil.stores.placed import PlacedStore
from veil.stores.postgres import PostgresStore
from veil.stores.store import QueueContent, Store

AIM: Final = 1.5  # times the CPU of a single server, node and databases together
_MD5: Final = "0" * 32


async def _live(store: Store, queue: Queue, batch: int, until_s: float) -> int:
    lived = 0
    while time.perf_counter() < until_s:
        await store.send(queue, [NewMessage(str(uuid4()), BODY, _MD5) for _ in range(batch)])
        received = await store.receive(queue, batch)
        if received:
            receipts = [Receipt(queue.id, each.seq, each.delivery, "") for each in received]
            await store.delete(queue, receipts)
        lived += len(received)
    return lived


async def _measure(dsns: Sequence[str], rounds: int, seconds: float, callers: int) -> bool:
    pids = [server_pid(dsn) for dsn in dsns]
    single, placed = PostgresStore(dsns[0]), PlacedStore(dsns[1:])
    stores: dict[str, tuple[Store, list[int | None]]] = {
        "one server": (single, pids[:1]),
        "two servers": (placed, pids[1:]),
    }
    queues: dict[str, list[Queue]] = defaultdict(list)
    for name, (store, _) in stores.items():
        await store.open()
        for number in range(100):
            key = QueueKey("us-east-1", "000000000000", f"lives-{number}")
            content = QueueContent(QueueSettings(visibility_s=VISIBILITY_S), {})
            queues[name].append(await store.create_queue(key, content, rest_ms=0))
    print("queues  by  servers       µs node  µs databases  of them the busiest  total  times one server")
    worst = 0.0
    for count in (1, 100):
        for batch in (1, 10):
            costs: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
            for number in range(rounds):
                for name in list(stores)[:: 1 if number % 2 else -1]:
                    store, postmasters = stores[name]
                    for dsn in dsns:
                        await asyncio.to_thread(tidy, dsn)
                    before = [server_cpu_s(pid) for pid in postmasters]
                    own_s, until_s = time.process_time(), time.perf_counter() + seconds
                    lives = await asyncio.gather(
                        *(
                            _live(store, queues[name][caller % count], batch, until_s)
                            for caller in range(callers)
                        )
                    )
                    messages = max(1, sum(lives))
                    own_s = time.process_time() - own_s
                    spent = [server_cpu_s(pid) - at for pid, at in zip(postmasters, before, strict=True)]
                    costs[name].append((own_s / messages, sum(spent) / messages, max(spent) / messages))
            base = 0.0
            for name in stores:
                own, databases, busiest = (median(column) * 1e6 for column in zip(*costs[name], strict=True))
                base = base or own + databases
                ratio = (own + databases) / base
                worst = max(worst, ratio)
                print(
                    f"{count:6}  {batch:2}  {name:12} {own:8.0f} {databases:13.0f} {busiest:20.0f} {own + databases:6.0f} "
                    f"{ratio:17.2f}"
                )
    for store, _ in stores.values():
        await store.close()
    return worst <= AIM


def main() -> int:
    """Measure, print, and say whether the aim is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timed round (3)")
    parser.add_argument("--callers", type=int, default=32, help="at once (32)")
    parser.add_argument(
        "--smoke", action="store_true", help="one short round: that it runs, not how much it costs"
    )
    given = parser.parse_args()
    rounds, seconds = (1, 0.2) if given.smoke else (given.rounds, given.seconds)
    with contextlib.ExitStack() as stack:
        dsns = [stack.enter_context(a_database(None, in_memory=given.smoke)) for _ in range(3)]
        met = uvloop.run(_measure(dsns, rounds, seconds, given.callers))
    return 0 if met or given.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
