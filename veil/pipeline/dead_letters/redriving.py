"""Redrive a sealed selection, call by call: nothing is lost and nothing doubled, whoever is killed when.

Each call is one transaction of the server, which takes the messages out of the dead letters and puts them elsewhere; a
repeated call finds what it had moved gone. So a run can always go on with the first call that it has not noted as done.
The one thing that a death between the server's commit and our note leaves open is how to count: messages that such a call
finds gone when it is repeated were moved by it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from veil.client.api import ApiError, Failure
from veil.journal.storage import Storage
from veil.pipeline.dead_letters.queue import REQUEST_BYTES_MAX, DeadLetterQueue, RedriveAnswer
from veil.pipeline.dead_letters.runs import (
    ENTRY,
    EVERYWHERE,
    EXAMPLES_MAX,
    SELECTION,
    LeftMessage,
    RedriveProgress,
    RedriveRun,
    batches,
    load_progress,
    place_of,
    save_progress,
)
from veil.pipeline.lifecycles.lock import only_run
from veil.pipeline.queues.calls import RETRY_S, WORTH_RETRYING, Retries
from veil.pipeline.queues.client import AttributeValue

GONE: Final = "Veil.MessageMissing"
_ENTRY_BYTES: Final = 300  # of an entry that changes nothing, as JSON

Entry = dict[str, Any]


def redrive(
    run: RedriveRun,
    tables: Storage,
    queue: DeadLetterQueue,
    *,
    pace: RateLimit | None = None,
    told: Callable[[RedriveProgress], None] = lambda progress: None,
    retry_s: float = RETRY_S,
) -> RedriveProgress:
    """Go on with the run until every message of its selection has been asked for; `told` is called after each call.

    It keeps the rate that the run was begun with, unless `pace` says another. Raises ApiError when the service refuses or
    stays away longer than `retry_s`, TablesBusy when somebody else is at it. Whatever ends it, it can be called again.
    """
    place = place_of(tables, run.id)
    pace = pace or RateLimit(run.rate_s)
    with only_run(place):
        progress = load_progress(place)
        if progress.finished:
            return progress
        for number, entries in enumerate(calls_of(run, place)):
            if number < progress.calls:
                continue
            pace.keep(len(entries))
            in_doubt, progress.begun = progress.begun, True
            save_progress(place, progress)
            answer, was_repeated = _ask(queue, entries, retry_s)
            _note(progress, entries, answer, in_doubt=in_doubt or was_repeated)
            progress.calls, progress.begun = number + 1, False
            save_progress(place, progress)
            told(progress)
        progress.finished = True
        save_progress(place, progress)
        # The bodies in it are needed no more; what was done stays on record.
        place.remove_folder(SELECTION)
    return progress


def calls_of(run: RedriveRun, place: Storage) -> Iterator[list[Entry]]:
    """The entries of each call: the same, in the same calls, whenever the run is gone on with."""
    entries: list[Entry] = []
    size = 0
    for batch in batches(place, run.files, ENTRY):
        for row in batch.to_pylist():
            entry = _entry(run, row)
            entry_bytes = _size(entry)
            if entries and (len(entries) == run.a_call or size + entry_bytes > REQUEST_BYTES_MAX):
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
        entry["MessageAttributes"] = {name: AttributeValue(**value) for name, value in row["new_attributes"]}
    return entry


def _size(entry: Entry) -> int:
    changed = [entry[name] for name in ("MessageBody", "MessageAttributes") if name in entry]
    return _ENTRY_BYTES + (len(msgspec.json.encode(changed)) if changed else 0)


def _ask(queue: DeadLetterQueue, entries: list[Entry], retry_s: float) -> tuple[RedriveAnswer, bool]:
    """The answer, and whether an earlier call of these entries may have been done without our hearing of it."""
    retries = Retries(retry_s)
    in_doubt = False
    while True:
        try:
            return queue.redrive(entries), in_doubt
        except ApiError as error:
            in_doubt = in_doubt or error.failure is Failure.UNREACHABLE
            if error.failure not in WORTH_RETRYING or not asyncio.run(retries.pause()):
                raise


def _note(progress: RedriveProgress, entries: list[Entry], answer: RedriveAnswer, *, in_doubt: bool) -> None:
    progress.moved += len(answer.successful or ())
    for left in answer.failed or ():
        if left.code == GONE:
            if in_doubt:
                progress.moved += 1
            else:
                progress.gone += 1
            continue
        progress.left[left.code] = progress.left.get(left.code, 0) + 1
        if len(progress.examples) < EXAMPLES_MAX:
            message_id = str(entries[int(left.id)]["MessageId"])
            progress.examples.append(LeftMessage(message_id, left.code, left.message or ""))


_RATE: Final = re.compile(r"([0-9]{1,9})(?:/(s|min))?")


def read_rate(text: str) -> float:
    """Messages a second, from text such as 500, 500/s or 30/min; raises ValueError with what was expected."""
    found = _RATE.fullmatch(text.strip().replace(" ", ""))
    if found is None or int(found[1]) == 0:
        raise ValueError("a rate such as 500, 500/s or 30/min")
    return int(found[1]) / (60 if found[2] == "min" else 1)


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
