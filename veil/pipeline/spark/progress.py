"""What a person sees of Spark while a command runs: how far it is, and no pages of traces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_S = 0.25


class Tasks(NamedTuple):
    """What runs at this moment: the tasks of all active stages together."""

    stages: int
    done: int
    total: int


def tasks_now(spark: SparkSession) -> Tasks | None:
    """What Spark works on; None where it does not tell (Spark Connect, a session that has ended)."""
    try:
        tracker = spark.sparkContext.statusTracker()
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # a bar is never a reason to fail
        return None
    stages = [info for info in found if info is not None]
    return Tasks(
        len(stages), sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
    )


@contextmanager
def shown_progress(spark: SparkSession, title: str, stream: TextIO) -> Iterator[None]:
    """A bar on the stream while the block runs; nothing where the stream is no terminal or Spark does not tell."""
    if not stream.isatty() or tasks_now(spark) is None:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    done = threading.Event()
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
        console=Console(file=stream, highlight=False),
        transient=True,
    )

    def watch() -> None:
        line = bar.add_task(title, total=None, tasks="")
        while not done.wait(_EVERY_S):
            now = tasks_now(spark)
            if now is None:
                return
            if now.total:
                bar.update(line, total=now.total, completed=now.done, tasks=f"{now.done}/{now.total} tasks")
            else:
                bar.update(line, total=None, tasks="")

    watcher = threading.Thread(target=watch, name="veil-spark-progress", daemon=True)
    with bar:
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def without_query_pages() -> Iterator[None]:
    """What is raised in the block is not logged too."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
