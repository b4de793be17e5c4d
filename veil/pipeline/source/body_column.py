"""Bodies as a column: their text, or what their JSON says by a given schema."""

from __future__ import annotations

import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, TypedDict

import msgspec


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
        except (msgspec.DecodeError, UnicodeEncodeError):
            value = None
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
