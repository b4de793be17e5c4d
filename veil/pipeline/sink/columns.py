"""The columns of the sink: which there may be, of which types, and where the given rows have them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from veil.pipeline.sink.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

STRING: Final = "string"
WHOLE: Final = ("int", "bigint", "smallint", "tinyint")
PLAIN_ATTRIBUTES: Final = "map<string,string>"
TYPED_ATTRIBUTES: Final = "map<string,struct<data_type:string,string_value:string,binary_value:binary>>"
_OWN: Final = (
    "body",
    "attributes",
    "message_group_id",
    "group",
    "deduplication_id",
    "delay_s",
    "trace_header",
)
# What the source adds: to write on what was read must not need a select.
_OF_THE_SOURCE: Final = (
    "message_id",
    "body_text",
    "system_attributes",
    "sent_at",
    "received_at",
    "receive_count",
    "queue",
)


class ColumnError(ValueError):
    """Names the column, what was found and what was expected."""

    def __init__(self, column: str, found: str, expected: str) -> None:
        super().__init__(f"column {column} ({found}): expected {expected}")
        self.column, self.found, self.expected = column, found, expected

    def __reduce__(self) -> tuple[type[ColumnError], tuple[str, str, str]]:
        # Spark carries errors from one process to another.
        return ColumnError, (self.column, self.found, self.expected)


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The place of each column in the rows; None where it is not there."""

    body: int
    attributes: int | None
    are_typed: bool  # attributes as the source has them, not plain text
    group: int | None
    deduplication: int | None
    delay: int | None
    trace: int | None
    queue: int | None
    key: int | None
    key_name: str | None

    @classmethod
    def find(cls, schema: StructType, options: SinkOptions) -> SinkColumns:
        """Where these rows have what a message needs; raises ColumnError."""
        at = {field.name: place for place, field in enumerate(schema.fields)}
        types = {field.name: _type(field.dataType) for field in schema.fields}

        def place(name: str | None, allowed: tuple[str, ...] = (STRING,)) -> int | None:
            if name is None or name not in at:
                return None
            if types[name] not in allowed:
                expected = " or ".join(allowed)
                if name == "body":
                    expected += ", such as to_json(body)"
                raise ColumnError(name, types[name], expected)
            return at[name]

        named = {
            "queueColumn": options.queue_column,
            "keyColumn": options.key_column,
            "deduplicationColumn": options.deduplication_column,
        }
        for option, name in named.items():
            if name is not None and name not in at:
                raise ColumnError(name, "missing", f"one of {', '.join(at)}, since option {option} names it")
        body = place("body")
        if body is None:
            raise ColumnError("body", "missing", "the text of the message")
        if "group" in at and "message_group_id" in at:
            raise ColumnError("group", types["group"], "either group or message_group_id, not both")
        for name in at:
            if name not in (*_OWN, *_OF_THE_SOURCE, *named.values()):
                near = get_close_matches(name, _OWN, 1)
                hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(_OWN)}; drop it"
                raise ColumnError(name, types[name], f"a column of the sink; {hint}")
        attributes = place("attributes", (PLAIN_ATTRIBUTES, TYPED_ATTRIBUTES))
        return cls(
            body=body,
            attributes=attributes,
            are_typed=attributes is not None and types["attributes"] == TYPED_ATTRIBUTES,
            group=place("group" if "group" in at else "message_group_id"),
            deduplication=place(options.deduplication_column or "deduplication_id", (STRING, *WHOLE)),
            delay=place("delay_s", WHOLE),
            trace=place("trace_header"),
            queue=place(options.queue_column),
            key=None if options.key_column is None else at[options.key_column],
            key_name=options.key_column,
        )


def _type(data_type: DataType) -> str:
    from pyspark.sql.types import StringType

    # A varchar, or text of some collation, is text to a queue.
    return STRING if isinstance(data_type, StringType) else data_type.simpleString()
