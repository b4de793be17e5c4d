"""The format `veil` as Spark knows it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from veil.pipeline.source.columns import schema_of
from veil.pipeline.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class VeilDataSource(DataSource):
    """`spark.readStream.format("veil")`, and what else Spark can do with a queue."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "veil"

    def schema(self) -> str:
        return schema_of(SourceOptions.read(self.options).body_schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from veil.pipeline.source.stream_reader import QueueStreamReader

        return QueueStreamReader(SourceOptions.read(self.options), schema)
