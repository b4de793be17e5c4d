"""Packed events become one Parquet segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from pyarrow import parquet as pq

from veil.core.event import NOBODY, Event, ExportPlan, Kind, spread
from veil.journal.frames import Written
from veil.journal.schema import (
    COLUMNS,
    FIRST_KEY,
    JOURNAL_KEY,
    LAST_KEY,
    POSITION_BITS,
    VERSION,
    VERSION_KEY,
    Column,
    segment_name,
)
from veil.journal.storage import Storage

# ---- the schema as pyarrow sees it

TYPES: dict[str, Any] = {
    "text": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "instant": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: Iterable[Column] = COLUMNS) -> Any:
    """The columns as a pyarrow schema."""
    return pa.schema([pa.field(each.name, TYPES[each.kind], each.nullable) for each in columns])


SCHEMA = arrow_schema()


# ---- from packed rows to columns
#
# Column by column and not event by event: the events of a row are turned on their side at once, and names of queues and
# callers are numbers into a dictionary all the way into the file.

_INDEX: Final = pa.int32()
_KINDS: Final = ["", *(Kind(number).label for number in range(1, len(Kind) + 1))]
_KIND, _QUEUE, _TYPE, _CALLER, _OTHER, _TRACE = (
    Event._fields.index(name)
    for name in ("kind", "queue", "message_type", "caller", "other_queue", "traceback")
)
_DEFAULTS: Final = [Event._field_defaults.get(name) for name in Event._fields]
_REQUIRED: Final = len(Event._fields) - len(Event._field_defaults)
# Like core.event.unpack, but without an object for each event.
_decode = msgspec.msgpack.Decoder().decode


class Columns:
    """The columns of the rows put in so far, of one segment; taken out a batch at a time."""

    def __init__(self) -> None:
        self._queues = _Numbered()
        self._callers = _Numbered()
        self._types = _Numbered()
        self.events = 0  # in all
        self._start()

    def _start(self) -> None:
        self._positions: list[int] = []
        self._rules: list[int | None] = []
        self._fields: list[list[Any]] = [[] for _ in Event._fields]

    @property
    def pending(self) -> int:
        """Events that were not taken yet."""
        return len(self._positions)

    def put(self, number: int, packed: bytes) -> None:
        """Add the events of a row; raises ValueError for one that cannot be read."""
        try:
            queues, callers, events, *more = _decode(packed)
            if not events:
                return
            events = [*spread(events)]
            fields = _sideways(events)
            queue_numbers = [self._queues.number((*each,)) for each in queues]
            caller_numbers = [self._callers.number((*each,)) for each in callers or (NOBODY,)]
            fields[_QUEUE] = tuple([queue_numbers[each] for each in fields[_QUEUE]])
            fields[_CALLER] = tuple([caller_numbers[each] for each in fields[_CALLER]])
            others = fields[_OTHER]
            fields[_OTHER] = tuple([None if each is None else queue_numbers[each] for each in others])
            if not 1 <= min(fields[_KIND]) <= max(fields[_KIND]) < len(_KINDS):
                raise ValueError(f"kinds {min(fields[_KIND])} to {max(fields[_KIND])}")
            number_of_type = self._types.number
            fields[_TYPE] = tuple([None if each is None else number_of_type(each) for each in fields[_TYPE]])
            rule, traces = more[0] if more else None, more[1] if len(more) > 1 else ()
            if traces:
                kept = fields[_TRACE]
                fields[_TRACE] = tuple([traces[each] if isinstance(each, int) else each for each in kept])
        except (msgspec.DecodeError, ValueError, TypeError, IndexError) as problem:
            raise ValueError(f"outbox row {number} cannot be read: {problem}") from None
        if len(events) > 1 << POSITION_BITS:
            raise ValueError(f"outbox row {number} cannot be read: {len(events)} events are too many")
        start = number << POSITION_BITS
        self._positions.extend(range(start, start + len(events)))
        self._rules += [rule] * len(events)
        self.events += len(events)
        for column, values in zip(self._fields, fields, strict=True):
            column.extend(values)

    def take(self) -> Any:
        """What was put in since the last time, as a pyarrow table."""
        field = dict(zip(Event._fields, self._fields, strict=True))
        regions, accounts, names = self._queues.parts(3)
        _, keys, agents, addresses = self._callers.parts(4)
        queue_index, other_index = pa.array(field["queue"], _INDEX), pa.array(field["other_queue"], _INDEX)
        caller_index = pa.array(field["caller"], _INDEX)
        arrays = {
            "position": pa.array(self._positions, pa.int64()),
            "kind": _named(pa.array(field["kind"], _INDEX), _KINDS),
            # Empty for what is of no queue.
            "region": _named(queue_index, regions, empty="kept"),
            "account": _named(queue_index, accounts, empty="kept"),
            "queue": _named(queue_index, names, empty="kept"),
            "message_id": pa.array(field["message_id"], pa.string()),
            "message_type": _named(pa.array(field["message_type"], _INDEX), self._types.parts(1)[0]),
            "other_queue": _named(other_index, names),
            "caller_key": _named(caller_index, keys),
            "caller_address": _named(caller_index, addresses),
            "user_agent": _named(caller_index, agents),
            "rule": pa.array(self._rules, pa.int32()),
        }
        for name, kind, *_ in COLUMNS:
            if kind == "instant":
                # By way of milliseconds, which is what they are.
                instants = pa.array(field[f"{name}_ms"], pa.int64())
                arrays[name] = instants.cast(pa.timestamp("ms", tz="UTC")).cast(TYPES[kind])
            elif name not in arrays:
                arrays[name] = pa.array(field[name], TYPES[kind])
                if kind == "text":
                    # Few differ: the same error, with the same traceback, ends many attempts.
                    arrays[name] = arrays[name].dictionary_encode()
        self._start()
        # Dictionaries in place of texts.
        fields = [pa.field(each.name, arrays[each.name].type, each.nullable) for each in SCHEMA]
        return pa.Table.from_arrays([arrays[each.name] for each in SCHEMA], schema=pa.schema(fields))


def _sideways(events: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The events' fields, each with its values of all events; fields at the end that have their defaults may be left out."""
    widths = {len(event) for event in events}
    if len(widths) > 1:
        events = [[*event, *_DEFAULTS[len(event) :]] for event in events]
    fields: list[Sequence[Any]] = list(zip(*events, strict=True))
    missing = [(default,) * len(events) for default in _DEFAULTS[len(fields) :]]
    if len(fields) > len(_DEFAULTS) or min(widths) < _REQUIRED:
        raise ValueError(f"events of {min(widths)} to {max(widths)} fields")
    return fields + missing


class _Numbered:
    """Values, each with the number under which it was first seen."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def parts(self, width: int) -> list[list[Any]]:
        """The values in order, member by member."""
        if width == 1:
            return [list(self._numbers)]
        return [list(part) for part in zip(*self._numbers, strict=True)] or [[] for _ in range(width)]


def _named(index: Any, names: list[Any], *, empty: Literal["null", "kept"] = "null") -> Any:
    """The names behind the numbers; an empty one is null unless it is to be kept."""
    places: dict[Any, int] = {}
    keeps = empty == "kept"
    place_of = [places.setdefault(name, len(places)) if name or keeps else None for name in names]
    # pyarrow does not unify dictionaries that hold a null, so what is null must be so in the numbers.
    return pa.DictionaryArray.from_arrays(
        pa.array(place_of, _INDEX).take(index), pa.array(list(places), pa.string())
    )


# ---- writing a segment

EVENTS_AT_ONCE: Final = 32_768  # what is held as Python objects; a hundred bytes and more for each
_ROW_GROUP_EVENTS: Final = 2**18
# Ids of messages hardly repeat; instants, positions and order keys rise, and differences are shorter than numbers.
_RISING: Final = ("position", "at", "seq", "deadline", "other_seq")
_IN_DICTIONARIES: Final = [each.name for each in SCHEMA if each.name not in (*_RISING, "message_id")]


def write_segment(place: Storage, plan: ExportPlan, rows: Iterable[tuple[int, bytes]]) -> Written:
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
        size = file.tell()
    return Written(name, columns.events, size, unreadable)


def _writer(file: Any, plan: ExportPlan) -> Any:
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
