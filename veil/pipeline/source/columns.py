"""The columns of the source, and how messages become Arrow batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from veil.consumer.message import Attribute
from veil.core.numbers import whole_number
from veil.pipeline.option_error import OptionError
from veil.pipeline.queues.own_actions import Value
from veil.pipeline.source.body_column import body_column

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
_BODY: Final = "body string"
_BODY_TEXT: Final = "body_text string"
# Looking at a queue shows what no receive can: messages in any state.
_BROWSED: Final = ",\n    state string,\n    visible_at timestamp\n"
_NAMES: Final = (
    "message_id", "body", "body_text", "attributes", "system_attributes", "sent_at", "received_at", "receive_count",
    "queue", "state", "visible_at",
)  # fmt: skip


class RowMessage(Protocol):
    """A message as a row needs it; `system` are the attributes that the service itself set."""

    @property
    def message_id(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Attribute] | Mapping[str, Value]: ...
    @property
    def system(self) -> Mapping[str, str]: ...


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
    messages: Sequence[RowMessage],
    queue: str,
    schema: pa.Schema,
    received_ms: int | Sequence[int],
    more: Mapping[str, pa.Array] | None = None,
) -> pa.RecordBatch:
    """The messages as one Arrow batch of the schema (that of `schema_of`, or some of its columns)."""
    import pyarrow as pa

    def column(name: str) -> Any:
        if more is not None and name in more:
            return more[name]
        match name:
            case "message_id":
                return pa.array([message.message_id for message in messages], pa.string())
            case "body":
                return body_column([message.body for message in messages], schema.field("body").type)
            case "body_text":
                return pa.array([message.body for message in messages], pa.string())
            case "attributes":
                return _attributes(messages)
            case "system_attributes":
                return _system(messages)
            case "sent_at":
                return _instants(_numbers(messages, "SentTimestamp", pa.int64()))
            case "received_at":
                if isinstance(received_ms, int):
                    return pa.repeat(
                        pa.scalar(received_ms * 1000, pa.timestamp("us", tz="UTC")), len(messages)
                    )
                return instants(received_ms)
            case "receive_count":
                return _numbers(messages, "ApproximateReceiveCount", pa.int32())
            case "queue":
                return pa.repeat(pa.scalar(queue), len(messages))
        raise ValueError(f"no column {name}")

    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


def instants(milliseconds: Iterable[int | None]) -> Any:
    """Milliseconds as Spark's timestamps."""
    import pyarrow as pa

    return _instants(pa.array(milliseconds, pa.int64()))


def _instants(milliseconds: Any) -> Any:
    import pyarrow as pa

    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _attributes(messages: Sequence[RowMessage]) -> Any:
    import pyarrow as pa

    offsets, names, kinds = [0], list[str](), list[str]()
    texts, raws = list[str | None](), list[bytes | None]()
    for message in messages:
        if message.attributes:
            for name, value in message.attributes.items():
                names.append(name)
                kinds.append(value.data_type)
                if isinstance(value, Value):
                    texts.append(value.string_value)
                    raws.append(value.binary_value)
                else:
                    texts.append(value.value if isinstance(value.value, str) else None)
                    raws.append(value.value if isinstance(value.value, bytes) else None)
        offsets.append(len(names))
    values = pa.StructArray.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(texts, pa.string()), pa.array(raws, pa.binary())],
        names=["data_type", "string_value", "binary_value"],
    )
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), values)


def _system(messages: Sequence[RowMessage]) -> Any:
    import pyarrow as pa

    each = [message.system for message in messages]
    offsets = [0, *accumulate(map(len, each))]
    names = pa.array(list(chain.from_iterable(each)), pa.string())
    values = pa.array([value for system in each for value in system.values()], pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)


def _numbers(messages: Sequence[RowMessage], name: str, kind: Any) -> Any:
    """Numbers that the service wrote as text; null where it did not, or wrote something else."""
    import pyarrow as pa

    texts = [message.system.get(name) for message in messages]
    try:
        return pa.array(texts, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        digits_max = 9 if kind == pa.int32() else 18
        return pa.array([whole_number(text, digits_max) for text in texts], kind)
