"""One Parquet segment from the rows of a plan: the same rows always make the same events under the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import parquet as pq

from veil.journal.arrow import SCHEMA
from veil.journal.columns import Columns
from veil.journal.outbox import Plan
from veil.journal.place import Place
from veil.journal.schema import FIRST_KEY, JOURNAL_KEY, LAST_KEY, VERSION, VERSION_KEY
from veil.journal.segments import segment_name

EVENTS_AT_ONCE: Final = 32_768  # what is held as Python objects; a hundred bytes and more for each
_ROW_GROUP_EVENTS: Final = 2**18
# Ids of messages hardly repeat; instants, positions and order keys rise, and differences are shorter than numbers.
_RISING: Final = ("position", "at", "seq", "deadline", "other_seq")
_IN_DICTIONARIES: Final = [each.name for each in SCHEMA if each.name not in (*_RISING, "message_id")]


class Written(NamedTuple):
    """What a segment came to."""

    name: str
    events: int
    size: int
    unreadable: list[str]  # rows that were passed over, with the reason


def write_segment(
    place: Place,
    plan: Plan,
    rows: Iterable[tuple[int, bytes]],
    on_step: Callable[[str], None] = lambda step: None,
) -> Written:
    """Write the events of the rows, which come by rising number; the file appears whole, or an exception says why not."""
    name = segment_name(plan.day, plan.journal_id, plan.first, plan.last)
    columns, unreadable = Columns(), list[str]()
    with place.writing(name) as file:
        with _writer(file, plan) as writer:
            tables: list[Any] = []
            for number, packed in rows:
                try:
                    columns.put(number, packed)
                except ValueError as problem:
                    # It will not get better: better one row missing, and said so, than every one after it.
                    unreadable.append(str(problem))
                if columns.pending >= EVENTS_AT_ONCE:
                    tables.append(columns.take())
                    if sum(map(len, tables)) >= _ROW_GROUP_EVENTS:
                        _write_group(writer, tables)
            tables.append(columns.take())
            _write_group(writer, tables)
            on_step("writing")
        size = file.tell()
        on_step("written")
    on_step("appeared")
    return Written(name, columns.events, size, unreadable)


def _writer(file: Any, plan: Plan) -> Any:
    writer = pq.ParquetWriter(
        file,
        Columns().take().schema,
        compression="zstd",
        use_dictionary=_IN_DICTIONARIES,
        column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
        # Readers shall see texts; that they were in dictionaries here is no business of theirs.
        store_schema=False,
    )
    writer.add_key_value_metadata(
        {
            VERSION_KEY: str(VERSION),
            JOURNAL_KEY: plan.journal_id,
            FIRST_KEY: str(plan.first),
            LAST_KEY: str(plan.last),
        }
    )
    return writer


def _write_group(writer: Any, tables: list[Any]) -> None:
    table = pa.concat_tables(tables).unify_dictionaries()
    tables.clear()
    if table.num_rows:
        writer.write_table(table, row_group_size=_ROW_GROUP_EVENTS + EVENTS_AT_ONCE * 2)
