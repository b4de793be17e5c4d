"""Makes `format("veil")` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let the session read and write queues by `format("veil")`; to be called once a session."""
    from veil.pipeline.source.data_source import VeilDataSource

    spark.dataSource.register(VeilDataSource)
