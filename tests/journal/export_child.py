"""A process to be killed: sends and exports on a SQLite store, and kills itself at a named step of an export."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.journal.kit import DirectSink
from tests.stores.kit import a_message, make_queue
from veil.core.event import ExportPlan
from veil.journal import segment_writer
from veil.journal.exporter import Exporter
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore

ROUNDS = 6


class Steps(SqliteStore):
    """Tells of each step of an export that the store has a part in."""

    on_step: Callable[[str], None]

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        self.on_step("before plan")
        plan = await super().plan_export(rows_max=rows_max, bytes_max=bytes_max)
        self.on_step("planned")
        return plan

    async def finish_export(self, plan: ExportPlan) -> None:
        self.on_step("before finish")
        await super().finish_export(plan)
        self.on_step("finished")


async def main(directory: Path, where: str, step: str, occurrence: int) -> None:
    seen = 0

    def on_step(reached: str) -> None:
        nonlocal seen
        if reached == step:
            seen += 1
            if seen == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    clock = SystemClock()
    store = Steps(directory, clock, journal=True)
    store.on_step = on_step
    await store.open()
    queue = await make_queue(store)
    write_group, replace = segment_writer._write_group, Path.replace

    def writing(writer: Any, tables: list[Any]) -> None:
        write_group(writer, tables)
        on_step("writing")

    def appearing(draft: Path, name: Path) -> Path:
        if name.suffix != ".parquet":
            return replace(draft, name)
        on_step("written")
        replace(draft, name)
        on_step("appeared")
        return name

    segment_writer._write_group, Path.replace = writing, appearing  # type: ignore[assignment, method-assign]
    exporter = Exporter(store, DirectSink(where, store.store_id), clock)

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
