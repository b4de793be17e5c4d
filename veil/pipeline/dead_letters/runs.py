"""A redrive as something that can be resumed: what was selected, sealed, and how far it has come.

A run is a folder beside the tables. Its selection is Parquet that never changes: what is shown, asked about and redriven is
this file, so an expression such as `rand() < 0.01` is evaluated once. `run.json` is written after it, so a run that has one
is whole. `progress.json` is replaced before and after every call to the server.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from veil.client.api import ApiError, Failure
from veil.journal.storage import Storage
from veil.pipeline.dead_letters.queue import ENTRIES_MAX, DeadLetterQueue, DeadLettersRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from veil.pipeline.dead_letters.selection import Selection

FOLDER: Final = "redrives"
SELECTION: Final = "selection"
_RUN: Final = "run.json"
_PROGRESS: Final = "progress.json"
VERSION: Final = 1
EXAMPLES_MAX: Final = 20


class RedriveRun(msgspec.Struct, frozen=True):
    """What is redriven: fixed when the run begins."""

    id: str
    made_at: str
    queue: str
    messages: int
    files: tuple[str, ...]
    a_call: int  # messages
    # The URL for each source that the server does not know; of all of them under "".
    destinations: dict[str, str]
    to: str | None = None
    where: str | None = None
    set_body: str | None = None
    set_attributes: dict[str, str] = {}
    endpoint: str | None = None
    region: str | None = None
    rate_s: float | None = None  # messages a second, as whoever began it wanted
    version: int = VERSION


class LeftMessage(msgspec.Struct, frozen=True):
    """A message that stayed among the dead letters, and why."""

    message_id: str
    code: str
    reason: str


class RedriveProgress(msgspec.Struct):
    """How far a run has come. `begun`: a further call was about to be made, and nobody has noted what it came to."""

    calls: int = 0
    begun: bool = False
    moved: int = 0
    gone: int = 0
    left: dict[str, int] = {}
    examples: list[LeftMessage] = []
    finished: bool = False

    @property
    def settled(self) -> int:
        """Messages of which is known what became of them."""
        return self.moved + self.gone + sum(self.left.values())


# Calls a second: fewer would come in bursts, more would be calls of hardly anything.
_CALLS_A_SECOND: Final = 4


def messages_a_call(rate_s: float | None) -> int:
    """How many messages a call should have, so that the rate is kept without bursts."""
    return ENTRIES_MAX if rate_s is None else max(1, min(ENTRIES_MAX, int(rate_s / _CALLS_A_SECOND)))


def new_id(now: datetime | None = None) -> str:
    """A name for a run that tells when it was made."""
    return f"{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def place_of(tables: Storage, run_id: str) -> Storage:
    """The folder of a run."""
    return tables.sub(f"{FOLDER}/{run_id}")


def forget(tables: Storage, run_id: str) -> None:
    """Remove the run with its selection."""
    tables.remove_folder(f"{FOLDER}/{run_id}")


def save_run(place: Storage, run: RedriveRun) -> None:
    """Seal the run: from now on it can be begun, and gone on with."""
    place.write(_RUN, msgspec.json.encode(run))


def load_run(tables: Storage, run_id: str) -> RedriveRun:
    """The run of that id; raises DeadLettersRefused, naming those there are."""
    try:
        return msgspec.json.decode(place_of(tables, run_id).read(_RUN), type=RedriveRun)
    except (FileNotFoundError, ValueError):
        known = ", ".join(run.id for run, _ in unfinished(tables)) or "none"
        raise DeadLettersRefused(
            f"--resume {run_id!r}: expected a run in {tables.uri}/{FOLDER} that was not finished; there are: {known}"
        ) from None


def load_progress(place: Storage) -> RedriveProgress:
    """How far the run has come, by the last word of whoever ran it."""
    try:
        return msgspec.json.decode(place.read(_PROGRESS), type=RedriveProgress)
    except FileNotFoundError:
        return RedriveProgress()


def save_progress(place: Storage, progress: RedriveProgress) -> None:
    """Note it durably."""
    place.write(_PROGRESS, msgspec.json.encode(progress))


def unfinished(tables: Storage) -> Iterator[tuple[RedriveRun, RedriveProgress]]:
    """The runs that were sealed and not finished, oldest first."""
    for entry in tables.entries(FOLDER):
        place = tables.sub(entry.name)
        try:
            run = msgspec.json.decode(place.read(_RUN), type=RedriveRun)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue
        progress = load_progress(place)
        if not progress.finished:
            yield run, progress


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
    tables: Storage,
    choice: Selection,
    *,
    to: str | None = None,
    rate_s: float | None = None,
) -> RedriveRun:
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
        return RedriveRun(
            id=run_id,
            made_at=now.isoformat(timespec="seconds"),
            queue=queue.url,
            messages=_count(place, files),
            files=files,
            a_call=messages_a_call(rate_s),
            rate_s=rate_s,
            destinations=_destinations(place, files, queue, to),
            to=to,
            where=choice.where,
            set_body=choice.body,
            set_attributes=dict(choice.attributes),
            endpoint=queue.address.endpoint,
            region=queue.address.region,
        )
    except BaseException:
        forget(tables, run_id)
        raise


def sample(tables: Storage, run: RedriveRun, most: int) -> list[dict[str, Any]]:
    """The first of the selected messages, in the columns SHOWN."""
    rows: list[dict[str, Any]] = []
    for batch in batches(place_of(tables, run.id), run.files, SHOWN):
        rows += batch.slice(0, most - len(rows)).to_pylist()
        if len(rows) >= most:
            break
    return rows


def batches(place: Storage, files: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The sealed rows, the same each time, a bounded number at once."""
    from pyarrow import parquet as pq

    for file in files:
        with place.open_input(file) as opened, pq.ParquetFile(opened) as parquet:
            yield from parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns))


def _count(place: Storage, files: Sequence[str]) -> int:
    from pyarrow import parquet as pq

    rows = 0
    for file in files:
        with place.open_input(file) as opened, pq.ParquetFile(opened) as parquet:
            rows += parquet.metadata.num_rows
    return rows


def _destinations(
    place: Storage, files: Sequence[str], queue: DeadLetterQueue, to: str | None
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
            f"{counts['']} of the selected messages do not say which queue they came from: name one with --to QUEUE"
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
