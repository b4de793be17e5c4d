"""The session of a command: what it is started with, that it is quiet, and that a given one is left as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.pipeline.conftest import scrubbed
from veil.cli.pipeline.options import spark_session
from veil.pipeline.spark.session import (
    SessionFailed,
    SessionRefused,
    SparkFailed,
    SparkSettings,
    StartedSpark,
    chosen,
    close_session,
    driver_memory_mb,
    first_line,
    log_of,
    open_session,
    read_conf,
    ui_address,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A session as a command has it, from its start to its end, and what is left of it afterwards.
WHOLE_LIFE = """
import json, os, socket, sys
from urllib.parse import urlsplit
from urllib.request import urlopen
from veil.cli.pipeline.options import spark_session
from veil.pipeline.spark.session import SparkSettings, log_of, read_conf
import veil.pipeline.spark.session as module

def reached(host, port):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0

NAMES = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
before = [os.environ.get(name) for name in NAMES]
quick = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
with spark_session(SparkSettings(conf=read_conf(["spark.driver.memory=700m", quick])), "a job") as spark:
    context = spark.sparkContext
    ui = urlsplit(context.uiWebUrl)
    log, jvm = log_of(spark), module._started._jvm.pid
    told = {
        "master": context.master,
        "name": context.appName,
        "total": spark.range(100).selectExpr("sum(id) AS total").first().total,
        "python": spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first(),
        "heap_mb": context._jvm.java.lang.Runtime.getRuntime().maxMemory() // 2**20,
        "ui": context.uiWebUrl,
        "ui_status": urlopen(context.uiWebUrl).status,
        "ui_elsewhere": reached("127.0.0.2", ui.port),
        "log": log.read_text(),
        "temporary_is_beside_the_log": context._jvm.System.getProperty("java.io.tmpdir") == str(log.parent),
    }
told |= {
    "log_is_gone": not log.parent.exists(),
    "jvm_is_gone": not os.path.exists(f"/proc/{jvm}"),
    "environment_is_as_before": [os.environ.get(name) for name in NAMES] == before,
    "left_here": os.listdir(),
    "left_in_temporary": os.listdir(os.environ["TMPDIR"]),
}
json.dump(told, sys.stdout)
"""


def in_a_process(code: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=scrubbed(dict(os.environ)) | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_session_is_local_quiet_sized_as_told_on_loopback_and_leaves_nothing(tmp_path: Path):
    here, temporary = tmp_path / "here", tmp_path / "tmp"
    for folder in (here, temporary / "veil-spark-killed" / "artifacts-1"):
        folder.mkdir(parents=True)
    (
        temporary / "veil-spark-killed" / "lock"
    ).touch()  # a driver that was killed, and nobody holds this any more
    done = in_a_process(WHOLE_LIFE, here, PYSPARK_PYTHON="/no/such/python", TMPDIR=str(temporary))

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["total"] == 4950
    assert (told["master"], told["name"]) == ("local[*]", "veil a job")
    assert told["python"] == sys.executable
    assert 600 <= told["heap_mb"] <= 700
    assert told["ui"].startswith("http://127.0.0.1:")
    assert told["ui_status"] == 200
    assert not told["ui_elsewhere"]
    # Everything that the JVM has to say is in its file, and the person reads one line.
    assert "NativeCodeLoader" in told["log"]
    assert done.stderr == f"Spark's pages are at {told['ui']} while this runs\n"
    assert told["log_is_gone"]
    assert told["jvm_is_gone"]
    assert told["environment_is_as_before"]
    assert told["temporary_is_beside_the_log"]
    assert told["left_here"] == told["left_in_temporary"] == []


def test_what_a_killed_driver_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path):
    code = "from veil.pipeline.spark.session import _make_home as make; home, _ = make(); print(home, flush=True); input()"
    remove = "from veil.pipeline.spark.session import remove_left_homes as remove; remove()"
    start = {
        "args": [sys.executable, "-c", code],
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
    }
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(**start, env=environ) as killed, subprocess.Popen(**start, env=environ) as alive:  # type: ignore[call-overload]
        left, held = (Path(each.stdout.readline().strip()) for each in (killed, alive))
        killed.kill()
        killed.wait()
        assert left.exists()
        in_a_process(remove, tmp_path, TMPDIR=str(tmp_path))
        assert (left.exists(), held.exists()) == (False, True)
        alive.kill()


def test_a_start_that_fails_is_one_line_that_names_the_log(tmp_path: Path):
    code = (
        "from veil.cli.failures import TOLD\n"
        "from veil.cli.pipeline.options import spark_session\n"
        "from veil.pipeline.spark.session import SparkSettings\n"
        "try:\n"
        "    with spark_session(SparkSettings(master='nonsense'), 'a job'): pass\n"
        "except TOLD as failure:\n"
        "    print(failure)\n"
    )

    (tmp_path / "tmp").mkdir()
    done = in_a_process(code, tmp_path, TMPDIR=str(tmp_path / "tmp"), XDG_STATE_HOME=str(tmp_path / "state"))

    assert done.stderr == ""
    line, _, log = done.stdout.strip().partition("; what it said is in ")
    assert Path(log) == tmp_path / "state" / "veil" / "spark.log"
    assert [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("veil")] == []
    assert line.startswith("Spark did not start (")
    assert line.endswith(": Master must either be yarn or start with spark, k8s, or local")
    assert "Master must either be yarn" in Path(log).read_text()


def test_a_user_without_a_name_is_told_before_spark_is_started(monkeypatch: pytest.MonkeyPatch):
    """Many clusters run containers under a number that no account has; Spark's own words do not say so."""
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(SessionFailed, match="cannot run as user 4000000000, who has no name here"):
        StartedSpark.start(SparkSettings())


def test_a_command_leaves_the_session_active_that_it_found(spark: SparkSession):
    from pyspark.sql import SparkSession

    spark.createDataFrame([(1,)], "a int")  # makes it the active one
    with spark_session(SparkSettings(), "a job") as own:
        own.createDataFrame([(1,)], "a int")
        assert not SparkSession.getActiveSession()._jsparkSession.equals(spark._jsparkSession)

    assert SparkSession.getActiveSession()._jsparkSession.equals(spark._jsparkSession)


def test_what_a_task_of_ours_says_is_told_and_not_the_trace_around_it():
    text = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised by Python:
Traceback (most recent call last):
  File "worker.py", line 1, in main
veil.pipeline.sink.sender.RowRefused: row 5 of partition 0 (message_id='m-1') cannot be sent to queue small: too long
"""
    told = "row 5 of partition 0 (message_id='m-1') cannot be sent to queue small: too long"
    assert first_line(RuntimeError(text)) == told


def test_hours_are_utc_and_instants_are_written_in_microseconds(spark: SparkSession, tmp_path: Path):
    written = str(tmp_path / "instants")
    spark.sql("SELECT timestamp'2026-03-29 02:30:00' AS at").write.parquet(written)

    read = pq.read_table(written)

    assert str(read.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert read["at"][0].as_py().isoformat() == "2026-03-29T02:30:00+00:00"


def test_a_given_spark_is_used_and_nothing_of_it_is_changed(spark: SparkSession):
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        own = open_session()

        assert own.sparkContext.applicationId == spark.sparkContext.applicationId
        assert own.conf.get("spark.sql.session.timeZone") == "UTC"
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"
        assert log_of(own) is None
        close_session(own)
        assert spark.range(3).count() == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize(("master", "conf"), [("local[1]", {}), (None, {"spark.driver.memory": "1g"})])
def test_settings_that_come_too_late_for_a_given_spark_are_refused(
    spark: SparkSession, master: str | None, conf: dict[str, str]
):
    settings = SparkSettings(master=master, conf=conf)
    with pytest.raises(SessionRefused, match="Spark runs already"), spark_session(settings, "a job"):
        pass


def test_a_failure_of_sparks_own_is_told_in_one_line(spark: SparkSession):
    with pytest.raises(SparkFailed) as failure, spark_session(SparkSettings(), "a job") as own:
        own.range(1).selectExpr("raise_error('the disk is gone')").collect()

    assert str(failure.value).startswith("Spark failed: [USER_RAISED_EXCEPTION] the disk is gone")
    assert "\n" not in str(failure.value)


def test_what_fails_in_the_block_and_is_not_sparks_comes_through_as_it_is(spark: SparkSession):
    with pytest.raises(ZeroDivisionError), spark_session(SparkSettings(), "a job"):
        raise ZeroDivisionError


@pytest.mark.parametrize("text", ["spark.driver.memory", "=1", " = 1", ""])
def test_a_setting_without_a_name_or_an_equals_sign_is_refused(text: str):
    with pytest.raises(SessionRefused) as refused:
        read_conf([text])

    assert str(refused.value) == f"conf {text!r}: expected NAME=VALUE, such as spark.driver.memory=8g"


def test_a_setting_that_is_not_sparks_is_refused():
    with pytest.raises(
        SessionRefused, match=r"conf 'driver.memory': expected a name that begins with spark\."
    ):
        SparkSettings(conf={"driver.memory": "1g"})


def test_the_value_of_a_setting_may_hold_equals_signs():
    assert read_conf(["spark.driver.extraJavaOptions=-Da=b -Dc=d"]) == {
        "spark.driver.extraJavaOptions": "-Da=b -Dc=d"
    }


def test_a_master_of_spaces_is_refused():
    with pytest.raises(SessionRefused, match="expected a Spark master"):
        SparkSettings(master=" ")


def test_what_the_person_chose_wins(tmp_path: Path):
    conf = chosen(SparkSettings(conf={"spark.driver.memory": "9g", "spark.ui.port": "5000"}), tmp_path)

    assert (conf["spark.driver.memory"], conf["spark.ui.port"]) == ("9g", "5000")


@pytest.mark.parametrize(
    ("conf", "is_own"),
    [
        ({}, True),
        ({"spark.pyspark.python": "/their/python"}, False),
        ({"spark.submit.pyFiles": "veil.zip"}, False),
    ],
)
def test_workers_fork_from_veils_daemon_only_where_their_python_has_veil(
    conf: dict[str, str], is_own: bool, tmp_path: Path
):
    found = chosen(SparkSettings(master="spark://there:7077", conf=conf), tmp_path)

    assert ("spark.python.daemon.module" in found) is is_own


def test_the_master_may_come_as_a_setting_and_the_option_wins_over_it(tmp_path: Path):
    by_conf = SparkSettings(conf={"spark.master": "spark://there:7077"})
    by_both = SparkSettings(master="local[3]", conf={"spark.master": "spark://there:7077"})

    assert chosen(by_conf, tmp_path)["spark.master"] == "spark://there:7077"
    assert chosen(by_both, tmp_path)["spark.master"] == "local[3]"


def test_a_driver_for_a_cluster_is_not_tied_to_loopback(tmp_path: Path):
    conf = chosen(SparkSettings(master="spark://there:7077"), tmp_path)

    assert conf.keys().isdisjoint({"spark.driver.host", "spark.driver.bindAddress", "spark.ui.port"})


def test_the_driver_gets_a_third_of_the_memory_and_never_more_than_four_gigabytes():
    assert 512 <= driver_memory_mb() <= 4096


def test_where_sparks_pages_cannot_be_asked_for_there_are_none(spark: SparkSession):
    assert ui_address(spark) is None  # these tests turn them off
    assert ui_address(object()) is None  # type: ignore[arg-type]  # Spark Connect has no context
