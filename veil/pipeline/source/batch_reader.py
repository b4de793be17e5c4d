"""The batch readers that Spark talks to: looking at a queue, and reading what `drain` has taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from veil.pipeline.option_error import OptionError
from veil.pipeline.source.arrow_schema import arrow_schema
from veil.pipeline.source.browse import Look, looks_at
from veil.pipeline.source.columns import check_columns
from veil.pipeline.source.drained import Drained
from veil.pipeline.source.open_queue import open_queue
from veil.pipeline.source.options import BROWSE, DRAIN, SourceOptions
from veil.pipeline.source.stream import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_DRAIN_EXPECTED = (
    "the block `with veil.pipeline.drain(spark, queue=…) as messages:`, at whose end they are deleted; a plain read cannot "
    "know when its result is safe"
)


def batch_reader(options: SourceOptions, schema: StructType) -> DataSourceReader:
    """The reader for the mode; raises OptionError where that is not one for a batch."""
    check_columns(schema.names)
    if options.drained is not None:
        return DrainedReader(options, schema)
    if options.mode == BROWSE:
        return BrowseReader(options, schema)
    if options.mode == DRAIN:
        raise OptionError("mode", DRAIN, _DRAIN_EXPECTED)
    raise OptionError("mode", None, f"browse, to look without receiving; or {_DRAIN_EXPECTED}")


class DrainedReader(DataSourceReader):
    """Reads the parts that a block of `drain` holds: the same rows for every action."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        return list(msgspec.json.decode(self._options.drained or "", type=Drained).parts())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):  # Spark's own, where there are none
            return iter(())
        return partition.batches(arrow_schema(self._schema))


class BrowseReader(DataSourceReader):
    """Looks at messages in any state, as they are when the action begins."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._look = Look(options.sent_after_ms, options.sent_before_ms, options.attributes)
        # An attribute of the instance with the base's function behind it: Spark refuses a class that has the method unless
        # `spark.sql.python.filterPushdown.enabled` is set, and calls it only then.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def push(self, filters: list[Filter]) -> list[Filter]:
        """Take over what the server can find out itself; gives back all filters, since Spark may check again for free."""
        for each in filters:
            self._look = self._look.narrowed(each)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        with open_queue(self._options) as client:
            if not client.is_veil():
                raise OptionError(
                    "mode",
                    BROWSE,
                    f"a Veil server: {client.endpoint} cannot show messages without receiving them",
                )
            return list(looks_at(client, self._options, self._look))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return iter(())
        return partition.batches(arrow_schema(self._schema))


class _PushFilters:
    def __init__(self, reader: BrowseReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.push(filters)
