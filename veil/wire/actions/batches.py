"""The batch forms: what is wrong with the whole is raised, what is wrong with an entry fails that entry alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from veil.core import limits
from veil.core.errors import (
    BatchEmpty,
    BatchIdRefused,
    BatchIdRepeated,
    BatchTooLong,
    BatchTooMany,
    VeilError,
)
from veil.core.message_rules import Draft, attributes_md5, size_bytes
from veil.core.sequence import sequence_text
from veil.service.messages import SentMessage, delete, extend_lease, send
from veil.wire.actions.messages import VISIBILITY_RANGE
from veil.wire.call import Call
from veil.wire.drafts import read_draft, system_md5
from veil.wire.request_errors import ParameterMissing, check_range
from veil.wire.shapes import (
    BatchOutput,
    ChangeMessageVisibilityBatchInput,
    DeleteMessageBatchInput,
    DoneEntry,
    FailedEntry,
    ReceiptEntry,
    RedriveEntry,
    SendEntry,
    SendMessageBatchInput,
    SendMessageBatchOutput,
    SentEntry,
    VisibilityEntry,
)
from veil.wire.sqs_codes import Situation, worded

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")

_Entry = TypeVar("_Entry", SendEntry, ReceiptEntry, VisibilityEntry, RedriveEntry)


async def send_message_batch(call: Call, given: SendMessageBatchInput) -> SendMessageBatchOutput:
    """SendMessageBatch."""
    queue = await call.queue(given.QueueUrl)
    entries = checked_entries(given.Entries, limits.BATCH_ENTRIES_MAX)
    trace = call.request.headers.get("x-amzn-trace-id")
    outcomes: list[Draft | VeilError] = []
    total_bytes = 0
    for entry in entries:
        try:
            draft = read_draft(entry, trace)
            total_bytes += size_bytes(draft)
            outcomes.append(draft)
        except VeilError as refusal:
            total_bytes += len(entry.MessageBody)
            outcomes.append(refusal)
    if total_bytes > limits.BATCH_BYTES_MAX:
        raise BatchTooLong(total_bytes, limits.BATCH_BYTES_MAX)

    drafts = [outcome for outcome in outcomes if not isinstance(outcome, VeilError)]
    answers = iter(
        await send(
            call.service,
            queue,
            drafts,
            sender=call.sender,
            retry_key=call.retry_key(),
            caller=call.caller,
        )
        if drafts
        else ()
    )
    successful: list[SentEntry] = []
    failed: list[FailedEntry] = []
    for entry, outcome in zip(entries, outcomes, strict=True):
        answer = outcome if isinstance(outcome, VeilError) else next(answers)
        if isinstance(answer, SentMessage):
            assert isinstance(outcome, Draft)
            successful.append(
                SentEntry(
                    entry.Id,
                    answer.message_id,
                    answer.body_md5,
                    attributes_md5(outcome.attributes) if outcome.attributes else None,
                    system_md5(entry) if entry.MessageSystemAttributes else None,
                    sequence_text(answer.seq) if queue.settings.fifo else None,
                )
            )
        else:
            failed.append(failed_entry(call, entry.Id, answer))
    return SendMessageBatchOutput(successful or None, failed or None)


async def delete_message_batch(call: Call, given: DeleteMessageBatchInput) -> BatchOutput:
    """DeleteMessageBatch."""
    queue = await call.queue(given.QueueUrl)
    entries = checked_entries(given.Entries, call.bulk_max)
    answers = await delete(
        call.service, queue, [entry.ReceiptHandle for entry in entries], caller=call.caller
    )
    return _output(call, entries, answers)


async def change_message_visibility_batch(
    call: Call, given: ChangeMessageVisibilityBatchInput
) -> BatchOutput:
    """ChangeMessageVisibilityBatch."""
    queue = await call.queue(given.QueueUrl)
    entries = checked_entries(given.Entries, call.bulk_max)
    refusals: list[VeilError | None] = []
    changes: list[tuple[str, int]] = []
    for entry in entries:
        try:
            visibility_s = entry.VisibilityTimeout
            if visibility_s is None:
                raise ParameterMissing("VisibilityTimeout")
            check_range("VisibilityTimeout", visibility_s, 0, limits.VISIBILITY_MAX_S, VISIBILITY_RANGE)
            changes.append((entry.ReceiptHandle, visibility_s))
            refusals.append(None)
        except VeilError as refusal:
            refusals.append(refusal)
    answers = iter(await extend_lease(call.service, queue, changes, caller=call.caller) if changes else ())
    return _output(call, entries, [refusal if refusal is not None else next(answers) for refusal in refusals])


def checked_entries(entries: list[_Entry] | None, count_max: int) -> list[_Entry]:
    """The entries, each with an id of its own; raises a BatchRefused member."""
    if not entries:
        raise BatchEmpty
    if len(entries) > count_max:
        raise BatchTooMany(len(entries), count_max)
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.match(entry.Id):
            raise BatchIdRefused(entry.Id[:1024])
    for entry in entries:
        if entry.Id in seen:
            raise BatchIdRepeated(entry.Id)
        seen.add(entry.Id)
    return entries


def _output(
    call: Call, entries: Sequence[ReceiptEntry | VisibilityEntry], answers: Sequence[VeilError | None]
) -> BatchOutput:
    successful: list[DoneEntry] = []
    failed: list[FailedEntry] = []
    for entry, answer in zip(entries, answers, strict=True):
        if answer is None:
            successful.append(DoneEntry(entry.Id))
        else:
            failed.append(failed_entry(call, entry.Id, answer))
    return BatchOutput(successful or None, failed or None)


def failed_entry(call: Call, entry_id: str, error: VeilError) -> FailedEntry:
    """The refusal of one entry."""
    # Codes of entries are in the Query spelling, in JSON too.
    code, message = worded(error, Situation(call.action, call.query, entry=True))
    return FailedEntry(entry_id, code.status < 500, code.query_code, message)
