"""A driver of its own, to be killed: by each way a query into files, and one that is merged into a table by batch.

    python -m tests.pipeline.source_driver CONFIG

It kills itself, with everything in its session (the JVM, every Python worker), when its queries have come to the points that
its configuration names, all of them in the same batch.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

REPOSITORY = Path(__file__).parents[2]
BEFORE, AFTER, LONG, NEVER = "before the write", "after the write", "in a long batch", "never"
FILES, MERGE = "files", "merge"
_LOOK_EVERY_S = 0.001
_ASK_EVERY_S = 0.05  # where to ask is a call of the JVM
_STARTING = ("Initializing sources", "Getting offsets")  # until then its Python may not be there
_TOO_BUSY = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True)
class Driving:
    """What a driver does in one life."""

    endpoint: str
    region: str
    folder: str
    window_s: int
    batch: int  # messages
    die: dict[str, str]  # the point at which the queries of a way are when it dies; one way can be AFTER
    die_in: int = -1  # the batch of those points
    fail_in: int = -1  # a task of this batch fails once
    slow_in: int = -1  # this batch takes three windows
    sinks: Sequence[str] = (FILES, MERGE)

    @property
    def root(self) -> Path:
        return Path(self.folder)

    def mark(self, way: str, who: str) -> Path:
        """The file that is there once that query has come to its point."""
        return self.root / f"{who}-{way}-{self.die_in}-{self.die[way]}"

    def others_marks(self, *not_these: Path) -> list[Path]:
        """Where all the other queries must be."""
        every = [self.mark(way, who) for way in self.die for who in self.sinks]
        return [mark for mark in every if mark not in not_these]


def queue_of(way: str, who: str) -> str:
    """The queue of that query."""
    return f"{who}-{way}"


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


def running_file(folder: Path) -> Path:
    """There once all queries of a driver have begun."""
    return folder / "running"


def kill_session(leader: int) -> None:
    """kill -9 of every process of the session, the caller itself last if it is one of them."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            pid = int(entry.name)
            if pid != os.getpid() and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
    if os.getsid(0) == leader:
        os.kill(os.getpid(), signal.SIGKILL)


# ---- what came of it


def ids_in_files(folder: Path, way: str) -> Counter[str]:
    """How often each message id is there for a reader that honours the sink's own log."""
    import pyarrow.parquet as pq

    log = folder / f"out-{way}" / "_spark_metadata"
    names = set[str]()
    for file in log.iterdir() if log.exists() else ():
        if not file.name.startswith("."):
            entries = file.read_text().splitlines()[1:]
            names |= {json.loads(line)["path"].rsplit("/", 1)[-1] for line in entries}
    found: Counter[str] = Counter()
    for name in names:
        found.update(pq.read_table(log.parent / name, columns=["message_id"]).column(0).to_pylist())
    return found


def merged(folder: Path, way: str) -> list[tuple[str, int]]:
    """Which message came in which batch, by the table."""
    with contextlib.closing(_table(folder, way)) as table:
        return list(table.execute("select message_id, batch from merged"))


def _table(folder: Path, way: str) -> sqlite3.Connection:
    table = sqlite3.connect(folder / f"merged-{way}.db")
    table.execute("create table if not exists merged (message_id, batch, primary key (message_id, batch))")
    return table


def has_failed_once(folder: Path, way: str, batch: int) -> bool:
    """Whether a task of that batch failed and was tried again."""
    return (folder / f"tried-again-{way}-{batch}").exists()


# ---- the driver


def _await_all(files: list[Path]) -> None:
    while not all(file.exists() for file in files):
        time.sleep(_LOOK_EVERY_S)


def _merge(driving: Driving, way: str, ids: list[str], batch: int) -> None:
    with contextlib.closing(_table(driving.root, way)) as table, table:
        table.executemany("insert or ignore into merged values (?, ?)", [(each, batch) for each in ids])


def _files_task(driving: Driving, way: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = int(str(context.getLocalProperty("streaming.sql.batchId")))
        rows = list(batches)
        if number == driving.fail_in:
            if context.attemptNumber() == 0:
                raise RuntimeError("a task that fails once")
            (driving.root / f"tried-again-{way}-{number}").touch()
        _come_to(driving, way, FILES, number)
        yield from rows

    return task


def _come_to(driving: Driving, way: str, who: str, number: int) -> None:
    """What a query does in the middle of a batch: go slowly, or meet the others where all of them die."""
    if number == driving.slow_in:
        time.sleep(3 * driving.window_s)
    if number != driving.die_in:
        return
    point, mark = driving.die[way], driving.mark(way, who)
    if point == LONG:
        time.sleep(1.5 * driving.window_s)
    if point == AFTER and who == FILES:
        # Let go into the write when all the others are in their places; who watches kills all as soon as it is done.
        _await_all(driving.others_marks(mark))
        return
    mark.touch()
    if AFTER in driving.die.values():
        threading.Event().wait()
    _await_all(driving.others_marks())
    kill_session(os.getsid(0))


def _watch(log: Path) -> None:
    _await_all([log])
    kill_session(os.getsid(0))


def _writers(spark: SparkSession, driving: Driving, way: str) -> list[DataStreamWriter]:
    def read(who: str) -> DataFrame:
        given: dict[str, Any] = {
            "queue": queue_of(way, who),
            "endpoint": driving.endpoint,
            "region": driving.region,
            "protocol": way,
            "segments": str(driving.root / "segments"),
            "visibilityTimeout": str(driving.window_s),
            "maxMessagesPerTrigger": str(driving.batch),
            "partitions": "1",
        }
        return spark.readStream.format("veil").options(**given).load()

    def merge(batch: DataFrame, number: int) -> None:
        ids = [row.message_id for row in batch.select("message_id").collect()]
        if driving.die[way] in (BEFORE, LONG):
            _come_to(driving, way, MERGE, number)
        _merge(driving, way, ids, number)
        if driving.die[way] not in (BEFORE, LONG):
            _come_to(driving, way, MERGE, number)

    out = driving.root / f"out-{way}"
    if driving.die[way] == AFTER:
        log = out / "_spark_metadata" / str(driving.die_in)
        threading.Thread(target=_watch, args=[log], daemon=True).start()
    files = read(FILES)
    writers = {
        FILES: files.mapInArrow(_files_task(driving, way), files.schema)
        .writeStream.format("parquet")
        .option("path", str(out)),
        MERGE: read(MERGE).writeStream.foreachBatch(merge),
    }
    return [
        writer.option("checkpointLocation", str(driving.root / f"checkpoint-{who}-{way}"))
        for who, writer in writers.items()
        if who in driving.sinks
    ]


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """The query, past its start: one after the other, since each has a Python that must be there within Spark's ten seconds."""
    query = writer.trigger(availableNow=True).start()
    while query.isActive and query.status["message"].startswith(_STARTING):
        time.sleep(_ASK_EVERY_S)
    return query


def _run_to_the_end(writers: list[DataStreamWriter], running: Path) -> None:
    """Raises what a query fails with, at once: the others may wait for it where all of them die."""
    queries = [(writer, _started(writer)) for writer in writers]
    running.touch()
    while queries:
        time.sleep(_ASK_EVERY_S)
        unfinished = [(writer, query) for writer, query in queries if query.isActive or query.exception()]
        queries = [(writer, _kept_going(writer, query)) for writer, query in unfinished]


def _kept_going(writer: DataStreamWriter, query: StreamingQuery) -> StreamingQuery:
    """Started again where the machine was too busy for Spark's ten seconds, at the query's start or in any batch."""
    error = None if query.isActive else query.exception()
    if error is not None and _TOO_BUSY not in str(error):
        raise error
    return query if error is None else _started(writer)


def main(config: Path) -> None:
    from tests.pipeline.conftest import QUICK
    from veil.pipeline import register
    from veil.pipeline.spark.session import SparkSettings, open_session

    driving = Driving(**json.loads(config.read_text()))
    # A task for each query, since those of the files wait for the others in theirs; a task may fail once.
    slots = len(driving.sinks) * len(driving.die)
    spark = open_session(SparkSettings(master=f"local[{slots},2]", conf=QUICK, title="driver to be killed"))
    register(spark)
    writers = [writer for way in driving.die for writer in _writers(spark, driving, way)]
    _run_to_the_end(writers, running_file(driving.root))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
