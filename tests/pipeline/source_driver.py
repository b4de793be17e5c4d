"""A driver of its own, to be killed: two queries over two queues, one into files, one merged into a table by batch.

    python -m tests.pipeline.source_driver CONFIG

It kills itself, with everything in its session (the JVM, every Python worker), at the point that its configuration names,
as soon as both queries have come to that point.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REPOSITORY = Path(__file__).parents[2]
BEFORE, AFTER, LONG, NEVER = "before the write", "after the write", "in a long batch", "never"
_LOOK_EVERY_S = 0.001


@dataclass(frozen=True, slots=True)
class Driving:
    """What a driver does in one life."""

    endpoint: str
    region: str
    way: str
    files_queue: str
    merge_queue: str
    folder: str
    window_s: int
    batch: int  # messages
    die: str = NEVER
    die_in: int = -1  # the batch of that point, in both queries
    fail_in: int = -1  # a task of this batch fails once
    slow_in: int = -1  # this batch takes three windows

    @property
    def root(self) -> Path:
        return Path(self.folder)


def start(driving: Driving) -> subprocess.Popen[bytes]:
    """The driver in a session of its own, its talk in the folder."""
    config = driving.root / "driving.json"
    config.write_text(json.dumps(asdict(driving)))
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "VEIL_"))
    }
    with (driving.root / "talk").open("ab") as talk:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.source_driver", str(config)],
            cwd=REPOSITORY,
            env=own | {"AWS_ACCESS_KEY_ID": "rig", "AWS_SECRET_ACCESS_KEY": "rig"},
            stdin=subprocess.DEVNULL,
            stdout=talk,
            stderr=talk,
            start_new_session=True,
        )


def kill_session(leader: int) -> None:
    """kill -9 of every process of the session, the caller itself last if it is one of them."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            pid = int(entry.name)
            if pid != os.getpid() and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
    if os.getsid(0) == leader:
        os.kill(os.getpid(), signal.SIGKILL)


def await_all(*files: Path) -> None:
    """Until all of them are there."""
    while not all(file.exists() for file in files):
        time.sleep(_LOOK_EVERY_S)


def merged(folder: Path) -> list[tuple[str, int]]:
    """Which message came in which batch, by the table."""
    with contextlib.closing(sqlite3.connect(folder / "merged.db")) as table:
        return list(table.execute("select message_id, batch from merged"))


def _merge(folder: Path, ids: list[str], batch: int) -> None:
    with contextlib.closing(sqlite3.connect(folder / "merged.db")) as table, table:
        table.execute(
            "create table if not exists merged (message_id, batch, primary key (message_id, batch))"
        )
        table.executemany("insert or ignore into merged values (?, ?)", [(each, batch) for each in ids])


def _files_task(driving: Driving) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = int(str(context.getLocalProperty("streaming.sql.batchId")))
        rows = list(batches)
        if number == driving.fail_in and context.attemptNumber() == 0:
            raise RuntimeError("a task that fails once")
        _come_to(driving, "files", number)
        yield from rows

    return task


def _come_to(driving: Driving, who: str, number: int) -> None:
    """What a query does in the middle of a batch: go slowly, or meet the other one at the point where both die."""
    if number == driving.slow_in:
        time.sleep(3 * driving.window_s)
    if number != driving.die_in:
        return
    if driving.die == LONG:
        time.sleep(2.5 * driving.window_s)
    (driving.root / f"{who}-{number}-{driving.die}").touch()
    if driving.die in (BEFORE, LONG):
        await_all(*(driving.root / f"{each}-{number}-{driving.die}" for each in ("files", "merge")))
        kill_session(os.getsid(0))
    elif who == "files":
        # To be let go into the write when the other is past its own; who watches kills all as soon as it is done.
        await_all(driving.root / f"merge-{number}-{driving.die}")
    else:
        threading.Event().wait()


def main(config: Path) -> None:
    from tests.pipeline.conftest import QUICK
    from veil.pipeline import register
    from veil.pipeline.session import SparkSettings, open_session

    driving = Driving(**json.loads(config.read_text()))
    spark = open_session(SparkSettings(master="local[2,4]", conf=QUICK, title="driver to be killed"))
    register(spark)

    def read(queue: str) -> DataFrame:
        given: dict[str, Any] = {
            "queue": queue,
            "endpoint": driving.endpoint,
            "region": driving.region,
            "protocol": driving.way,
            "segments": str(driving.root / "segments"),
            "visibilityTimeout": str(driving.window_s),
            "maxMessagesPerTrigger": str(driving.batch),
            "partitions": "1",
        }
        return spark.readStream.format("veil").options(**given).load()

    def merge(batch: DataFrame, number: int) -> None:
        ids = [row.message_id for row in batch.select("message_id").collect()]
        if driving.die in (BEFORE, LONG):
            _come_to(driving, "merge", number)
        _merge(driving.root, ids, number)
        if driving.die not in (BEFORE, LONG):
            _come_to(driving, "merge", number)

    def watch() -> None:
        await_all(driving.root / "out" / "_spark_metadata" / str(driving.die_in))
        kill_session(os.getsid(0))

    if driving.die == AFTER:
        threading.Thread(target=watch, daemon=True).start()
    files = read(driving.files_queue)
    queries = [
        files.mapInArrow(_files_task(driving), files.schema)
        .writeStream.format("parquet")
        .option("path", str(driving.root / "out"))
        .option("checkpointLocation", str(driving.root / "files"))
        .trigger(availableNow=True)
        .start(),
        read(driving.merge_queue)
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(driving.root / "merge"))
        .trigger(availableNow=True)
        .start(),
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
