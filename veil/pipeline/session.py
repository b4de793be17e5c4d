"""The Spark session of a command: started here with sensible settings, or the one that is given.

Under `spark-submit`, in a notebook and in tests there is a Spark already; then it is used, and nothing of it is changed:
the pipeline takes a session of its own on it, with the two settings that its results depend on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from veil.core.errors import VeilError
from veil.pipeline.spark_settings import MEANING, SessionRefused, SparkSettings, read_conf
from veil.pipeline.spark_start import SessionFailed, StartedSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SessionFailed",
    "SessionRefused",
    "SparkMissing",
    "SparkSettings",
    "close_session",
    "has_died",
    "is_given",
    "log_of",
    "open_session",
    "read_conf",
    "session",
    "ui_address",
]

MISSING: Final = 'the pipeline needs Spark: pip install "veilmq[spark]"'

_started: StartedSpark | None = None  # a process has one Spark at a time, by Spark's own rule


class SparkMissing(VeilError):
    """PySpark is not installed."""

    def __init__(self) -> None:
        super().__init__(MISSING)


@contextmanager
def session(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A session to work in; a Spark that was started for it ends with it, one that was given stays."""
    spark = open_session(settings)
    try:
        yield spark
    except Exception:
        close_session(spark, keep_log=True)
        raise
    except BaseException:
        close_session(spark)
        raise
    close_session(spark)


def open_session(settings: SparkSettings | None = None) -> SparkSession:
    """A session on the Spark that is given, or on one that is started now; `close_session` ends it.

    Raises SparkMissing, JavaMissing, SessionRefused or SessionFailed, each with one line for the person.
    """
    global _started
    settings = settings or SparkSettings()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissing from None
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
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        return True
    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None


def close_session(spark: SparkSession, *, keep_log: bool = False) -> None:
    """End the Spark that `open_session` started; one that was given is left as it is."""
    global _started
    if _started is not None and _started.session is spark:
        started, _started = _started, None
        started.end(keep_log=keep_log)


def log_of(spark: SparkSession) -> Path | None:
    """The file with what this Spark says, where it was started here; `close_session` removes it unless told to keep it."""
    return _started.log if _started is not None and _started.session is spark else None


def has_died(spark: SparkSession) -> bool:
    """Whether the Spark that was started here is gone without having been told to."""
    return _started is not None and _started.session is spark and _started.has_died


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
    for name, value in MEANING.items():
        own.conf.set(name, value)
    return own
