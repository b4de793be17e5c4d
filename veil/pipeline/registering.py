"""Makes `format("veil")` known to a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let the session read and write queues by `format("veil")`; to be called once a session."""
    from veil.pipeline.source.data_source import VeilDataSource

    with _environment_that_may_be_shared(spark):
        spark.dataSource.register(VeilDataSource)


@contextmanager
def _environment_that_may_be_shared(spark: SparkSession) -> Iterator[None]:
    """What is registered in the block can be started by several queries at once.

    A registered source has one map of environment variables in the JVM. Every query that starts puts the same few
    variables into it, on a thread of its own, while others send it to their tasks. Spark makes it a plain HashMap: two
    queries that put at one moment leave it counting more entries than it has, and from then on no task of the source can
    be read ("OptionalDataException").
    """
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has no context, and makes the map on the other side
        yield
        return
    given = context.environment
    shared: Any = cast(Any, context._jvm).java.util.concurrent.ConcurrentHashMap()
    for name, value in given.items():
        shared[name] = value
    context.environment = shared
    try:
        yield
    finally:
        context.environment = given
