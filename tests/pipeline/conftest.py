"""One Spark for all of these tests: quick to start, small, and blind to what the machine's environment says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that every test here shares; commands that run in this process use it too."""
    from veil.pipeline.spark.session import SparkSettings, close_session, open_session

    before = dict(os.environ)
    kept = scrubbed(before)
    for name in before.keys() - kept.keys():
        del os.environ[name]
    session = open_session(SparkSettings(master="local[2]", conf=QUICK, title="veil tests"))
    try:
        yield session
    finally:
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
