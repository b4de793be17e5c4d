"""A redrive that can be resumed: what was selected, sealed, how far it has come, and the calls that carry it out.

A run is a folder beside the tables. Its selection is Parquet that never changes: what is shown, asked about and redriven is
this file, so an expression such as `rand() < 0.01` is evaluated once. `run.json` is written after it, so a run that has one
is whole. `progress.json` is replaced before and after every call to the server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from veil.client.api import ApiError, Attribute, Failure
from veil.journal.storage import Storage
from veil.pipeline.dead_letters.queue import (
    ENTRIES_MAX,
    REQUEST_BYTES_MAX,
    DeadLetterQueue,
    DeadLettersRefused,
    RedriveAnswer,
    is_abandoned,
    parquet_in,
    stamped,
)
from veil.pipeline.lifecycles.lock import only_run
from veil.pipeline.queues import RETRY_S
from veil.pipeline.sql import F

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
    """How far a run has come. `asked`: so many messages, from the first on, the server was asked to move; of those beyond
    `settled` nobody has noted what became of them."""

    asked: int = 0
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


def place_of(tables: Storage, run_id: str) -> Storage:
    return tables.sub(f"{FOLDER}/{run_id}")


def forget(tables: Storage, run_id: str) -> None:
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
    except ValueError as problem:
        raise DeadLettersRefused(
            f"{place.uri}/{_PROGRESS} is not readable: {problem}; remove it, and the run goes through its selection again, "
            "without moving anything twice"
        ) from None


def save_progress(place: Storage, progress: RedriveProgress) -> None:
    place.write(_PROGRESS, msgspec.json.encode(progress))


def unfinished(tables: Storage) -> Iterator[tuple[RedriveRun, RedriveProgress]]:
    """The runs that were sealed and not finished, oldest first."""
    for entry in tables.entries(FOLDER):
        place = tables.sub(entry.name)
        try:
            run, progress = msgspec.json.decode(place.read(_RUN), type=RedriveRun), load_progress(place)
        except (FileNotFoundError, NotADirectoryError, ValueError, DeadLettersRefused):
            continue
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
    """The run for what `Selection.applied` gave. Nothing is redriven yet, and nothing will be before `save_run`.

    `to` sends all to that queue; else each goes to where it came from. Raises DeadLettersRefused where a message does not
    tell that, or its source is gone.
    """
    for entry in tables.entries(FOLDER):  # of commands that were killed before their run was sealed
        if is_abandoned(entry.name) and not tables.exists(f"{entry.name}/{_RUN}"):
            tables.remove_folder(entry.name)
    run_id = stamped()
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
        files = parquet_in(place, SELECTION)
        return RedriveRun(
            id=run_id,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            queue=queue.url,
            messages=sum(batch.num_rows for batch in batches(place, files, ("seq",))),
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
    found = batches(place_of(tables, run.id), run.files, SHOWN)
    return list(islice(chain.from_iterable(batch.to_pylist() for batch in found), most))


def batches(place: Storage, files: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The sealed rows, the same each time, a bounded number at once."""
    from pyarrow import parquet as pq

    for file in files:
        with place.open_input(file) as opened, pq.ParquetFile(opened) as parquet:
            yield from parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns))


def _destinations(
    place: Storage, files: Sequence[str], queue: DeadLetterQueue, to: str | None
) -> dict[str, str]:
    if to is not None:
        return {EVERYWHERE: find_queue(queue, to, f"--to {to!r}")}
    counts = Counter[str]()
    for batch in batches(place, files, ("unknown_source",)):
        counts.update(batch.column(0).drop_null().to_pylist())
    if "" in counts:
        raise DeadLettersRefused(
            f"{counts['']} of the selected messages came from an unknown queue: name one with --to QUEUE"
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


# ---- redriving the sealed selection, call by call: nothing is lost and nothing doubled, whoever is killed when
#
# Each call is one transaction of the server, which takes the messages out of the dead letters and puts them elsewhere; a
# repeated call finds what it had moved gone. So a run can always go on with the first message of which nothing is noted, in calls
# of any size. The one thing that a death between the server's commit and our note leaves open is how to count: messages that
# were asked for already and are gone were moved by the call of which nothing is noted.

GONE: Final = "Veil.MessageMissing"
_ENTRY_BYTES: Final = 300  # of an entry that changes nothing, as JSON

Entry = dict[str, Any]


def redrive(
    run: RedriveRun,
    tables: Storage,
    queue: DeadLetterQueue,
    *,
    rate_s: float | None = None,
    told: Callable[[RedriveProgress], None] = lambda progress: None,
    retry_s: float = RETRY_S,
) -> RedriveProgress:
    """Go on with the run until every message of its selection has been asked for; `told` is called after each call.

    It keeps the rate that the run was begun with, unless `rate_s` says another. Raises ApiError when the service refuses or
    stays away longer than `retry_s`, TablesBusy when somebody else is at it. Whatever ends it, it can be called again.
    """
    place = place_of(tables, run.id)
    pace = RateLimit(rate_s or run.rate_s)
    a_call = run.a_call if rate_s is None else messages_a_call(rate_s)
    with only_run(place):
        progress = load_progress(place)
        if progress.finished:
            return progress
        for entries in calls_of(run, place, a_call, after=progress.settled):
            pace.keep(len(entries))
            in_doubt = progress.asked - progress.settled
            progress.asked = max(progress.asked, progress.settled + len(entries))
            save_progress(place, progress)
            answer = queue.redrive(entries, retry_s=retry_s)
            _note(progress, entries, answer, in_doubt=len(entries) if answer.in_doubt else in_doubt)
            save_progress(place, progress)
            told(progress)
        # The bodies in it are needed no more; what was done stays on record.
        place.remove_folder(SELECTION)
        progress.finished = True
        save_progress(place, progress)
    return progress


def calls_of(run: RedriveRun, place: Storage, a_call: int, *, after: int = 0) -> Iterator[list[Entry]]:
    """The entries of each call, in the one order that the selection has, without so many at its beginning."""
    if after >= run.messages:  # the selection may have been removed
        return
    entries: list[Entry] = []
    size = 0
    rows = chain.from_iterable(batch.to_pylist() for batch in batches(place, run.files, ENTRY))
    for row in islice(rows, after, None):
        entry = _entry(run, row)
        entry_bytes = _size(entry)
        if entries and (len(entries) == a_call or size + entry_bytes > REQUEST_BYTES_MAX):
            yield entries
            entries, size = [], 0
        entry["Id"] = str(len(entries))
        entries.append(entry)
        size += entry_bytes
    if entries:
        yield entries


def _entry(run: RedriveRun, row: dict[str, Any]) -> Entry:
    entry: Entry = {"MessageId": row["message_id"], "SequenceNumber": str(row["seq"])}
    destination = run.destinations.get(EVERYWHERE)
    if destination is None and row["unknown_source"] is not None:
        destination = run.destinations[row["unknown_source"]]
    if destination is not None:
        entry["DestinationQueueUrl"] = destination
    if row["new_body"] is not None:
        entry["MessageBody"] = row["new_body"]
    if row["new_attributes"] is not None:
        entry["MessageAttributes"] = {name: Attribute(**value) for name, value in row["new_attributes"]}
    return entry


def _size(entry: Entry) -> int:
    changed = [entry[name] for name in ("MessageBody", "MessageAttributes") if name in entry]
    return _ENTRY_BYTES + (len(msgspec.json.encode(changed)) if changed else 0)


def _note(progress: RedriveProgress, entries: list[Entry], answer: RedriveAnswer, *, in_doubt: int) -> None:
    """Count what became of the entries; the first `in_doubt` of them may have been moved by an earlier call."""
    progress.moved += len(answer.successful or ())
    for left in answer.failed or ():
        if left.code == GONE:
            if int(left.id) < in_doubt:
                progress.moved += 1
            else:
                progress.gone += 1
            continue
        progress.left[left.code] = progress.left.get(left.code, 0) + 1
        if len(progress.examples) < EXAMPLES_MAX:
            message_id = str(entries[int(left.id)]["MessageId"])
            progress.examples.append(LeftMessage(message_id, left.code, left.message or ""))


class RateLimit:
    """Waits as long as the messages that went before ask for."""

    def __init__(
        self,
        rate_s: float | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate_s, self._monotonic, self._rest = rate_s, monotonic, rest
        self._free_at_s = monotonic()

    def keep(self, messages: int) -> None:
        """Return when so many may go."""
        if self._rate_s is None:
            return
        now_s = self._monotonic()
        if self._free_at_s > now_s:
            self._rest(self._free_at_s - now_s)
        # What was not used is not saved up: after a pause there is no burst.
        self._free_at_s = max(now_s, self._free_at_s) + messages / self._rate_s
