"""Which Python Spark's workers run: the one that has Veil, also where no virtual environment is activated."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.journal_kit import story, write_segment_of
from tests.pipeline.queues_kit import Queues
from veil.cli.main import run
from veil.journal.storage import Storage
from veil.pipeline import drain, register
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.pipeline.spark import workers
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bare(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The Python of a person's own session: it runs, and has neither Veil nor anything that Veil needs."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = f"{tmp_path}/bare/bin/python3"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    context: Any = spark.sparkContext
    conf = context._jsc.sc().conf()
    daemon = conf.get("spark.python.daemon.module")
    conf.set(
        "spark.python.daemon.module", "pyspark.daemon"
    )  # Veil gives its own only to a Spark that it starts
    yield python
    conf.set("spark.python.daemon.module", daemon)


def test_workers_import_pyspark_from_where_it_is_installed_and_compiled(spark: SparkSession):
    import pyspark

    found = spark.sparkContext.parallelize([0], 1).map(lambda _: import_module("pyspark").__file__).first()
    assert found == pyspark.__file__  # and not .../pyspark.zip/pyspark/__init__.py


def test_every_entry_works_from_a_virtual_environment_that_is_not_activated(
    spark: SparkSession,
    veil_server: VeilServer,
    bare: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """Every way in which Veil has workers run Python; routing is a stream and a write."""
    queues = Queues(veil_server)
    for name in ("orders", "copies"):
        queues.create(name)
    at = {"endpoint": veil_server.endpoint_url, "region": veil_server.region, "queue": "orders"}
    register(spark)

    rows = spark.range(0, 6, 1, 2).selectExpr("cast(id as string) body")
    rows.write.format("veil").options(**at).mode("append").save()
    assert spark.read.format("veil").options(**at, mode="browse").load().count() == 6
    with drain(spark, **at, maxMessages=2) as messages:
        assert messages.count() == 2
    stream = spark.readStream.format("veil").options(**at).load().selectExpr("body")
    writer = stream.writeStream.format("veil").options(**at).option("queue", "copies")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    words = ["copies", "--tables", str(tmp_path / "tables"), "--endpoint", veil_server.endpoint_url, "--json"]
    assert run(["pipeline", "dead-letters", *words]) == 0, capsys.readouterr().err

    assert (queues.count("orders"), queues.count("copies")) == (0, 4)
    # What is the person's own is left as it was, and runs with their Python.
    assert spark.sparkContext.pythonExec == bare
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first()
    assert found == bare


def test_workers_whose_python_lacks_veil_are_told_of_at_once_with_what_to_set(
    spark: SparkSession, bare: str, monkeypatch: pytest.MonkeyPatch
):
    """As on a cluster: there Veil leaves the Python as it is, and the driver plans with that of the workers."""
    monkeypatch.setattr(workers, "_is_local", lambda context: False)
    try:
        with pytest.raises(workers.WorkersLackVeil) as refused:
            register(spark)
    finally:
        monkeypatch.undo()
        register(spark)
    first, _, advice = str(refused.value).partition("): ")
    assert first.startswith("Spark's workers cannot run Veil (No module named '")
    assert advice == (
        "before Spark starts, set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has veilmq[spark] on the driver "
        "and on every worker"
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Traceback\nModuleNotFoundError: No module named 'veil'\n", "No module named 'veil'"),
        (
            "/bare/python3: Error while finding module specification for 'veil.pipeline.spark.daemon' "
            "(ModuleNotFoundError: No module named 'veil')\nPYTHONPATH was: x\n",
            "No module named 'veil'",
        ),
        ('java.io.IOException: Cannot run program "py": error=2', 'Cannot run program "py": error=2'),
    ],
)
def test_what_workers_lack_is_read_from_what_spark_says(said: str, reason: str):
    with pytest.raises(workers.WorkersLackVeil) as refused, workers.refusing_workers_without_veil():
        raise RuntimeError(said)
    assert str(refused.value).startswith(f"Spark's workers cannot run Veil ({reason}): before")


def test_lifecycles_on_workers_whose_python_lacks_veil_are_refused_and_change_nothing(
    spark: SparkSession, bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, tables = Storage.at(tmp_path / "journal"), Storage.at(tmp_path / "tables")
    write_segment_of(journal, story(0))
    monkeypatch.setattr(workers, "_is_local", lambda context: False)  # as on a cluster
    with pytest.raises(workers.WorkersLackVeil, match=r"cannot run Veil \(No module named"):
        run_lifecycles(spark, journal, tables, bytes_here_max=0)
    assert not [each.name for each in tables.entries() if each.name != "_lock"]
