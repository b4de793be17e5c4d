"""Seal a selection: the chosen dead letters as Parquet, in the order of their queue, for the run that will redrive them.

What is shown, asked about and redriven is this file: an expression such as `rand() < 0.01` is evaluated once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from veil.consumer.message import ApiError, Failure
from veil.pipeline.dead_letters.calls import ENTRIES_MAX, DeadLetterQueue
from veil.pipeline.dead_letters.failures import DeadLettersRefused
from veil.pipeline.dead_letters.runs import SELECTION, Run, forget, new_id, place_of
from veil.pipeline.dead_letters.selection import Choice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from veil.journal.place import Place

# What a person sees of a message before it goes.
SHOWN: Final = (
    "message_id", "source", "message_type", "error_type", "fingerprint", "first_seen", "redriven_before", "body",
)  # fmt: skip
ENTRY: Final = ("seq", "message_id", "unknown_source", "new_body", "new_attributes")
EVERYWHERE: Final = ""  # stands for every source, where all go to one queue
_SNIPPET_CHARS: Final = 200
_ROWS_AT_ONCE: Final = 1_000


def seal(
    chosen: DataFrame,
    queue: DeadLetterQueue,
    tables: Place,
    choice: Choice,
    *,
    to: str | None = None,
    a_call: int = ENTRIES_MAX,
) -> Run:
    """The run for what `Choice.applied` gave. Nothing is redriven yet, and nothing will be before `save_run`.

    `to` sends all to that queue; else each goes to where it came from. Raises DeadLettersRefused where a message does not
    tell that, or its source is gone.
    """
    from pyspark.sql import functions as F  # noqa: N812

    now = datetime.now(UTC)
    run_id = new_id(now)
    place = place_of(tables, run_id)
    server_source = F.element_at("system_attributes", F.lit("DeadLetterQueueSourceArn"))
    told = chosen.select(
        "seq",
        *(name for name in SHOWN if name != "body"),
        F.left(F.coalesce("new_body", "body"), F.lit(_SNIPPET_CHARS)).alias("body"),
        F.when(server_source.isNull(), F.coalesce("source", F.lit(""))).alias("unknown_source"),
        "new_body",
        "new_attributes",
    )
    try:
        told.orderBy("seq").write.parquet(place.spark_path(SELECTION))
        found = place.entries(SELECTION)
        files = tuple(each.name for each in found if each.name.endswith(".parquet") and not each.is_folder)
        return Run(
            id=run_id,
            made_at=now.isoformat(timespec="seconds"),
            queue=queue.url,
            messages=_count(place, files),
            files=files,
            a_call=a_call,
            destinations=_destinations(place, files, queue, to),
            to=to,
            where=choice.where,
            set_body=choice.body,
            set_attributes=dict(choice.attributes),
            endpoint=queue.place.endpoint,
            region=queue.place.region,
        )
    except BaseException:
        forget(tables, run_id)
        raise


def sample(tables: Place, run: Run, most: int) -> list[dict[str, Any]]:
    """The first of the selected messages, in the columns SHOWN."""
    rows: list[dict[str, Any]] = []
    for batch in batches(place_of(tables, run.id), run.files, SHOWN):
        rows += batch.slice(0, most - len(rows)).to_pylist()
        if len(rows) >= most:
            break
    return rows


def batches(place: Place, files: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The sealed rows, the same each time, a bounded number at once."""
    from pyarrow import parquet as pq

    for file in files:
        with place.open_input(file) as opened, pq.ParquetFile(opened) as parquet:
            yield from parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns))


def _count(place: Place, files: Sequence[str]) -> int:
    from pyarrow import parquet as pq

    rows = 0
    for file in files:
        with place.open_input(file) as opened, pq.ParquetFile(opened) as parquet:
            rows += parquet.metadata.num_rows
    return rows


def _destinations(
    place: Place, files: Sequence[str], queue: DeadLetterQueue, to: str | None
) -> dict[str, str]:
    if to is not None:
        return {EVERYWHERE: find_queue(queue, to, f"--to {to!r}")}
    from pyarrow import compute as pc

    counts: dict[str, int] = {}
    for batch in batches(place, files, ("unknown_source",)):
        for each in pc.value_counts(batch.column(0).drop_null()).to_pylist():
            counts[each["values"]] = counts.get(each["values"], 0) + each["counts"]
    if "" in counts:
        raise DeadLettersRefused(
            f"{counts['']} of the selected messages do not tell where they came from: give --to QUEUE"
        )
    return {
        source: find_queue(queue, source, f"the source {source!r} of {count} messages")
        for source, count in counts.items()
    }


def find_queue(queue: DeadLetterQueue, name: str, what: str) -> str:
    """The URL of a queue beside the dead letters; raises DeadLettersRefused with what it was for."""
    try:
        return queue.url_of(name)
    except ApiError as error:
        if error.failure is not Failure.FATAL:
            raise
        raise DeadLettersRefused(f"{what}: expected a queue at {queue.endpoint} ({error})") from None
