"""Spark for a command: started here with sensible settings, or the one that is given.

Under `spark-submit`, in a notebook and in tests there is a Spark already; then it is used, and nothing of it is changed:
the pipeline takes a session of its own on it, with the two settings that its results depend on. A Spark that is started
here keeps what its JVM says in a file, and leaves nothing behind when it ends.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from veil.core.errors import VeilError
from veil.pipeline.spark import replaced
from veil.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOOPBACK: Final = "127.0.0.1"
DRIVER_MEMORY_MAX_MB: Final = 4096
DRIVER_MEMORY_MIN_MB: Final = 512  # with less, Spark refuses to start

# What results depend on, wherever the session comes from: hours and days are UTC's, and instants are written in the one
# form that every reader of Parquet takes (Spark's own default is one that pyarrow reads, and writes back otherwise).
MEANING: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
_DAEMON: Final = "veil.pipeline.spark.daemon"


class SessionRefused(VeilError):
    """The settings cannot be had: a malformed one, or one that comes too late for a Spark that runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkSettings:
    """How to start Spark; `conf` wins over everything that Veil chooses."""

    master: str | None = None  # None: local[*]
    conf: Mapping[str, str] = field(default_factory=dict)
    title: str = "veil"

    def __post_init__(self) -> None:
        if self.master is not None and not self.master.strip():
            raise SessionRefused(
                f"master {self.master!r}: expected a Spark master, such as local[4] or spark://HOST:7077"
            )
        for name in self.conf:
            if not name.startswith("spark."):
                raise SessionRefused(f"conf {name!r}: expected a name that begins with spark.")

    @property
    def where(self) -> str:
        return self.master or self.conf.get("spark.master") or "local[*]"

    @property
    def is_local(self) -> bool:
        """Whether all of Spark runs in one process on this machine."""
        return self.where.partition("[")[0] == "local"

    @property
    def asks_for_something(self) -> bool:
        """Whether somebody chose the master or any setting."""
        return self.master is not None or bool(self.conf)


def read_conf(pairs: Iterable[str]) -> dict[str, str]:
    """The settings of texts like `spark.x=1`; raises SessionRefused for a text that is none."""
    settings: dict[str, str] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SessionRefused(f"conf {text!r}: expected NAME=VALUE, such as spark.driver.memory=8g")
        settings[name.strip()] = value.strip()
    return settings


def chosen(settings: SparkSettings, home: Path) -> dict[str, str]:
    """Every setting of a Spark whose own files go under `home`."""
    conf = {
        **MEANING,
        "spark.driver.memory": f"{driver_memory_mb()}m",
        # Else Python tells the JVM for each column where in our code it was written: half of all it has to say.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.adaptive.enabled": "true",
        # Spark's default asks a `readlink` and a `chmod` of the shell for each file of a checkpoint: 50 ms of every batch.
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager",
        "spark.sql.warehouse.dir": str(home / "warehouse"),  # else a directory appears wherever one stands
        "spark.ui.showConsoleProgress": "false",  # the command draws its own
        # All that a driver leaves when it is killed lies in one place, where it can be found.
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={home}"',
        # The work is in Python or takes seconds: Java's second compiler would be half of all CPU for minutes.
        "spark.driver.extraJavaOptions": _ONE_COMPILER,
        "spark.executor.defaultJavaOptions": _ONE_COMPILER,  # besides what a cluster gives its executors
        # For data that is near, a task would wait three seconds beside a free core; most take less than one, wherever they run.
        "spark.locality.wait": "0s",
    }
    # The daemon needs a Veil that is installed in the workers' Python.
    if not settings.conf.keys() & {"spark.submit.pyFiles", "spark.pyspark.python"}:
        conf["spark.python.daemon.module"] = _DAEMON
    if settings.is_local:
        conf |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            "spark.port.maxRetries": "100",  # Spark's pages take the next port that is free
        }
    return {**conf, **settings.conf, "spark.master": settings.where, "spark.app.name": settings.title}


def driver_memory_mb() -> int:
    """A third of the memory that this process may have, 4 GB at most."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or "max" in it
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return max(DRIVER_MEMORY_MIN_MB, min(DRIVER_MEMORY_MAX_MB, total // 3 // 2**20))


_ENDING_S = 30  # the JVM removes its own temporary files in this time
_DYING_S = 0.5
_PREFIX = re.compile(
    r'^(?:Exception in thread "[^"]*" |: |Error: )?(?:Caused by: )?(?:[\w$]+\.)*[\w$]*(?:Exception|Error): '
)
_TELLING = re.compile(r"Exception: |^Error: |^Caused by: ")


class SessionFailed(VeilError):
    """Spark did not start; the text names the file that has what it said."""


class SparkFailed(VeilError):
    """Spark failed while it worked; one line, with the file that has the rest."""


_HOME: Final = "veil-spark-"
_LOCK: Final = "lock"


def _make_home() -> tuple[Path, int]:
    """A directory for a Spark's own files, and the lock that says that its process lives: with that the kernel ends the lock."""
    home = Path(tempfile.mkdtemp(prefix=_HOME))
    lock = os.open(home / "locking", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (home / "locking").rename(home / _LOCK)  # whoever finds it finds it locked
    return home, lock


def remove_left_homes() -> None:
    """Remove what was left by Sparks of ours that were killed together with the process that started them."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_HOME}*/{_LOCK}"):
        with suppress(OSError):  # another's, or held: its process lives; or another removes it at this moment
            held = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(held)


class StartedSpark:
    """A Spark that this process started: its session, its JVM, and the directory with its log and its temporary files."""

    def __init__(self, home: Path, lock: int) -> None:
        self._home, self._lock = home, lock
        self.log = home / "spark.log"
        self.session: SparkSession | None = None
        self._jvm: Any = None  # the process

    @classmethod
    def start(cls, settings: SparkSettings) -> StartedSpark:
        """Start it; raises JavaMissing or SessionFailed."""
        java = find_java(os.environ)
        _check_account()
        remove_left_homes()
        started = cls(*_make_home())
        try:
            with _environment(settings, java.home):
                started._launch(settings)
        except Exception as problem:
            reason = first_line(problem) if started._jvm else started._last_words()
            log = started.end(keep_log=True)
            text = f"Spark did not start ({java.origin}): {reason}; what it said is in {log}"
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

    def end(self, *, keep_log: bool) -> Path | None:
        """Stop it and wait until its process is gone, also where it has died by itself; where its log is kept, if it is."""
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
        kept = self._kept_log() if keep_log else None
        if kept is None or kept != self.log:
            shutil.rmtree(self._home, ignore_errors=True)
        else:
            # Kept for a person, so not to be removed by the next one.
            (self._home / _LOCK).unlink(missing_ok=True)
        os.close(self._lock)
        return kept

    def _kept_log(self) -> Path:
        """The log of the last Spark that failed has a place of its own: failures leave nothing in the temporary folder."""
        try:
            state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
            kept = Path(state, "veil", "spark.log")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.log, kept)
        except (OSError, RuntimeError):  # no home at all is the latter
            return self.log  # nowhere to put it: it stays where it is
        return kept

    def _last_words(self) -> str:
        lines = (
            self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        )
        telling = [line for line in lines if _TELLING.search(line)]
        return _shortened(telling[0]) if telling else "its process ended at once"


def _check_account() -> None:
    # Spark would say "basedir must be absolute: ?/.ivy2", and with a home "Invalid UID".
    number = os.getuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        raise SessionFailed(
            f"Spark cannot run as user {number}, who has no name here: add a line for that number to /etc/passwd, or run as "
            "another user"
        ) from None


def first_line(problem: Exception) -> str:
    """What went wrong, of an error of Spark's, in one line: Java's traces run over pages."""
    try:
        return _shortened(str(problem))
    except Exception:  # some errors ask the JVM for their text
        return "its process has ended"


# The last line of a trace that a task of ours sent back: what went wrong, in words meant for people.
_OURS: Final = re.compile(r"^\W*veil(?:\.\w+)+: (.+)$", re.MULTILINE)


def _shortened(text: str) -> str:
    ours = _OURS.search(text)
    if ours is not None:
        return ours[1].strip()
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


_started: StartedSpark | None = None  # a process has one Spark at a time, by Spark's own rule
_given: dict[int, SparkSession] = {}  # by the id of our own session beside it: which was active before


@contextmanager
def session(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A session to work in; a Spark that was started for it ends with it, one that was given stays.

    A failure of Spark's own in the block becomes SparkFailed, with the file that has what Spark said.
    """
    spark = open_session(settings)
    try:
        yield spark
    except BaseException as problem:
        reason = _reason_of(spark, problem)
        log = close_session(spark, keep_log=reason is not None)
        if reason is None:
            raise
        told = "" if log is None else f"; what it said is in {log}"
        raise SparkFailed(f"Spark failed: {reason}{told}") from problem
    close_session(spark)


def _reason_of(spark: SparkSession, problem: BaseException) -> str | None:
    """One line of Spark's pages of Java, where it is Spark that failed; the rest goes into its log."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    if not isinstance(problem, Py4JError | PySparkException | ConnectionError):
        return None
    log = log_of(spark)
    if log is None:
        return first_line(problem)
    with log.open("a", encoding="utf-8") as said, suppress(Exception):  # the error's text is asked of a JVM
        traceback.print_exception(problem, file=said)
    assert _started is not None
    return "its process died (out of memory?)" if _started.has_died else first_line(problem)


def open_session(settings: SparkSettings | None = None) -> SparkSession:
    """A session on the Spark that is given, or on one that is started now; `close_session` ends it.

    Raises JavaMissing, SessionRefused or SessionFailed, each with one line for the person.
    """
    global _started
    settings = settings or SparkSettings()
    from pyspark.sql import SparkSession

    if is_given():
        if settings.asks_for_something:
            raise SessionRefused(
                "Spark runs already, with its own master and settings: give --master and --conf to what started it "
                "(spark-submit), not to this command"
            )
        return _beside(SparkSession.builder.getOrCreate())
    _started = StartedSpark.start(settings)
    assert _started.session is not None
    return _started.session


def is_given() -> bool:
    """Whether there is a Spark already: in this process, around it (`spark-submit`), or a remote one."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        return True
    if "pyspark" not in sys.modules:
        return False  # to import it takes longer than some commands do
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None


def close_session(spark: SparkSession, *, keep_log: bool = False) -> Path | None:
    """End the Spark that `open_session` started; one that was given is left as it was. Where the log is kept, if it is."""
    global _started
    if _started is not None and _started.session is spark:
        started, _started = _started, None
        return started.end(keep_log=keep_log)
    given = _given.pop(id(spark), None)
    if given is not None:
        from veil.pipeline.spark.workers import make_active

        make_active(given)
    return None


def log_of(spark: SparkSession) -> Path | None:
    """The file with what this Spark says, where it was started here; `close_session` removes it unless told to keep it."""
    return _started.log if _started is not None and _started.session is spark else None


def ui_address(spark: SparkSession) -> str | None:
    """Where Spark's own pages are; None without them, or where they cannot be asked for."""
    try:
        return spark.sparkContext.uiWebUrl
    except Exception:  # Spark Connect has no context, and says so with an error of its own
        return None


def _beside(given: SparkSession) -> SparkSession:
    """A session of our own on the given Spark: its settings as they are, but for what results depend on."""
    try:
        own = given.newSession()
    except Exception:  # a Spark Connect before 4.3 has no such thing
        own = given
    else:
        _given[id(own)] = given
    for name, value in MEANING.items():
        own.conf.set(name, value)
    return own


# ---- what a person sees while a command runs: how far it is, and no pages of traces


def tasks_now(spark: SparkSession) -> tuple[int, int] | None:
    """How many tasks of all active stages are done, of how many; None where Spark does not tell (Spark Connect, a session that
    has ended)."""
    try:
        tracker = spark.sparkContext.statusTracker()
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # a bar is never a reason to fail
        return None
    stages = [info for info in found if info is not None]
    return sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)


@contextmanager
def shown_progress(spark: SparkSession, title: str, stream: TextIO) -> Iterator[None]:
    """A bar on the stream while the block runs; nothing where the stream is no terminal or Spark does not tell."""
    if not stream.isatty() or tasks_now(spark) is None:
        yield
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )

    class Tasks(ProgressColumn):
        """Spark's tasks, asked for whenever the line is drawn; the bar shows them the next time."""

        def render(self, task: Task) -> str:
            done, total = tasks_now(spark) or (0, 0)
            task.completed, task.total = done, total or None
            return f"{done}/{total} tasks" if total else ""

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), Tasks(), TimeElapsedColumn())
    console = Console(file=stream, highlight=False)
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as bar:
        bar.add_task(title, total=None)
        yield


_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def without_query_pages() -> Iterator[None]:
    """What is raised in the block is not logged too."""
    from pyspark.logger import PySparkLogger

    with ExitStack() as stack:
        for name in _LOGGERS:
            stack.enter_context(replaced(PySparkLogger.getLogger(name), "disabled", True))
        yield
