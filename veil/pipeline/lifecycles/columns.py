"""Columns of events and rows as numpy works on them, and as they pass between tasks and into files.

Instants are whole milliseconds; NONE stands for what is not known; texts that repeat are numbers into a dictionary until they
are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import reading

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NONE: Final = int(np.iinfo(np.int64).min)
NEVER: Final = int(np.iinfo(np.int64).max)
INSTANT: Final = pa.timestamp("us", tz="UTC")
TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_FEW_ROWS: Final = 1_000


def whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def numbers(column: Any) -> Ints:
    """Whole numbers, and instants as milliseconds."""
    array = whole(column)
    is_instant = pa.types.is_timestamp(array.type)
    array = array.cast(pa.int64())
    values: Ints = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    if is_instant:
        values = values // 1000
    return np.where(flags(array.is_valid()), values, NONE) if array.null_count else values


def flags(column: Any) -> Bools:
    found: Bools = whole(column).to_numpy(zero_copy_only=False).astype(bool)
    return found


class Coded(NamedTuple):
    """A column of texts: the number of each, -1 for none, and the texts in alphabetical order."""

    numbers: NDArray[np.int32]
    texts: Any

    @classmethod
    def of(cls, column: Any) -> Coded:
        array = whole(column)
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        texts = array.dictionary
        order = np.array(sorted(range(len(texts)), key=texts.to_pylist().__getitem__), np.int64)
        place = np.full(len(texts) + 1, -1, np.int32)
        place[order] = np.arange(len(texts), dtype=np.int32)
        codes = array.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        return cls(place[codes], texts.take(pa.array(order)))

    @classmethod
    def first_of(cls, cases: Sequence[tuple[str, Bools]], otherwise: str) -> Coded:
        """The name of the first case that holds."""
        names = sorted({name for name, _ in cases} | {otherwise})
        choices = [names.index(name) for name, _ in cases]
        found = np.select([holds for _, holds in cases], choices, names.index(otherwise))
        return cls(found.astype(np.int32), pa.array(names, pa.string()))

    def picked(self, rows: Ints) -> Coded:
        """Of these rows; of -1, none."""
        return Coded(np.where(rows >= 0, self.numbers[rows], np.int32(-1)), self.texts)

    def is_in(self, *words: str) -> Bools:
        # One comparison for each word: to look the numbers up would take ten times as long.
        found = np.zeros(len(self.numbers), bool)
        for number, text in enumerate(self.texts.to_pylist()):
            if text in words:
                found |= self.numbers == number
        return found

    def array(self) -> Any:
        return pa.DictionaryArray.from_arrays(
            pa.array(self.numbers, pa.int32(), mask=self.numbers < 0), self.texts
        )


def picked(values: Ints, rows: Ints) -> Ints:
    """The values of some rows; NONE for -1."""
    return np.where(rows >= 0, values[rows], NONE)


def coalesce(*columns: Ints) -> Ints:
    """Of each row the first value that is known."""
    found = columns[-1]
    for column in reversed(columns[:-1]):
        found = np.where(column != NONE, column, found)
    return found


def distinct(values: Ints) -> Ints:
    """The values that there are, in order."""
    rising = np.sort(values)  # six times as quick as the hash table of `np.unique`
    found: Ints = rising[np.diff(rising, prepend=NONE) != 0]
    return found


def are_among(values: Ints, known: Ints) -> Bools:
    """Of each value whether it is one of those known, which are in order."""
    if not len(known):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Bools = known[at] == values
    return found


def or_never(column: Ints) -> Ints:
    """With what is not known as late as can be, for a minimum."""
    return np.where(column == NONE, NEVER, column)


def or_none(column: Ints) -> Ints:
    """The other way round."""
    return np.where(column == NEVER, NONE, column)


def ms_between(start: Ints, end: Ints) -> Ints:
    """Whole milliseconds from one instant to the other, never negative; NONE where either is not known."""
    return np.where((start == NONE) | (end == NONE), NONE, np.maximum(end - start, 0))


def table_of(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """The columns in the order and with the types of the schema; texts stay in their dictionaries."""
    arrays = []
    for field in schema:
        values = columns[field.name]
        if isinstance(values, Coded):
            arrays.append(values.array())
        elif not isinstance(values, np.ndarray):
            arrays.append(values)
        elif values.dtype == bool:
            arrays.append(pa.array(values))
        else:
            mask = values == NONE
            scale = 1000 if pa.types.is_timestamp(field.type) else 1
            plain = pa.array(np.where(mask, 0, values * scale), pa.int64(), mask=mask)
            arrays.append(plain if field.type == pa.int64() else plain.cast(field.type))
    # Texts are in dictionaries, also where the schema says nothing of it: files have them so, readers see none of it.
    return pa.Table.from_arrays(arrays, names=schema.names)


def packed(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as they pass between tasks."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write(rows)
    found: bytes = out.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def read_rows(tables: Storage, file: str, schema: pa.Schema) -> pa.Table:
    """These columns of a file of the tables, with texts that repeat in dictionaries; null is what an older file lacks."""
    texts = [field.name for field in schema if field.type == pa.string() and field.name != "message_id"]
    with reading(tables, file) as opened:
        parquet = pq.ParquetFile(opened, read_dictionary=texts)
        there = set(parquet.schema_arrow.names)
        found = parquet.read(columns=[name for name in schema.names if name in there])
    for name in schema.names:
        if name not in there:
            found = found.append_column(name, pa.nulls(found.num_rows, schema.field(name).type))
    return found.select(schema.names).replace_schema_metadata(None)


def write_rows(tables: Storage, file: str, rows: pa.Table) -> None:
    # Instants, lengths and keys hardly repeat: differences are shorter than a dictionary, and quicker to write.
    rising = [field.name for field in rows.schema if field.type == INSTANT or field.type == pa.int64()]
    repeating = [
        f"{field.name}.list.element.{leaf}" for field in rows.schema if pa.types.is_list(field.type)
        for leaf in ("bucket", "count")
    ]  # fmt: skip
    repeating += [
        field.name for field in rows.schema if field.type in (TEXT, pa.string(), pa.int32()) and field.name != "message_id"
    ]  # fmt: skip
    with tables.writing(file) as out:
        pq.write_table(
            rows,
            out,
            # zstd takes longer to get ready than a few rows take to be written.
            compression="zstd" if rows.num_rows > _FEW_ROWS else "snappy",
            data_page_version="2.0",
            store_schema=False,
            use_dictionary=repeating,
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        )
