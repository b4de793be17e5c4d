"""The queue of dead letters through Veil's own actions: read without receiving, side by side on executors, and redriven.

Executors look at their parts page by page, and leave them as Parquet. Whoever asks further questions asks the Parquet: what
was seen once is not looked at again, and no process holds more than a page.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from veil.client.api import ApiError, Failure
from veil.core.errors import VeilError
from veil.pipeline.queues import RETRY_S, QueueAddress, QueueClient
from veil.pipeline.source.browse import BrowsedPart, BrowseFilter, browsed_parts
from veil.pipeline.spark.workers import refusing_workers_without_veil, this_python
from veil.pipeline.sql import ATTRIBUTES, F, arrow_schema, struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from veil.journal.storage import Storage


# What a look at the queue gives. `seq` is the message's place in its queue, which names it together with its id.
_BROWSED: Final = f"""
    queue             string not null,
    message_id        string not null,
    seq               bigint not null,
    state             string not null,
    sent_at           timestamp,
    receive_count     int,
    body              string,
    attributes        {ATTRIBUTES} not null,
    system_attributes map<string, string> not null
"""
PEEKED: Final = f"{_BROWSED.rstrip()},\n    body_bytes        int not null\n"


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
    in_doubt: bool = False  # the client's own: an earlier try may have been done without our hearing of it


def opened(where: QueueAddress, queue: str) -> DeadLetterQueue:
    """The queue of that name at the service, open; raises NotVeil, and ApiError where there is no such queue."""
    found = DeadLetterQueue(replace(where, queue=queue), user_agent="pipeline dead-letters")
    try:
        found.peek(1)
    except BaseException as problem:
        found.close()
        if isinstance(problem, ApiError) and problem.failure is Failure.REFUSED:
            # The queue is there, yet the service will not let it be looked at: it does not know how.
            raise NotVeil(found.endpoint) from None
        raise
    return found


class DeadLetterQueue(QueueClient):
    """A queue of dead letters that is open."""

    def url_of(self, queue: str) -> str:
        """The URL of another queue of the same service, by name, ARN or URL."""
        return self._loop.run(self._client.queue_url(queue))

    def redrive(self, entries: list[dict[str, Any]], *, retry_s: float = RETRY_S) -> RedriveAnswer:
        """Take the entries out of the dead letters, all in one transaction; each that cannot be moved fails alone.

        Where no answer came nobody knows whether it was done: repeated, the call finds what it had moved gone, and moves
        nothing twice.
        """
        given = {"Entries": entries, "MarkRedriven": True}
        answer, in_doubt = self.own_counted(
            "RedriveMessages", given, RedriveAnswer, timeout_s=_REDRIVE_TIMEOUT_S, retry_s=retry_s
        )
        answer.in_doubt = in_doubt
        return answer


PARTS_MAX: Final = 32
_SCRATCH: Final = "_dead-letters-"
_STAMP: Final = "%Y%m%d-%H%M%S"
_ABANDONED: Final = timedelta(days=1)


def stamped() -> str:
    """A name for a folder that tells when it was made."""
    return f"{datetime.now(UTC):{_STAMP}}-{secrets.token_hex(2)}"


def is_abandoned(folder: str) -> bool:
    """Whether the stamp that the name ends in is so old that whoever made the folder has been killed."""
    try:
        made = datetime.strptime(folder[-20:-5], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return False
    return datetime.now(UTC) - made > _ABANDONED


@contextmanager
def scratch_folder(tables: Storage) -> Iterator[str]:
    """The name of a folder for the block, beside the tables; what is left of earlier ones is removed too."""
    for entry in tables.entries():
        if entry.name.startswith(_SCRATCH) and is_abandoned(entry.name):
            tables.remove_folder(entry.name)
    folder = f"{_SCRATCH}{stamped()}"
    tables.write(
        f"{folder}/_begun", b""
    )  # says why where this cannot be written to; Spark passes over such a name
    try:
        yield folder
    finally:
        tables.remove_folder(folder)


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
    parts: list[BrowsedPart] = []
    for queue in queues:
        with DeadLetterQueue(replace(where, queue=queue), user_agent="pipeline dead-letters") as opened:
            parts += browsed_parts(opened, PARTS_MAX, BrowseFilter())
    columns = struct_of(_BROWSED)
    schema = arrow_schema(columns)  # made here: only the driver can read columns that are written out

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from parts[number].batches(schema)

    with scratch_folder(tables) as folder:
        with this_python(spark):
            rows = spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, columns)
        rows = rows.withColumn("body_bytes", F.octet_length("body"))
        if body_chars_max is not None:
            rows = rows.withColumn("body", F.left("body", F.lit(body_chars_max)))
        with refusing_workers_without_veil():
            rows.write.mode("append").parquet(tables.spark_path(folder))
        yield spark.read.schema(struct_of(PEEKED)).parquet(tables.spark_path(folder))


def parquet_in(place: Storage, folder: str) -> tuple[str, ...]:
    """The files that Spark left in a folder."""
    return tuple(
        each.name for each in place.entries(folder) if each.name.endswith(".parquet") and not each.is_folder
    )
