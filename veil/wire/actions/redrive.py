"""Veil's own action: redrive chosen dead letters, each to where it came from or to a queue of the caller's choice."""

from __future__ import annotations

from typing import Final

from veil.core.errors import VeilError
from veil.core.queue import QueueKey
from veil.service.moves import Wanted, redrive
from veil.wire.actions.batches import checked_entries, failed_entry
from veil.wire.actions.own_queue import own_queue
from veil.wire.call import Call
from veil.wire.drafts import read_attributes
from veil.wire.request_errors import ParameterMissing
from veil.wire.sequence_numbers import read_sequence_number
from veil.wire.shapes import (
    FailedEntry,
    RedriveEntry,
    RedriveMessagesInput,
    RedriveMessagesOutput,
    RedrivenEntry,
)

REDRIVE_MAX: Final = 1_000


async def redrive_messages(call: Call, given: RedriveMessagesInput) -> RedriveMessagesOutput:
    """RedriveMessages: up to a thousand in one transaction, a wrong entry fails alone."""
    queue = await own_queue(call, given.QueueUrl)
    entries = checked_entries(given.Entries, REDRIVE_MAX)
    outcomes: list[Wanted | VeilError] = []
    for entry in entries:
        try:
            outcomes.append(_wanted(call, entry))
        except VeilError as refusal:
            outcomes.append(refusal)
    wanted = [outcome for outcome in outcomes if not isinstance(outcome, VeilError)]
    answers = iter(
        await redrive(call.service, queue, wanted, mark=given.MarkRedriven, caller=call.caller)
        if wanted
        else ()
    )
    successful: list[RedrivenEntry] = []
    failed: list[FailedEntry] = []
    for entry, outcome in zip(entries, outcomes, strict=True):
        answer = outcome if isinstance(outcome, VeilError) else next(answers)
        if isinstance(answer, VeilError):
            failed.append(failed_entry(call, entry.Id, answer))
        else:
            successful.append(RedrivenEntry(entry.Id, answer.message_id, str(answer.seq)))
    return RedriveMessagesOutput(successful or None, failed or None)


def _wanted(call: Call, entry: RedriveEntry) -> Wanted:
    for parameter in ("MessageId", "SequenceNumber"):
        if not getattr(entry, parameter):
            raise ParameterMissing(parameter)
    return Wanted(
        read_sequence_number("SequenceNumber", entry.SequenceNumber),
        entry.MessageId,
        _destination(call, entry.DestinationQueueUrl) if entry.DestinationQueueUrl else None,
        entry.MessageBody,
        None if entry.MessageAttributes is None else read_attributes(entry.MessageAttributes),
    )


def _destination(call: Call, url: str) -> QueueKey:
    key = call.urls.key(url, call.region, call.owner())
    call.owns(key)
    return key
