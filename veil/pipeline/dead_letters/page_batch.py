"""A page of messages as one Arrow batch of the columns PEEKED."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from veil.core.numbers import whole_number
from veil.pipeline.dead_letters.calls import Peeked
from veil.pipeline.queues.own_actions import Value

if TYPE_CHECKING:
    import pyarrow as pa


def to_batch(
    messages: Sequence[Peeked], queue: str, body_chars_max: int | None, schema: pa.Schema
) -> pa.RecordBatch:
    """The messages as rows; bodies cut to so many characters, if a number is given."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "queue": [queue] * len(messages),
        "message_id": [message.message_id for message in messages],
        "seq": [int(message.sequence_number) for message in messages],
        "state": [message.state for message in messages],
        "sent_at": [_micros(message.attributes.get("SentTimestamp")) for message in messages],
        "receive_count": [
            whole_number(message.attributes.get("ApproximateReceiveCount"), 9) for message in messages
        ],
        "body_bytes": [_bytes(message.body) for message in messages],
        "body": [message.body[:body_chars_max] for message in messages],
        "attributes": [_attributes(message.message_attributes or {}) for message in messages],
        "system_attributes": [list(message.attributes.items()) for message in messages],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _attributes(attributes: Mapping[str, Value]) -> list[tuple[str, dict[str, str | bytes | None]]]:
    return [
        (
            name,
            {
                "data_type": value.data_type,
                "string_value": value.string_value,
                "binary_value": value.binary_value,
            },
        )
        for name, value in attributes.items()
    ]


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _micros(text: str | None) -> int | None:
    number = whole_number(text, 15)
    return None if number is None else number * 1_000
