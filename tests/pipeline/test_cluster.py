"""The pipeline on a cluster: the files that `veil pipeline package` writes are all that the workers need."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.autopilot_kit import HOUR_MS, REGION, World, slow
from tests.pipeline.cluster_kit import Cluster, cluster
from tests.pipeline.journal_kit import a_message, cut, journal_of, numbered, write_segment_of
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.queues_kit import Queues
from tests.pipeline.random_lives import random_journal
from tests.pipeline.tables_kit import all_rows, difference
from veil.cli.main import run
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.tables import bucket_of
from veil.testing import VeilServer

# Half a dozen JVMs start here, on whatever the machine has left.
pytestmark = pytest.mark.timeout(900)

# Runs a function of the package in Python on the workers, and says which file of which worker it came from.
PROBE = """
import json
import sys

from veil.pipeline.spark.session import SparkSettings, session


def on_worker(lengths):
    import os

    import veil
    from veil.pipeline.lifecycles.tables import bucket_of

    yield from ((os.getcwd(), veil.__file__, length, bucket_of(length)) for length in lengths)


with session() as spark:
    found = spark.sparkContext.parallelize([1, 1000, 60_000, 3_600_000], 2).mapPartitions(on_worker).collect()
    zone = spark.conf.get("spark.sql.session.timeZone")
    json.dump({"found": found, "zone": zone, "master": spark.sparkContext.master}, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def on_loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker: it has nothing of the driver's but what is sent to it, as any of many."""
    with cluster(tmp_path_factory.mktemp("cluster"), workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def on_two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packaged")
    assert run(["pipeline", "package", str(folder)]) == 0
    return folder


@pytest.mark.soak
def test_both_workers_run_the_code_that_was_shipped_to_them(
    on_two_workers: Cluster, packaged: Path, tmp_path: Path
):
    probe, answer = tmp_path / "probe.py", tmp_path / "answer.json"
    probe.write_text(PROBE)

    done = on_two_workers.submit(
        "--py-files", str(packaged / "veil.zip"), str(probe), str(answer), cwd=tmp_path
    )

    assert done.returncode == 0, done.stderr
    told = json.loads(answer.read_text())
    assert told["master"] == on_two_workers.master
    assert told["zone"] == "UTC"
    assert [(length, bucket) for _, _, length, bucket in told["found"]] == [
        (length, bucket_of(length)) for length in (1, 1000, 60_000, 3_600_000)
    ]
    assert len({folder for folder, *_ in told["found"]}) == 2
    for folder, file, *_ in told["found"]:
        assert Path(folder, file).is_relative_to(Path(folder, "veil.zip"))


def test_lifecycles_on_a_cluster_give_the_tables_that_the_events_mean(
    on_loopback: Cluster, packaged: Path, journal_place: Storage, tables_place: Storage, tmp_path: Path
):
    rng = random.Random(4)
    events = numbered(random_journal(rng, 120))
    for piece in cut(events, 4, rng):
        write_segment_of(journal_place, piece)
    job = ("--py-files", str(packaged / "veil.zip"), str(packaged / "veil_job.py"))
    words = ("lifecycles", "--journal", journal_place.uri, "--tables", tables_place.uri, "--json")

    done = on_loopback.submit(*job, *words, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["segments"], told["events"], told["broken"]) == (4, len(events), [])
    assert difference(all_rows(tables_place), model_tables(events)) == ""


REGISTER = """
import sys
from pyspark.sql import SparkSession
from veil.core.errors import VeilError
from veil.pipeline import register

builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()
try:
    register(spark)
except VeilError as refused:
    print(refused)
"""


@pytest.mark.soak
def test_workers_without_the_python_that_the_driver_has_are_told_of_at_once_with_what_to_set(
    on_loopback: Cluster, tmp_path: Path
):
    """The driver plans with the Python that the workers run; by its name alone it may be another one there."""
    here = tmp_path / "here" / "python-of-the-driver"
    here.parent.mkdir()
    here.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    here.chmod(0o755)
    environ = {**on_loopback.environ, "PATH": f"{here.parent}:{os.environ['PATH']}"}
    environ["PYSPARK_PYTHON"] = here.name

    done = subprocess.run(
        [sys.executable, "-c", REGISTER, on_loopback.master],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith(f'Spark\'s workers cannot run Veil (Cannot run program "{here.name}"')
    assert line.endswith(
        "): before Spark starts, set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has "
        "veilmq[spark] on the driver and on every worker"
    )


@pytest.mark.soak
def test_a_router_on_two_workers_sends_every_message_on_once(
    on_two_workers: Cluster, packaged: Path, veil_server: VeilServer, tmp_path: Path
):
    """The source and the sink on a cluster: executors read the intake and write the targets themselves."""
    queues = Queues(veil_server)
    queues.create("intake", VisibilityTimeout="300")
    queues.send("intake", [f'{{"n": {n}, "kind": "{"ab"[n % 2]}"}}' for n in range(500)])
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'default = "plain"\n[queues]\nplain = "30s"\n"exact.fifo" = "5min"\n'
        '[[rules]]\njson = { "$.kind" = "b" }\nqueue = "exact.fifo"\n'
    )
    job = ("--py-files", str(packaged / "veil.zip"), str(packaged / "veil_job.py"))
    words = ["route", "--from", "intake", "--rules", str(rules), "--once", "--create-queues", "--json"]
    words += ["--state", str(tmp_path / "state"), "--endpoint", veil_server.endpoint_url]

    done = on_two_workers.submit(*job, *words, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines[-1]["total"] == {"plain": 250, "exact.fifo": 250}
    for queue, kind in (("plain", 0), ("exact.fifo", 1)):
        got = Counter(json.loads(each.body)["n"] for each in queues.take_all(queue))
        assert got == Counter(n for n in range(500) if n % 2 == kind)
    assert queues.count("intake") == 0


@pytest.mark.soak
def test_an_autopilot_on_a_cluster_changes_a_timeout(on_loopback: Cluster, packaged: Path, tmp_path: Path):
    with VeilServer("--data", str(tmp_path / "data")) as server:
        world = World(tmp_path, server.endpoint_url, int(time.time() * 1000) - 2 * HOUR_MS)
        world.create(30)
        world.pass_time(2, slow)
        job = ("--py-files", str(packaged / "veil.zip"), str(packaged / "veil_job.py"))
        words = [
            "autopilot",
            "--once",
            "--json",
            "--journal",
            world.journal.uri,
            "--tables",
            world.tables.uri,
        ]
        words += ["--audit", str(world.audit_file), "--endpoint", server.endpoint_url, "--region", REGION]

        done = on_loopback.submit(*job, *words, cwd=tmp_path)

        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert (told["queue"], told["kind"], told["before_s"]) == ("orders", "change", 30)
        assert world.timeout_s == told["after_s"]
        world.client.close()


@pytest.mark.soak
def test_a_master_is_for_spark_submit_and_not_for_the_words_after_the_main_file(
    on_loopback: Cluster, packaged: Path, journal_place: Storage, tmp_path: Path
):
    write_segment_of(journal_place, journal_of(a_message()))
    job = ("--py-files", str(packaged / "veil.zip"), str(packaged / "veil_job.py"))

    done = on_loopback.submit(
        *job, "lifecycles", "--journal", journal_place.uri, "--master", "local[1]", cwd=tmp_path
    )

    assert done.returncode == 1
    # spark-submit puts what its Python says on stderr on its own stdout.
    assert (
        "veil: Spark runs already, with its own master and settings: give --master and --conf" in done.stdout
    )
