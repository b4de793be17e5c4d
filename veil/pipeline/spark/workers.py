"""Makes `format("veil")` known to a Spark session, and sees that Spark's workers have Veil: in their Python, or as a zip."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from veil.core.errors import VeilError
from veil.journal.storage import Storage
from veil.pipeline.spark import replaced

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_SOURCE: Final = "veil.pipeline.source.readers"
_REASON: Final = re.compile(
    r"ModuleNotFoundError: (No module named '[^']*')|ImportError: (.*)|(Cannot run program .*)"
)

# The applications whose workers have shown that they can run Veil.
_checked: set[str | None] = set()


class WorkersLackVeil(VeilError):
    """The Python that Spark's workers run cannot import Veil."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark's workers cannot run Veil ({reason}): before Spark starts, set PYSPARK_PYTHON (or "
            "spark.pyspark.python) to a Python that has veilmq[spark] on the driver and on every worker"
        )


def register(spark: SparkSession) -> None:
    """Let the session read and write queues by `format("veil")`; to be called once a session.

    Raises WorkersLackVeil on a cluster whose workers run a Python without Veil.
    """
    from veil.pipeline.source.readers import VeilDataSource

    make_active(spark)
    with this_python(spark), _environment_that_may_be_shared(spark):
        spark.dataSource.register(VeilDataSource)
    _check_workers(spark)


def this_python(spark: SparkSession) -> AbstractContextManager[None]:
    """What Spark is given to run in the block runs with this interpreter, where all of Spark is on this machine.

    Unless it was told, Spark runs the first `python3` on the PATH, which has no Veil where a virtual environment is used
    without having been activated. The person's own functions keep the Python that the session was started with.
    """
    context = _context(spark)
    if context is None or not _is_local(context) or not sys.executable:
        return nullcontext()
    return replaced(context, "pythonExec", sys.executable)


def _context(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except Exception:  # Spark Connect has no context, and says so with an error of its own
        return None


def _is_local(context: SparkContext) -> bool:
    return str(context.master).startswith("local")


@contextmanager
def refusing_workers_without_veil() -> Iterator[None]:
    """What Spark raises in the block because a worker cannot import Veil becomes WorkersLackVeil."""
    try:
        yield
    except Exception as problem:
        found = _REASON.findall(str(problem))
        if not found:
            raise
        raise WorkersLackVeil("".join(found[-1]).strip()) from None


def _check_workers(spark: SparkSession) -> None:
    """Raise WorkersLackVeil where a task on a cluster cannot import Veil, or the driver cannot plan a read.

    The driver plans with the Python that the workers run, which by the same name may be another one there.
    """
    from pyspark.sql import functions as F  # noqa: N812

    context = _context(spark)
    if context is not None and (_is_local(context) or context.applicationId in _checked):
        return
    # Not a function of Veil's, which would be sent by its name alone: a worker without Veil could not read it.
    load = eval("lambda module: str(__import__(module))", {"__name__": "__main__"})  # noqa: S307
    with refusing_workers_without_veil():
        spark.read.format("veil").option("queue", "any").option("mode", "browse").load()
        spark.range(0, 1, 1, 1).select(F.udf(load, "string")(F.lit(_SOURCE))).collect()
    if context is not None:
        _checked.add(context.applicationId)


def make_active(spark: SparkSession) -> None:
    """Make the session the active one of this thread, as creating a DataFrame does.

    Spark looks a format up in the active session: it refuses to register there what another session knows, and a write finds
    only what that one knows.
    """
    context = _context(spark)
    if context is not None:
        cast(Any, context._jvm).org.apache.spark.sql.classic.SparkSession.setActiveSession(
            spark._jsparkSession
        )
        type(spark)._activeSession = spark  # what Python itself remembers


def _environment_that_may_be_shared(spark: SparkSession) -> AbstractContextManager[None]:
    """What is registered in the block can be started by several queries at once.

    A registered source has one map of environment variables in the JVM. Every query that starts puts the same few
    variables into it, on a thread of its own, while others send it to their tasks. Spark makes it a plain HashMap: two
    queries that put at one moment leave it counting more entries than it has, and from then on no task of the source can
    be read ("OptionalDataException").
    """
    context = _context(spark)
    if context is None:  # Spark Connect makes the map on the other side
        return nullcontext()
    shared: Any = cast(Any, context._jvm).java.util.concurrent.ConcurrentHashMap()
    for name, value in context.environment.items():
        shared[name] = value
    return replaced(context, "environment", shared)


# ---- two files that `spark-submit` takes: the package as a zip for the workers, and a main file for the driver

ZIP: Final = "veil.zip"
MAIN: Final = "veil_job.py"

# A file of its own, outside the package: Python puts the directory of a main file first on its path, and there the
# package's `queue.py` would stand in for the standard library's.
_MAIN_TEXT: Final = '''\
"""The main file for spark-submit: the words after it are those after `veil pipeline`, or `autopilot` and its own."""

import sys

try:
    from veil.cli.main import run
except ModuleNotFoundError as missing:
    sys.exit(f"the driver's Python ({sys.executable}) lacks {missing.name}: install veilmq there")

if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(run(words if words[:1] == ["autopilot"] else ["pipeline", *words]))
'''
# The first instant that a zip can tell: the same files make the same bytes.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class Packaged(NamedTuple):
    """The two files."""

    zip: Path
    main: Path


def package(folder: Path) -> Packaged:
    """Write both files into the folder, each whole or not at all; what was there of these names is replaced."""
    place = Storage.at(folder)
    with place.writing(ZIP) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        root = Path(__file__).parents[2]
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                entry = zipfile.ZipInfo(file.relative_to(root.parent).as_posix(), _EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, file.read_bytes())
    place.write(MAIN, _MAIN_TEXT.encode())
    return Packaged(folder / ZIP, folder / MAIN)
