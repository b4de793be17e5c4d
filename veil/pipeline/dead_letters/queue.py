"""The queue of dead letters through Veil's own actions: read without receiving, side by side on executors, and redriven.

Executors look at their parts page by page, and leave them as Parquet. Whoever asks further questions asks the Parquet: what
was seen once is not looked at again, and no process holds more than a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from veil.client.api import ApiError, Failure
from veil.core.errors import VeilError
from veil.core.numbers import whole_number
from veil.pipeline.dead_letters.letters import PEEKED
from veil.pipeline.queues.client import AttributeValue, QueueAddress, QueueClient
from veil.pipeline.spark.workers import check_workers, this_python
from veil.pipeline.sql import arrow_schema, struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from veil.journal.place import Place


class DeadLettersRefused(VeilError):
    """What was asked cannot be done: the line says which option or queue, and what was expected."""


class NotVeil(DeadLettersRefused):
    """The service has none of Veil's own actions."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"{endpoint} is not a Veil server: dead letters are looked at without receiving, and redriven in one "
            "transaction each, by actions that only Veil has; elsewhere use: veil dlq redrive"
        )
        self.endpoint = endpoint


PAGE_MAX: Final = 1_000
ENTRIES_MAX: Final = 1_000
# Half of what a server takes in one request unless it is told otherwise, as JSON.
REQUEST_BYTES_MAX: Final = 4 << 20
_REDRIVE_TIMEOUT_S: Final = 120.0


class Peeked(msgspec.Struct, rename="pascal"):
    """A message that was looked at."""

    message_id: str
    body: str
    state: str
    sequence_number: str
    attributes: dict[str, str] = {}
    message_attributes: dict[str, AttributeValue] | None = None


class Page(msgspec.Struct, rename="pascal"):
    """Some messages, oldest first, and how to go on."""

    messages: list[Peeked] | None = None
    next_token: str | None = None


class Moved(msgspec.Struct, rename="pascal"):
    """An entry that was redriven: it is another message now."""

    id: str
    new_message_id: str = ""


class Left(msgspec.Struct, rename="pascal"):
    """An entry that was not, and why."""

    id: str
    code: str = ""
    message: str | None = None


class Redriven(msgspec.Struct, rename="pascal"):
    """What became of each entry of a call."""

    successful: list[Moved] | None = None
    failed: list[Left] | None = None


def opened(where: QueueAddress, queue: str) -> DeadLetterQueue:
    """The queue of that name at the service, open; raises NotVeil, and ApiError where there is no such queue."""
    found = DeadLetterQueue(replace(where, queue=queue), user_agent="pipeline dead-letters")
    try:
        found.peek(1)
    except ApiError as error:
        found.close()
        # The queue is there, yet the service will not let it be looked at: it does not know how.
        raise (NotVeil(found.endpoint) if error.failure is Failure.REFUSED else error) from None
    except BaseException:
        found.close()
        raise
    return found


class DeadLetterQueue(QueueClient):
    """A queue of dead letters that is open."""

    def __enter__(self) -> DeadLetterQueue:
        return self

    def url_of(self, queue: str) -> str:
        """The URL of another queue of the same service, by name, ARN or URL."""
        return self._loop.run(self._client.queue_url(queue))

    def peek(
        self, count: int, *, token: str | None = None, after: int | None = None, up_to: int | None = None
    ) -> Page:
        """A page of messages in whatever state, by rising `seq`: from the token on, or after the one `seq`, up to the other.

        `up_to` is included, `after` is not, so that ranges lie side by side. The server's limits by time (SentAfter,
        SentBefore) are not used here: both are included, and two ranges by time would share the messages of an instant.
        """
        given: dict[str, Any] = {"MaxResults": count}
        if token is not None:
            given["NextToken"] = token
        elif after is not None:
            given["After"] = str(after)
        if up_to is not None:
            given["UpTo"] = str(up_to)
        return self.own("PeekMessages", given, Page)

    def redrive(self, entries: list[dict[str, Any]]) -> Redriven:
        """Take the entries out of the dead letters, all in one transaction; each that cannot be moved fails alone.

        Asked once. Where no answer came (ApiError UNREACHABLE) nobody knows whether it was done: repeated, the call finds
        what it had moved gone, and moves nothing twice.
        """
        given = {"QueueUrl": self.url, "Entries": entries, "MarkRedriven": True}
        return self._loop.run(
            self._client.ask(
                "Veil.RedriveMessages", given, Redriven, repeatable=False, timeout_s=_REDRIVE_TIMEOUT_S
            )
        )


# Fewer messages than this are read sooner than they are divided.
WORTH_DIVIDING: Final = 20_000
PARTS_MAX: Final = 32
_SEQ_MAX: Final = (1 << 63) - 1
_SECOND: Final = 1_000 << 20  # of `seq`, whose upper bits are milliseconds
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class SeqRange(NamedTuple):
    """The messages of a queue after the one `seq` and up to the other; None leaves an end open."""

    queue: str
    after: int | None
    up_to: int | None


def divided(queue: DeadLetterQueue, name: str) -> list[SeqRange]:
    """The queue in as many parts as its messages are worth; in one where the server cannot begin in the middle."""
    counts = queue.attributes()
    parts = min(PARTS_MAX, sum(int(counts.get(each, "0")) for each in _COUNTS) // WORTH_DIVIDING)
    first = _next(queue, None)
    # A server that passes over `After` would give the first message here too.
    if parts < 2 or first is None or _next(queue, _SEQ_MAX) is not None:
        return [SeqRange(name, None, None)]
    step = max(1, -(-(_last(queue, first) - first) // parts))
    edges = [first + step * number for number in range(1, parts)]
    return [SeqRange(name, after, up_to) for after, up_to in zip([None, *edges], [*edges, None], strict=True)]


def _next(queue: DeadLetterQueue, after: int | None) -> int | None:
    found = queue.peek(1, after=after).messages
    return int(found[0].sequence_number) if found else None


def _last(queue: DeadLetterQueue, first: int) -> int:
    """Where the queue ends, to a hundredth of its length: found by halving, since it is looked at from its beginning."""
    low, length = first, _SECOND
    while (found := _next(queue, low + length)) is not None:
        low, length = found, 4 * length
    high = low + length
    while high - low > max(_SECOND, (high - first) // 100):
        middle = (low + high) // 2
        found = _next(queue, middle)
        if found is None:
            high = middle
        else:
            low = found
    return high


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


def _attributes(attributes: Mapping[str, AttributeValue]) -> list[tuple[str, dict[str, str | bytes | None]]]:
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


@contextmanager
def peeked(
    spark: SparkSession,
    where: QueueAddress,
    queues: Sequence[str],
    tables: Place,
    *,
    body_chars_max: int | None = None,
) -> Iterator[DataFrame]:
    """The messages of the queues (PEEKED), for the block: their bodies whole, or their first characters.

    Not one instant: a message that comes or goes while this reads is in it or not. Each is in it once.
    """
    folder = f"_dead-letters-{uuid4().hex[:12]}"
    parts: list[SeqRange] = []
    check_workers(spark)
    for queue in queues:
        with DeadLetterQueue(replace(where, queue=queue), user_agent="pipeline dead-letters") as opened:
            parts += divided(opened, queue)
    try:
        numbers = spark.range(0, len(parts), 1, len(parts))
        columns = struct_of(PEEKED)
        with this_python(spark):
            rows = numbers.mapInArrow(_Reader(where, parts, body_chars_max, arrow_schema(columns)), columns)
        rows.write.parquet(tables.spark_path(folder))
        yield spark.read.schema(columns).parquet(tables.spark_path(folder))
    finally:
        tables.remove_folder(folder)


class _Reader:
    """Reads the parts of the numbers it is given, on an executor."""

    def __init__(
        self, where: QueueAddress, parts: Sequence[SeqRange], body_chars_max: int | None, schema: pa.Schema
    ) -> None:
        self._where, self._parts, self._body_chars_max = where, parts, body_chars_max
        self._schema = schema  # made by the driver: only there can Spark read columns that are written out

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(self._parts[number])

    def _read(self, part: SeqRange) -> Iterator[pa.RecordBatch]:
        with DeadLetterQueue(
            replace(self._where, queue=part.queue), user_agent="pipeline dead-letters"
        ) as queue:
            token: str | None = None
            while True:
                page = queue.peek(PAGE_MAX, token=token, after=part.after, up_to=part.up_to)
                if page.messages:
                    yield to_batch(page.messages, part.queue, self._body_chars_max, self._schema)
                token = page.next_token
                if token is None:
                    return
