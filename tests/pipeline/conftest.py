"""One Spark for all of these tests: quick to start, small, and blind to what the machine's environment says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from veil.journal.storage import Storage

QUICK = {
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    # To write and compile Java for each plan takes longer than to interpret it over a few rows. Clusters and the demo run
    # as everybody's Spark does.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def scrubbed(environ: dict[str, str]) -> dict[str, str]:
    """The environment without anything that changes how Spark or Java start."""
    foreign = ("SPARK_", "PYSPARK_", "JAVA_TOOL", "JDK_JAVA", "_JAVA_OPTIONS", "HADOOP_", "VEIL_")
    return {name: value for name, value in environ.items() if not name.startswith(foreign)}


def _until_python_is_there(start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
    """Starts a query again whose Python was not there within Spark's ten seconds, on a busy machine; it had not begun."""

    def started(*given: Any, **named: Any) -> StreamingQuery:
        while True:
            query = start(*given, **named)
            while query.isActive and query.status["message"].startswith("Initializing sources"):
                time.sleep(0.02)
            error = "" if query.isActive else str(query.exception())
            if "failed to connect back" not in error or "Current State: INITIALIZING" not in error:
                return query

    return started


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that every test here shares; commands that run in this process use it too."""
    from pyspark.sql.streaming import DataStreamWriter

    from veil.pipeline.spark.session import SparkSettings, close_session, open_session

    before = dict(os.environ)
    kept = scrubbed(before)
    for name in before.keys() - kept.keys():
        del os.environ[name]
    session = open_session(SparkSettings(master="local[2]", conf=QUICK, title="veil tests"))
    start = DataStreamWriter.start
    DataStreamWriter.start = _until_python_is_there(start)
    try:
        yield session
    finally:
        DataStreamWriter.start = start
        close_session(session)
        os.environ.update(before)


@pytest.fixture
def journal_place(tmp_path: Path) -> Storage:
    """A directory for a journal, of this test alone."""
    from veil.journal.storage import Storage

    return Storage.at(tmp_path / "journal")


@pytest.fixture
def tables_place(tmp_path: Path) -> Storage:
    """A directory for the tables, of this test alone."""
    from veil.journal.storage import Storage

    return Storage.at(tmp_path / "tables")
