"""The columns of the source, and how messages become Arrow batches of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

import msgspec

from veil.client.api import Attribute
from veil.core.text import whole_number
from veil.pipeline.options import OptionError
from veil.pipeline.queues import SourceMessages
from veil.pipeline.sql import ATTRIBUTES

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = f"""
    message_id string not null,
    body string,
    attributes {ATTRIBUTES},
    system_attributes map<string, string>,
    sent_at timestamp,
    received_at timestamp,
    receive_count int,
    queue string
"""
# With a schema for the bodies, `body` is parsed and its text stands beside it; null where it is not such JSON.
_BODY: Final = "body string"
_BODY_TEXT: Final = "body_text string"
# Looking at a queue shows what no receive can: messages in any state.
_BROWSED: Final = ",\n    state string,\n    visible_at timestamp\n"
_NAMES: Final = (
    "message_id", "body", "body_text", "attributes", "system_attributes", "sent_at", "received_at", "receive_count",
    "queue", "state", "visible_at",
)  # fmt: skip


def schema_of(body_schema: str | None, *, browsing: bool = False) -> str:
    """The source's columns in Spark's words."""
    columns = SCHEMA.rstrip() + _BROWSED if browsing else SCHEMA
    if body_schema is None:
        return columns
    return columns.replace(_BODY, f"body struct<{body_schema}>,\n    {_BODY_TEXT}", 1)


def check_columns(names: Sequence[str]) -> None:
    """Raise OptionError where a schema of the user's asks for a column that there is not."""
    for name in names:
        if name not in _NAMES:
            raise OptionError(
                "schema",
                name,
                f"no schema: the columns are {', '.join(_NAMES)}; JSON in bodies is parsed by the option bodySchema",
            )


def to_batch(
    messages: SourceMessages,
    queue: str,
    schema: pa.Schema,
    received_ms: int | Sequence[int],
    more: Mapping[str, pa.Array] | None = None,
) -> pa.RecordBatch:
    """The messages as one Arrow batch of the schema (that of `schema_of`, or some of its columns)."""
    import pyarrow as pa

    count = len(messages.message_id)

    def column(name: str) -> Any:
        if more is not None and name in more:
            return more[name]
        match name:
            case "message_id":
                return pa.array(messages.message_id, pa.string())
            case "body":
                return body_column(messages.body, schema.field("body").type)
            case "body_text":
                return pa.array(messages.body, pa.string())
            case "attributes":
                if messages.attributes is None:
                    return _empty_maps(schema.field(name).type, count)
                return _attributes(messages.attributes)
            case "system_attributes":
                return _system(messages.system, count)
            case "sent_at":
                return _instants(_numbers(messages, "SentTimestamp", pa.int64()))
            case "received_at":
                if isinstance(received_ms, int):
                    return pa.repeat(pa.scalar(received_ms * 1000, pa.timestamp("us", tz="UTC")), count)
                return instants(received_ms)
            case "receive_count":
                return _numbers(messages, "ApproximateReceiveCount", pa.int32())
            case "queue":
                return pa.repeat(pa.scalar(queue), count)
        raise ValueError(f"no column {name}")

    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


def instants(milliseconds: Iterable[int | None]) -> Any:
    """Milliseconds as Spark's timestamps."""
    import pyarrow as pa

    return _instants(pa.array(milliseconds, pa.int64()))


def _instants(milliseconds: Any) -> Any:
    import pyarrow as pa

    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


@lru_cache(maxsize=16)
def _empty_maps(kind: Any, count: int) -> Any:
    import pyarrow as pa

    return pa.array([()] * count, kind)


def _attributes(each: Sequence[Mapping[str, Attribute] | None]) -> Any:
    import pyarrow as pa

    values = [value for own in each if own for value in own.values()]
    offsets = [0, *accumulate(len(own) if own else 0 for own in each)]
    names = [name for own in each if own for name in own]
    parts = [
        pa.array([value.data_type for value in values], pa.string()),
        pa.array([value.string_value for value in values], pa.string()),
        pa.array([value.binary_value for value in values], pa.binary()),
    ]
    structs = pa.StructArray.from_arrays(parts, names=["data_type", "string_value", "binary_value"])
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), structs)


def _system(columns: Mapping[str, Sequence[str | None]], count: int) -> Any:
    """A map for each row, of the columns that are not null there."""
    import numpy as np
    import pyarrow as pa

    values = pa.array([value for row in zip(*columns.values(), strict=True) for value in row], pa.string())
    offsets, names = _full_rows(tuple(columns), count)
    if values.null_count:
        is_there = values.is_valid()
        lengths = is_there.to_numpy(zero_copy_only=False).reshape(count, len(columns)).sum(axis=1)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        names, values = names.filter(is_there), values.filter(is_there)
    return pa.MapArray.from_arrays(offsets, names, values)


@lru_cache(maxsize=16)
def _full_rows(names: tuple[str, ...], count: int) -> tuple[Any, Any]:
    """The offsets and keys of so many maps that all have these names: the same for nearly every piece of a batch."""
    import numpy as np
    import pyarrow as pa

    offsets = pa.array(np.arange(count + 1) * len(names), pa.int32())
    return offsets, pa.array([*names] * count, pa.string())


def _numbers(messages: SourceMessages, name: str, kind: Any) -> Any:
    """Numbers that the service wrote as text; null where it did not, or wrote something else."""
    import pyarrow as pa

    texts = messages.system.get(name) or [None] * len(messages.message_id)
    try:
        return pa.array(texts, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        digits_max = 9 if kind == pa.int32() else 18
        return pa.array([whole_number(text, digits_max) for text in texts], kind)


def body_column(bodies: list[str], wanted: Any) -> Any:
    """An Arrow array of the wanted type; a body that is not JSON by that type becomes null, it alone."""
    import pyarrow as pa

    if pa.types.is_string(wanted):
        return pa.array(bodies, pa.string())
    decode = _decoder(wanted).decode
    has_maps = "map<" in str(wanted)
    values = []
    for body in bodies:
        try:
            value = decode(body)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            value = None  # also where it is nested too deeply in a part that nobody asked for
        values.append(_with_pairs(value, wanted) if has_maps else value)
    try:
        return pa.array(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        # Somewhere a value is beyond what Arrow's type takes (a decimal's digits, a far date): those alone become null.
        return pa.chunked_array([_one(value, wanted) for value in values], wanted).combine_chunks()


@lru_cache(maxsize=64)
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_python_type(wanted))


def _python_type(kind: Any) -> Any:
    """What the JSON of an Arrow type must be; fields may be absent or null, further ones are passed over."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_struct(kind):
        fields = {field.name: _python_type(field.type) | None for field in kind}
        return TypedDict("Body", fields, total=False)  # type: ignore[operator]
    if is_.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]
    if is_.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if is_.is_boolean(kind):
        return bool
    if is_.is_integer(kind):
        return Annotated[
            int, msgspec.Meta(ge=-(1 << (kind.bit_width - 1)), le=(1 << (kind.bit_width - 1)) - 1)
        ]
    if is_.is_floating(kind):
        return float
    if is_.is_decimal(kind):
        return Decimal
    if is_.is_timestamp(kind):
        return datetime.datetime
    if is_.is_date(kind):
        return datetime.date
    if is_.is_binary(kind):
        return bytes
    return str


def _with_pairs(value: Any, kind: Any) -> Any:
    """Arrow takes a map as pairs."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(name, _with_pairs(each, kind.item_type)) for name, each in value.items()]
    if pa.types.is_list(kind):
        return [_with_pairs(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: _with_pairs(value.get(field.name), field.type) for field in kind}
    return value


def _one(value: Any, wanted: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.array([value], wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        return pa.array([None], wanted)
