"""The format `veil` as Spark knows it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from veil.pipeline.source.columns import schema_of
from veil.pipeline.source.options import BROWSE, SourceOptions

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
        options = SourceOptions.read(self.options)
        return schema_of(options.body_schema, browsing=options.mode == BROWSE)

    def reader(self, schema: StructType) -> DataSourceReader:
        from veil.pipeline.source.readers import batch_reader

        return batch_reader(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from veil.pipeline.source.readers import QueueStreamReader

        return QueueStreamReader(SourceOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from veil.pipeline.sink.options import SinkOptions
        from veil.pipeline.sink.writers import QueueWriter

        return QueueWriter(SinkOptions.read(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from veil.pipeline.sink.options import SinkOptions
        from veil.pipeline.sink.writers import QueueStreamWriter

        return QueueStreamWriter(SinkOptions.read(self.options), schema, overwrite)
