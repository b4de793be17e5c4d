"""The options of the sink, and the columns that rows may have: checked together at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from veil.journal.storage import Storage
from veil.pipeline.options import OptionError, OptionValues
from veil.pipeline.queues import CALLS_AT_ONCE, RETRY_S, QueueAddress
from veil.pipeline.sql import ATTRIBUTES

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

FAIL, PATH = "fail", "path"
_CALLS_MAX: Final = 64  # the connections of a client
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What one query or write was asked for."""

    queue: str | None  # None: each row names its own
    queue_column: str | None
    service: QueueAddress  # for whoever asks for the queue itself later
    error_path: str | None  # None: a row that cannot be sent fails the job
    key_column: str | None
    deduplication_column: str | None
    calls_at_once: int  # of each task
    retry_s: float
    write_id: str | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SinkOptions:
        """The options as Spark hands them over; raises OptionError."""
        values = OptionValues(given)
        queue, error_path = values.text("queue"), values.text("errorPath")
        on_error = values.choice("onError", FAIL if error_path is None else PATH, (FAIL, PATH))
        options = cls(
            queue=queue,
            queue_column=values.text("queueColumn"),
            service=QueueAddress(queue or "", *map(values.text, ("endpoint", "region", "profile"))),
            error_path=error_path,
            key_column=values.text("keyColumn"),
            deduplication_column=values.text("deduplicationColumn"),
            calls_at_once=values.whole("maxInFlight", CALLS_AT_ONCE, 1, _CALLS_MAX),
            retry_s=values.number("patience", RETRY_S, 0, 3600),
            write_id=values.text("writeId"),
        )
        values.check_all_known()
        if (options.queue is None) == (options.queue_column is None):
            raise OptionError(
                "queue",
                options.queue,
                "the name, URL or ARN of a queue, or else queueColumn, the column that has it: one of the two",
            )
        if (on_error == PATH) != (error_path is not None):
            raise OptionError(
                "errorPath",
                error_path,
                "a directory (path or URI) with onError=path, and none with onError=fail",
            )
        if error_path is not None:
            try:
                Storage.at(error_path)
            except ValueError as expected:
                raise OptionError("errorPath", error_path, str(expected)) from None
        if options.write_id is not None and not _WRITE_ID.fullmatch(options.write_id):
            expected_id = "1 to 80 letters, digits, dots, hyphens and underscores"
            raise OptionError("writeId", options.write_id, expected_id)
        return options


STRING: Final = "string"
WHOLE: Final = ("int", "bigint", "smallint", "tinyint")
PLAIN_ATTRIBUTES: Final = "map<string,string>"
TYPED_ATTRIBUTES: Final = ATTRIBUTES.replace(", ", ",").replace(": ", ":")  # as Spark writes it
_OWN: Final = (
    "body", "attributes", "message_group_id", "group", "deduplication_id", "delay_s", "trace_header",
)  # fmt: skip
# What the source adds: to write on what was read must not need a select.
_OF_THE_SOURCE: Final = (
    "message_id", "body_text", "system_attributes", "sent_at", "received_at", "receive_count", "queue",
)  # fmt: skip


class ColumnError(ValueError):
    """Names the column, what was found and what was expected."""

    def __init__(self, column: str, found: str, expected: str) -> None:
        super().__init__(column, found, expected)  # see OptionError
        self.column, self.found, self.expected = column, found, expected

    def __str__(self) -> str:
        return f"column {self.column} ({self.found}): expected {self.expected}"


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The index of each column in the rows; None where it is not there."""

    body: int
    attributes: int | None
    are_typed: bool  # attributes as the source has them, not plain text
    group: int | None
    deduplication: int | None
    delay: int | None
    trace: int | None
    queue: int | None
    key: int | None

    @classmethod
    def find(cls, schema: StructType, options: SinkOptions) -> SinkColumns:
        """Where these rows have what a message needs; raises ColumnError."""
        at = {field.name: index for index, field in enumerate(schema.fields)}
        types = {field.name: _type(field.dataType) for field in schema.fields}

        def index_of(name: str | None, allowed: tuple[str, ...] = (STRING,)) -> int | None:
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
        body = index_of("body")
        if body is None:
            raise ColumnError("body", "missing", "the text of the message")
        if "group" in at and "message_group_id" in at:
            raise ColumnError("group", types["group"], "either group or message_group_id, not both")
        for name in at:
            if name not in (*_OWN, *_OF_THE_SOURCE, *named.values()):
                near = get_close_matches(name, _OWN, 1)
                hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(_OWN)}; drop it"
                raise ColumnError(name, types[name], f"a column of the sink; {hint}")
        attributes = index_of("attributes", (PLAIN_ATTRIBUTES, TYPED_ATTRIBUTES))
        return cls(
            body=body,
            attributes=attributes,
            are_typed=attributes is not None and types["attributes"] == TYPED_ATTRIBUTES,
            group=index_of("group" if "group" in at else "message_group_id"),
            deduplication=index_of(options.deduplication_column or "deduplication_id", (STRING, *WHOLE)),
            delay=index_of("delay_s", WHOLE),
            trace=index_of("trace_header"),
            queue=index_of(options.queue_column),
            key=None if options.key_column is None else at[options.key_column],
        )


def _type(data_type: DataType) -> str:
    from pyspark.sql.types import StringType

    # A varchar, or text of some collation, is text to a queue.
    return STRING if isinstance(data_type, StringType) else data_type.simpleString()
