"""The bar: on a terminal it counts the tasks that Spark counts; elsewhere it is silent."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from veil.pipeline.spark.session import shown_progress, tasks_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ATerminal(io.StringIO):
    """A terminal that knows when a text has been shown on it."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited, self.shown = awaited, threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._awaited in text:
            self.shown.set()
        return super().write(text)


def test_a_bar_shows_the_tasks_of_a_job_that_runs(spark: SparkSession):
    terminal = ATerminal(awaited="/2 tasks")

    def endless() -> None:
        with suppress(Exception):  # it is cancelled
            spark.range(0, 10**15, numPartitions=2).selectExpr("sum(hash(id))").collect()

    job = threading.Thread(target=endless)
    with shown_progress(spark, "lifecycles", terminal):
        job.start()
        was_shown = terminal.shown.wait(60)
        spark.sparkContext.cancelAllJobs()
        job.join()

    assert was_shown
    assert "lifecycles" in terminal.getvalue()


def test_where_nobody_looks_nothing_is_drawn(spark: SparkSession):
    stream = io.StringIO()

    with shown_progress(spark, "lifecycles", stream):
        spark.range(10).count()

    assert stream.getvalue() == ""


def test_a_spark_that_does_not_tell_has_no_bar_and_no_error():
    terminal = ATerminal(awaited="")
    connect = object()  # Spark Connect has no context to ask

    with shown_progress(connect, "lifecycles", terminal):  # type: ignore[arg-type]
        pass

    assert tasks_now(connect) is None  # type: ignore[arg-type]
    assert terminal.getvalue() == ""
