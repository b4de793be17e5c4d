"""The queue of dead letters through Veil's own actions: read without receiving, side by side on executors, and redriven.

Executors look at their parts page by page, and leave them as Parquet. Whoever asks further questions asks the Parquet: what
was seen once is not looked at again, and no process holds more than a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from veil.client.api import ApiError, Failure
from veil.core.errors import VeilError
from veil.pipeline.queues import PeekedMessage, QueueAddress, QueueClient
from veil.pipeline.source.columns import to_batch
from veil.pipeline.spark.workers import check_workers, this_python
from veil.pipeline.sql import ATTRIBUTES, arrow_schema, struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from veil.journal.storage import Storage


# What a look at the queue gives. `seq` is the message's place in its queue, which names it together with its id.
PEEKED: Final = f"""
    queue             string not null,
    message_id        string not null,
    seq               bigint not null,
    state             string not null,
    sent_at           timestamp,
    receive_count     int,
    body_bytes        int not null,
    body              string,
    attributes        {ATTRIBUTES} not null,
    system_attributes map<string, string> not null
"""


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


class RefusedEntry(msgspec.Struct, rename="pascal"):
    """An entry that was not redriven, and why."""

    id: str
    code: str = ""
    message: str | None = None


class RedriveAnswer(msgspec.Struct, rename="pascal"):
    """What became of each entry of a call."""

    successful: list[msgspec.Raw] | None = None  # other messages now, of which nobody here asks the id
    failed: list[RefusedEntry] | None = None


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

    def redrive(self, entries: list[dict[str, Any]]) -> RedriveAnswer:
        """Take the entries out of the dead letters, all in one transaction; each that cannot be moved fails alone.

        Asked once. Where no answer came (ApiError UNREACHABLE) nobody knows whether it was done: repeated, the call finds
        what it had moved gone, and moves nothing twice.
        """
        given = {"QueueUrl": self.url, "Entries": entries, "MarkRedriven": True}
        return self._loop.run(
            self._client.ask(
                "Veil.RedriveMessages", given, RedriveAnswer, repeatable=False, timeout_s=_REDRIVE_TIMEOUT_S
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


def _to_batch(
    messages: Sequence[PeekedMessage], queue: str, body_chars_max: int | None, schema: pa.Schema
) -> pa.RecordBatch:
    """The messages as rows of PEEKED; bodies cut to so many characters, if a number is given."""
    import pyarrow as pa

    more = {
        "seq": pa.array([int(message.sequence_number) for message in messages], pa.int64()),
        "state": pa.array([message.state for message in messages], pa.string()),
        "body_bytes": pa.array([len(message.body.encode()) for message in messages], pa.int32()),
        "body": pa.array([message.body[:body_chars_max] for message in messages], pa.string()),
    }
    return to_batch(messages, queue, schema, 0, more)


@contextmanager
def peeked(
    spark: SparkSession,
    where: QueueAddress,
    queues: Sequence[str],
    tables: Storage,
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


def parquet_in(place: Storage, folder: str) -> tuple[str, ...]:
    """The files that Spark left in a folder."""
    return tuple(
        each.name for each in place.entries(folder) if each.name.endswith(".parquet") and not each.is_folder
    )


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
                    yield _to_batch(page.messages, part.queue, self._body_chars_max, self._schema)
                token = page.next_token
                if token is None:
                    return
