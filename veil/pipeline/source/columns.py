"""The columns of the source, and how messages become Arrow batches of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = """
    message_id string not null,
    body string,
    attributes map<string, struct<data_type: string, string_value: string, binary_value: binary>>,
    system_attributes map<string, string>,
    sent_at timestamp,
    received_at timestamp,
    receive_count int,
    queue string
"""
# With a schema for the bodies, `body` is parsed and its text stands beside it; null where it is not such JSON.
BODY_TEXT: Final = "body_text string"


class Taken(NamedTuple):
    """A message as a row needs it."""

    message_id: str
    body: str
    attributes: Sequence[tuple[str, str, str | None, bytes | None]]  # name, data type, text, bytes
    system: dict[str, str]
    received_ms: int


def schema_of(body_schema: str | None) -> str:
    """The source's columns in Spark's words."""
    if body_schema is None:
        return SCHEMA
    return SCHEMA.replace("body string", f"body struct<{body_schema}>, {BODY_TEXT}", 1)


def to_batch(messages: Sequence[Taken], queue: str, schema: pa.Schema) -> pa.RecordBatch:
    """The messages as one Arrow batch of the schema (that of `schema_of`)."""
    import pyarrow as pa

    bodies = [message.body for message in messages]
    columns: dict[str, Any] = {
        "message_id": pa.array([message.message_id for message in messages], pa.string()),
        "body": _bodies(bodies, schema.field("body").type),
        "attributes": _attributes(messages),
        "system_attributes": _system(messages),
        "sent_at": _instants(_milliseconds(message.system.get("SentTimestamp")) for message in messages),
        "received_at": _instants(message.received_ms for message in messages),
        "receive_count": pa.array(
            [_milliseconds(message.system.get("ApproximateReceiveCount")) for message in messages], pa.int32()
        ),
        "queue": pa.repeat(pa.scalar(queue), len(messages)),
    }
    if "body_text" in schema.names:
        columns["body_text"] = pa.array(bodies, pa.string())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _bodies(bodies: list[str], wanted: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string(wanted):
        return pa.array(bodies, pa.string())
    try:
        return pa.array([_parsed(body) for body in bodies], wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # Somewhere a field has another type than the schema says: those bodies alone become null.
        return pa.chunked_array([_one(_parsed(body), wanted) for body in bodies]).combine_chunks()


def _parsed(body: str) -> Any:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _one(value: Any, wanted: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.array([value], wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None], wanted)


def _attributes(messages: Sequence[Taken]) -> Any:
    import pyarrow as pa

    offsets, names, kinds, texts, raws = (
        [0],
        list[str](),
        list[str](),
        list[str | None](),
        list[bytes | None](),
    )
    for message in messages:
        for name, kind, text, raw in message.attributes:
            names.append(name)
            kinds.append(kind)
            texts.append(text)
            raws.append(raw)
        offsets.append(len(names))
    values = pa.StructArray.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(texts, pa.string()), pa.array(raws, pa.binary())],
        names=["data_type", "string_value", "binary_value"],
    )
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), values)


def _system(messages: Sequence[Taken]) -> Any:
    import pyarrow as pa

    offsets, names, values = [0], list[str](), list[str]()
    for message in messages:
        names.extend(message.system)
        values.extend(message.system.values())
        offsets.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )


def _instants(milliseconds: Any) -> Any:
    import pyarrow as pa

    return pa.array([None if ms is None else ms * 1000 for ms in milliseconds], pa.timestamp("us", tz="UTC"))


def _milliseconds(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
