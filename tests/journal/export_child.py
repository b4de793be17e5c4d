"""A process to be killed: sends and exports on a SQLite store, and kills itself at a named step of an export."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.journal.kit import DirectSink
from tests.stores.kit import a_message, make_queue
from veil.journal.exporter import Exporter
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore

ROUNDS = 6


async def main(directory: Path, where: str, step: str, occurrence: int) -> None:
    seen = 0

    def on_step(reached: str) -> None:
        nonlocal seen
        if reached == step:
            seen += 1
            if seen == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    clock = SystemClock()
    store = SqliteStore(directory, clock, journal=True)
    await store.open()
    queue = await make_queue(store)
    exporter = Exporter(store, DirectSink(where, store.store_id, on_step), clock, on_step=on_step)

    async def send_some() -> None:
        for _ in range(20):
            (sent,) = await store.send(queue, [a_message()])
            os.write(1, f"{sent.seq}\n".encode())

    await send_some()
    for _ in range(ROUNDS):
        # The export runs among the sends: rows are added while it plans, writes and finishes.
        await asyncio.gather(send_some(), exporter.export_one(), send_some())
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
