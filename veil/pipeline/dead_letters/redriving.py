"""Redrive a sealed selection, call by call: nothing is lost and nothing doubled, whoever is killed when.

Each call is one transaction of the server, which takes the messages out of the dead letters and puts them elsewhere; a
repeated call finds what it had moved gone. So a run can always go on with the first call that it has not noted as done.
The one thing that a death between the server's commit and our note leaves open is how to count: messages that such a call
finds gone when it is repeated were moved by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from veil.consumer.message import ApiError, Failure
from veil.journal.place import Place
from veil.pipeline.dead_letters.calls import REQUEST_BYTES_MAX, DeadLetterQueue, Redriven
from veil.pipeline.dead_letters.pace import Pace
from veil.pipeline.dead_letters.runs import (
    EXAMPLES_MAX,
    SELECTION,
    LeftMessage,
    Progress,
    Run,
    load_progress,
    place_of,
    save_progress,
)
from veil.pipeline.dead_letters.sealing import ENTRY, EVERYWHERE, batches
from veil.pipeline.queues.own_actions import Value
from veil.pipeline.queues.patience import PATIENCE_S, WORTH_RETRYING, Pauses
from veil.pipeline.run_lock import only_run

GONE: Final = "Veil.MessageMissing"
_ENTRY_BYTES: Final = 300  # of an entry that changes nothing, as JSON

Entry = dict[str, Any]


def redrive(
    run: Run,
    tables: Place,
    queue: DeadLetterQueue,
    *,
    pace: Pace | None = None,
    told: Callable[[Progress], None] = lambda progress: None,
    patience_s: float = PATIENCE_S,
) -> Progress:
    """Go on with the run until every message of its selection has been asked for; `told` is called after each call.

    Raises ApiError when the service refuses or stays away longer than the patience, TablesBusy when somebody else is at
    it. Whatever ends it, it can be called again.
    """
    place = place_of(tables, run.id)
    pace = pace or Pace(None)
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
            answer, was_repeated = _ask(queue, entries, patience_s)
            _note(progress, entries, answer, in_doubt=in_doubt or was_repeated)
            progress.calls, progress.begun = number + 1, False
            save_progress(place, progress)
            told(progress)
        progress.finished = True
        save_progress(place, progress)
        # The bodies in it are needed no more; what was done stays on record.
        place.remove_folder(SELECTION)
    return progress


def calls_of(run: Run, place: Place) -> Iterator[list[Entry]]:
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


def _entry(run: Run, row: dict[str, Any]) -> Entry:
    entry: Entry = {"MessageId": row["message_id"], "SequenceNumber": str(row["seq"])}
    destination = run.destinations.get(EVERYWHERE)
    if destination is None and row["unknown_source"] is not None:
        destination = run.destinations[row["unknown_source"]]
    if destination is not None:
        entry["DestinationQueueUrl"] = destination
    if row["new_body"] is not None:
        entry["MessageBody"] = row["new_body"]
    if row["new_attributes"] is not None:
        entry["MessageAttributes"] = {name: Value(**value) for name, value in row["new_attributes"]}
    return entry


def _size(entry: Entry) -> int:
    changed = [entry[name] for name in ("MessageBody", "MessageAttributes") if name in entry]
    return _ENTRY_BYTES + (len(msgspec.json.encode(changed)) if changed else 0)


def _ask(queue: DeadLetterQueue, entries: list[Entry], patience_s: float) -> tuple[Redriven, bool]:
    """The answer, and whether an earlier call of these entries may have been done without our hearing of it."""
    pauses = Pauses(patience_s)
    in_doubt = False
    while True:
        try:
            return queue.redrive(entries), in_doubt
        except ApiError as error:
            in_doubt = in_doubt or error.failure is Failure.UNREACHABLE
            if error.failure not in WORTH_RETRYING or not asyncio.run(pauses.pause()):
                raise


def _note(progress: Progress, entries: list[Entry], answer: Redriven, *, in_doubt: bool) -> None:
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
