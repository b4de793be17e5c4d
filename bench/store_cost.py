"""What the embedded store itself costs: CPU time of an operation without HTTP, in groups of 64 that share a commit.

    python -m bench.store_cost [--batch N ...] [--rounds N] [--leases N] [--place DIR]

The data is in memory by default, so that no sync of a disk is counted. Run it in two checkouts in turns to compare them: the
least of many rounds is what a machine with other work disturbs least.

With `--leases` the time that it takes to write so many logged leases into the rows of their messages is measured instead, which
were sent one by one: 20,000 are the most there can be.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

import uvloop

from bench.contenders import scratch
from veil.core.clock import ManualClock
from veil.core.message import NewMessage
from veil.core.queue import QueueKey, QueueSettings
from veil.core.receipt import Receipt
from veil.stores.sqlite import SqliteStore
from veil.stores.store import Extension, QueueContent

GROUP: Final = 64
PARTS: Final = ("send", "receive", "extend", "delete")
_T = TypeVar("_T")


async def _timed(into: list[float], operations: Iterable[Awaitable[_T]]) -> list[_T]:
    # They are begun here: an operation is applied when it is called, and awaited for its commit.
    begun_s = time.process_time()
    results = await asyncio.gather(*operations)
    into.append((time.process_time() - begun_s) / GROUP * 1e6)
    return results


async def measure(place: Path, batch: int, rounds: int) -> dict[str, list[float]]:
    """CPU microseconds of each operation on so many messages, round by round."""
    store = SqliteStore(place, ManualClock())
    await store.open()
    key = QueueKey("us-east-1", "000000000000", "cost")
    queue = await store.create_queue(key, QueueContent(QueueSettings(), {}), rest_ms=0)
    costs_us: dict[str, list[float]] = {part: [] for part in PARTS}
    for number in range(rounds):
        sent = [[_message(f"{number}-{call}-{at}") for at in range(batch)] for call in range(GROUP)]
        await _timed(costs_us["send"], (store.send(queue, each) for each in sent))
        received = await _timed(costs_us["receive"], (store.receive(queue, batch) for _ in range(GROUP)))
        receipts = [[Receipt(queue.id, each.seq, each.holder) for each in taken] for taken in received]
        longer = [[Extension(receipt, 60) for receipt in each] for each in receipts]
        await _timed(costs_us["extend"], (store.extend(queue, each) for each in longer))
        await _timed(costs_us["delete"], (store.delete(queue, each) for each in receipts))
    await store.close()
    return costs_us


async def written_back_ms(place: Path, leases: int) -> float:
    """CPU milliseconds for so many leases of one queue."""
    clock = ManualClock()
    store = SqliteStore(place, clock)
    await store.open()
    key = QueueKey("us-east-1", "000000000000", "leases")
    queue = await store.create_queue(key, QueueContent(QueueSettings(), {}), rest_ms=0)
    for number in range(leases):
        await store.send(queue, [_message(str(number))])
        clock.advance(1)
    for _ in range(0, leases, 10):
        await store.receive(queue, 10)
    begun_s = time.process_time()
    await store._do(store._db.write_back_all)
    took_ms = (time.process_time() - begun_s) * 1e3
    await store.close()
    return took_ms


def _message(message_id: str) -> NewMessage:
    return NewMessage(message_id, "x" * 300, "0" * 32, sender="bench")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.store_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--leases", type=int, default=0)
    parser.add_argument("--place", type=Path, default=Path("/dev/shm"))
    given = parser.parse_args(arguments)
    if given.leases:
        with scratch(given.place) as place:
            print(f"{given.leases:,} leases: {uvloop.run(written_back_ms(place, given.leases)):.1f} ms")
        return
    print(f"{'part':<10}{'batch':>6}{'least µs':>10}{'median µs':>11}")
    for batch in given.batch:
        with scratch(given.place) as place:
            costs_us = uvloop.run(measure(place, batch, given.rounds))
        for part, costs in costs_us.items():
            print(f"{part:<10}{batch:>6}{min(costs):>10.1f}{median(costs):>11.1f}")


if __name__ == "__main__":
    main()
