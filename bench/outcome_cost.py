"""What it costs to say how an attempt ended: CPU for each message, of the consumer and of the server, with and without it.

    python -m bench.outcome_cost [--messages 300] [--rounds 60]

Veil's consumer works through a queue of a real server with its journal, in turns as it is and as if it said nothing: without a
word of the error, and without the header. Two mixes: one message in twenty fails, and every message does. A failure is logged
with its traceback either way, as `veil run` does, and its message waits for a retry. CPU is what the scheduler counted for all
threads of the two processes. The rounds differ by more among themselves than the two ways do, and what disturbs one can only make
it dearer: so there are many short ones, of which the lower quartile is shown (the least is a matter of luck), and what the median
pair of rounds next to each other differs by, with the bounds between which it lies in 95 of 100 cases.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from veil import Consumer, RetryAfter
from veil.testing import VeilServer

MIXES = {"1 in 20 fails": 20, "all fail": 1}
REGION = "us-east-1"


class OutOfStock(Exception):
    """What the handler raises."""


def reserve(order: str) -> None:
    """The user's own code, three calls deep."""
    take_from_stock(order)


def take_from_stock(order: str) -> None:
    raise OutOfStock(f"order {order}: no more than 3 left of article A-17")


def cpu_us(pid: int) -> float:
    """What a process has used so far, its threads that have ended too: Linux keeps a clock of it for each."""
    return time.clock_gettime(~pid << 3 | 2) * 1e6


@contextmanager
def nothing_said() -> Iterator[None]:
    """A consumer that neither tells its errors nor sends the header."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch("veil.consumer.message.reported_failure", lambda *_: None))
        patches.enter_context(mock.patch("veil.client.client._outcome_line", lambda _: ""))
        yield


async def consume(server: VeilServer, url: str, messages: int, fails_each: int) -> tuple[float, float]:
    """CPU microseconds for each message, of the consumer and of the server, from the first receive to the last answer."""
    app = Consumer(
        url, endpoint=server.endpoint_url, region=REGION, concurrency=50, on_failure=RetryAfter(3_600)
    )
    done, handled = asyncio.Event(), 0

    @app.handler
    async def work(body: str) -> None:
        nonlocal handled
        handled += 1
        if handled == messages:
            done.set()
        if int(body) % fails_each == 0:
            reserve(body)

    gc.collect()  # or one of them pays for what the other has left
    before = cpu_us(os.getpid()), cpu_us(server.pid)
    await app.start()
    await done.wait()
    await app.stop()
    after = cpu_us(os.getpid()), cpu_us(server.pid)
    return (after[0] - before[0]) / messages, (after[1] - before[1]) / messages


def median_of(values: Iterable[float]) -> tuple[float, float, float]:
    """The median between the bounds of its 95 % confidence interval, which the order of the values gives."""
    rising = sorted(values)
    reach = math.ceil(0.98 * math.sqrt(len(rising)))
    at = (len(rising) - 1) // 2
    return rising[max(0, at - reach)], statistics.median(rising), rising[min(len(rising) - 1, at + 1 + reach)]


def fill(client: Any, url: str, messages: int) -> None:
    """An empty queue gets so many messages, numbered from 1."""
    client.purge_queue(QueueUrl=url)
    for first in range(1, messages + 1, 10):
        entries = [
            {"Id": str(at), "MessageBody": str(at)} for at in range(first, min(first + 10, messages + 1))
        ]
        client.send_message_batch(QueueUrl=url, Entries=entries)


def main() -> None:
    """Measure, and print a table."""
    arguments = argparse.ArgumentParser(prog="python -m bench.outcome_cost", description=__doc__)
    arguments.add_argument("--messages", type=int, default=300)
    arguments.add_argument("--rounds", type=int, default=60)
    given = arguments.parse_args()
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "veil")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "veil")
    print(
        f"{'messages':<14} {'':<8} {'consumer':>9} {'server':>9} {'together':>9}   µs of CPU for each message"
    )
    with (
        tempfile.TemporaryDirectory() as place,
        Path(os.devnull).open("w") as nowhere,
        VeilServer("--data", place, "--journal-interval-s", "3600") as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        logging.basicConfig(stream=nowhere)
        client = server.client()
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        for mix, fails_each in MIXES.items():
            found: dict[str, list[tuple[float, float]]] = {"silent": [], "says it": []}
            for turn in range(2 * (given.rounds + 1)):
                fill(client, url, given.messages)
                with ExitStack() as patches:
                    # In the order 0 1 1 0 0 1 …: whoever comes second in a pair would else always gain or lose by it.
                    way = "says it" if (turn + turn // 2) % 2 else "silent"
                    if way == "silent":
                        patches.enter_context(nothing_said())
                    cost = runner.run(consume(server, url, given.messages, fails_each))
                if turn > 1:  # the first of each warms up
                    found[way].append(cost)
            together = {}
            for way, costs in found.items():
                parts = [*zip(*costs, strict=True), [sum(each) for each in costs]]
                consumer, of_server, together[way] = (statistics.quantiles(each, n=4)[0] for each in parts)
                print(f"{mix:<14} {way:<8} {consumer:>9.1f} {of_server:>9.1f} {together[way]:>9.1f}")
            pairs = zip(found["silent"], found["says it"], strict=True)
            low, median, high = median_of(sum(says) / sum(silent) - 1 for silent, says in pairs)
            more = together["says it"] / together["silent"] - 1
            print(
                f"{'':<14} {more:+.1%} of the lower quartiles, {median:+.1%} in the median ({low:+.1%} to {high:+.1%})"
            )


if __name__ == "__main__":
    main()
