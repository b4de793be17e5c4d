"""Churn on PostgreSQL at half the maximum: how large the tables grow, and whether the queue gets slower.

    python -m bench.postgres_churn [--minutes 30] [--callers 32] [--long-transaction] [--dsn DSN]

Every minute the callers go flat out for a few seconds; the rest of it they keep half the pace of the first time. With
--long-transaction somebody else holds a snapshot open during the middle third: vacuum can then remove nothing that died
since.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import psycopg
import uvloop

from bench.postgres import live_for
from bench.postgres_queues import VeilQueue
from bench.postgres_server import a_database, sizes_mb

BATCH: Final = 1
DRIFT_MAX: Final = 0.20
GROWTH_MAX: Final = 2.0  # the second half against the first
_MINUTE_S: Final = 60.0
_BURST_SHARE: Final = 1 / 12


@dataclass(frozen=True, slots=True)
class Minute:
    """What one minute showed."""

    messages_per_s: float  # flat out
    table_mb: float
    index_mb: float
    is_held: bool  # by somebody else's snapshot


def main(arguments: list[str] | None = None) -> int:
    """Churn and print; 1 if it grew or slowed down more than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--minute-s", type=float, default=_MINUTE_S, help=argparse.SUPPRESS)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--long-transaction", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="in memory: that it runs, not how fast")
    parser.add_argument("--dsn", help="a database to use instead of a server of its own")
    given = parser.parse_args(arguments)
    with a_database(given.dsn, in_memory=given.smoke) as dsn:
        minutes = uvloop.run(
            _churn(dsn, given.minutes, given.minute_s, given.callers, given.long_transaction)
        )
    return _judge(minutes)


async def _churn(
    dsn: str, minutes: int, minute_s: float, callers: int, long_transaction: bool
) -> list[Minute]:
    queue = VeilQueue()
    await queue.open(dsn, callers)
    burst_s = minute_s * _BURST_SHARE
    await live_for(queue, BATCH, callers, burst_s, None)  # warms up
    seen: list[Minute] = []
    holder: psycopg.AsyncConnection[tuple[object, ...]] | None = None
    pace_per_s = 0.0
    for number in range(minutes):
        if long_transaction and number == minutes // 3:
            holder = await psycopg.AsyncConnection.connect(dsn)
            await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await holder.execute("SELECT count(*) FROM veil.queue")
        if holder is not None and number == 2 * minutes // 3:
            await holder.close()
            holder = None
        burst = await live_for(queue, BATCH, callers, burst_s, None)
        per_s = burst.messages / burst.seconds
        pace_per_s = pace_per_s or per_s / 2
        await _at_pace(queue, pace_per_s, callers, minute_s - burst_s)
        table_mb, index_mb = await asyncio.to_thread(sizes_mb, dsn, VeilQueue.tables)
        seen.append(Minute(per_s, table_mb, index_mb, holder is not None))
        held = ", a snapshot is held" if holder is not None else ""
        print(
            f"minute {number + 1}: {per_s:,.0f} messages/s flat out, table {table_mb:.1f} MB, "
            f"indexes {index_mb:.1f} MB{held}",
            flush=True,
        )
    if holder is not None:
        await holder.close()
    await queue.close()
    return seen


async def _at_pace(queue: VeilQueue, per_s: float, callers: int, seconds: float) -> None:
    """Lives at a pace that does not wait for the answers, so that a slow moment is made up for."""
    begun_s = time.perf_counter()
    lived = 0

    async def live(caller: int) -> None:
        nonlocal lived
        while (elapsed_s := time.perf_counter() - begun_s) < seconds:
            if lived >= elapsed_s * per_s:
                await asyncio.sleep(0.005)
                continue
            lived += BATCH
            await queue.send(caller, BATCH)
            received = await queue.receive(caller, BATCH)
            if received:
                await queue.delete(caller, received)

    await asyncio.gather(*(live(caller) for caller in range(callers)))


def _judge(minutes: Sequence[Minute]) -> int:
    free = [minute for minute in minutes if not minute.is_held]
    held = [minute for minute in minutes if minute.is_held]
    some = max(1, len(free) // 5)
    early, late = (
        median(m.messages_per_s for m in free[:some]),
        median(m.messages_per_s for m in free[-some:]),
    )
    drift = 1 - late / early
    half = max(1, len(free) // 2)
    first, second = max(_mb(m) for m in free[:half]), max(_mb(m) for m in free[-half:])
    growth = second / max(first, 1.0)
    if held:
        during = median(m.messages_per_s for m in held)
        print(
            f"while a snapshot was held: {during:,.0f} messages/s, {during / early:.2f} of before, "
            f"at the end {held[-1].messages_per_s:,.0f}, at most {max(_mb(m) for m in held):.0f} MB"
        )
    good = drift <= DRIFT_MAX and (bool(held) or growth <= GROWTH_MAX)
    print(
        f"drift {drift:+.0%} (at most {DRIFT_MAX:.0%}), size {first:.1f} MB in the first half, {second:.1f} MB in the second: "
        f"{'good' if good else 'TOO MUCH'}"
    )
    return 0 if good else 1


def _mb(minute: Minute) -> float:
    return minute.table_mb + minute.index_mb


if __name__ == "__main__":
    sys.exit(main())
