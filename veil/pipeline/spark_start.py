"""Start a Spark for this process, keep what its JVM says in a file, and end it without leaving anything behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veil.core.errors import VeilError
from veil.pipeline.java import find_java
from veil.pipeline.spark_settings import LOOPBACK, SparkSettings, chosen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDING_S = 30  # the JVM removes its own temporary files in this time
_DYING_S = 0.5
_PREFIX = re.compile(
    r'^(?:Exception in thread "[^"]*" |: |Error: )?(?:Caused by: )?(?:[\w$]+\.)*[\w$]*(?:Exception|Error): '
)
_TELLING = re.compile(r"Exception: |^Error: |^Caused by: ")


class SessionFailed(VeilError):
    """Spark did not start; the text names the file that has what it said."""


class StartedSpark:
    """A Spark that this process started: its session, its JVM, and the directory with its log."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.log = home / "spark.log"
        self.session: SparkSession | None = None
        self._jvm: Any = None  # the process

    @classmethod
    def start(cls, settings: SparkSettings) -> StartedSpark:
        """Start it; raises JavaMissing or SessionFailed."""
        java = find_java(os.environ)
        started = cls(Path(tempfile.mkdtemp(prefix="veil-spark-")))
        try:
            with _environment(settings, java.home):
                started._launch(settings)
        except Exception as problem:
            reason = first_line(problem) if started._jvm else started._last_words()
            started.end(keep_log=True)
            text = f"Spark did not start ({java.origin}): {reason}; what it said is in {started.log}"
            raise SessionFailed(text) from problem
        except BaseException:
            started.end(keep_log=False)
            raise
        return started

    def _launch(self, settings: SparkSettings) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        conf = SparkConf(loadDefaults=False).setAll(list(chosen(settings, self._home).items()))
        # Launched by hand for the sake of its output: the JVM speaks before any logging is set up, and what it says
        # belongs in a file, not between the lines of a command.
        with self.log.open("ab") as log:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        self._jvm = gateway.proc
        self.session = SparkSession(SparkContext(conf=conf, gateway=gateway))

    @property
    def has_died(self) -> bool:
        """Whether its process is gone without having been told to."""
        try:
            # A moment's grace: the connection breaks before the process is seen to end.
            return self._jvm is not None and self._jvm.wait(_DYING_S) is not None
        except subprocess.TimeoutExpired:
            return False

    def end(self, *, keep_log: bool) -> None:
        """Stop it and wait until its process is gone, also where it has died by itself."""
        from pyspark import SparkContext

        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a JVM that has died cannot be stopped cleanly
            if self.session is not None:
                self.session.stop()
        if self._jvm is not None:
            with suppress(Exception):
                if SparkContext._gateway is not None:
                    SparkContext._gateway.shutdown()
            # The next session of this process starts a JVM of its own, with its own memory.
            SparkContext._gateway = SparkContext._jvm = None
            with suppress(OSError):
                self._jvm.stdin.close()  # the JVM ends when this pipe does
            try:
                self._jvm.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                self._jvm.kill()
                self._jvm.wait()
        if not keep_log:
            shutil.rmtree(self._home, ignore_errors=True)

    def _last_words(self) -> str:
        lines = (
            self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        )
        telling = [line for line in lines if _TELLING.search(line)]
        return _shortened(telling[0]) if telling else "its process ended at once"


def first_line(problem: Exception) -> str:
    """What went wrong, of an error of Spark's, in one line: Java's traces run over pages."""
    try:
        return _shortened(str(problem))
    except Exception:  # some errors ask the JVM for their text
        return "its process has ended"


def _shortened(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # py4j puts its own sentence first, and then the error after a colon.
    telling = next(
        (line for line in lines if line.startswith(": ")), lines[0] if lines else "no reason given"
    )
    return _PREFIX.sub("", telling)


@contextmanager
def _environment(settings: SparkSettings, java_home: str | None) -> Iterator[None]:
    """The variables that Spark reads at its start, put back afterwards: they are not this process's affair."""
    wanted = {"JAVA_HOME": java_home} if java_home else {}
    python = settings.conf.get("spark.pyspark.python")
    if settings.is_local:
        # Untold, workers run whatever `python3` comes first on the PATH; and Spark, its pages too, listens on all
        # interfaces.
        wanted |= {"PYSPARK_PYTHON": python or sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    else:
        wanted["PYSPARK_PYTHON"] = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
