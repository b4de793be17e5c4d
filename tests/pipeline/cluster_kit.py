"""A real Spark cluster on loopback: a standalone master and its workers, each a process with an address of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import IO, NamedTuple

import pyspark

from tests.pipeline.conftest import QUICK, scrubbed
from veil.pipeline.spark.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
STARTING_S = 120
QUICK_JVM = QUICK["spark.driver.extraJavaOptions"]


class Cluster(NamedTuple):
    """Where jobs go, and the environment that they are submitted in."""

    master: str
    environ: dict[str, str]
    workers: list[int]  # their processes; what runs on a worker is below its own

    def submit(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run `spark-submit` with these arguments to its end."""
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master, "--driver-memory", "512m", "--executor-memory", "512m"),
            # Not a task before all workers have joined.
            *("--conf", f"spark.cores.max={len(self.workers)}"),
            *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
            *("--driver-java-options", QUICK_JVM, "--conf", f"spark.executor.extraJavaOptions={QUICK_JVM}"),
            *arguments,
        ]
        return subprocess.run(command, cwd=cwd, env=self.environ, capture_output=True, text=True, check=False)


@contextmanager
def cluster(folder: Path, workers: int = 2, memory: str = "768m", *, held: bool = False) -> Iterator[Cluster]:
    """A master and workers of one core each, until the block ends. Spark only counts cores; held, a worker has no more."""
    environ = {**scrubbed(dict(os.environ)), "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    environ |= {
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    java = find_java(environ)
    if java.home is not None:
        environ["JAVA_HOME"] = java.home
    any_ports = ("--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        listening = r"Starting Spark master at (spark://127\.0\.0\.1:[0-9]+)"
        master = _daemon(["master.Master", "--host", "127.0.0.1", *any_ports], environ, listening)
        url = stack.enter_context(master).sign()[1]
        logs = []
        cores = cycle(sorted(os.sched_getaffinity(0)))
        for host in (f"127.0.0.{number}" for number in range(1, workers + 1)):  # distinct hosts to Spark
            size = ("--cores", "1", "--memory", memory, "--work-dir", str(folder / f"worker-{host}"))
            arguments = ["worker.Worker", "--host", host, *any_ports, *size, url]
            own = {**environ, "SPARK_LOCAL_IP": host}
            core = next(cores) if held else None
            worker = _daemon(arguments, own, r"Successfully registered with master", core)
            logs.append(stack.enter_context(worker))
        for log in logs:
            log.sign()
        yield Cluster(url, environ, [log.pid for log in logs])


@contextmanager
def _daemon(
    arguments: Sequence[str], environ: dict[str, str], sign: str, core: int | None = None
) -> Iterator[_Log]:
    """The process, on this core alone where one is given, and its log, in which the sign will appear."""
    command = [
        str(SPARK_HOME / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{arguments[0]}",
        *arguments[1:],
    ]
    if core is not None:
        command = ["taskset", "--cpu-list", str(core), *command]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        log = _Log(process.pid, process.stderr, sign)
        try:
            yield log
        finally:
            process.terminate()
            log.join()


class _Log(threading.Thread):
    """Reads a log to its end, so that its writer never waits, and knows when the sign has come."""

    def __init__(self, pid: int, stream: IO[str], sign: str) -> None:
        super().__init__(name="spark-daemon-log", daemon=True)
        self.pid = pid
        self._stream, self._sign = stream, re.compile(sign)
        self._lines: list[str] = []
        self._found: re.Match[str] | None = None
        self._known = threading.Event()
        self.start()

    def run(self) -> None:
        for line in self._stream:
            self._lines.append(line)
            if self._found is None and (found := self._sign.search(line)):
                self._found = found
                self._known.set()
        self._known.set()

    def sign(self) -> re.Match[str]:
        """What the sign matched, once it is there."""
        self._known.wait(STARTING_S)
        assert self._found is not None, "".join(self._lines)
        return self._found
