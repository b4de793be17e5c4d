"""Send, delete, extend, rotate, look at and purge messages."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Final, NamedTuple

from veil.core.attempt import NOTHING_REPORTED, AttemptOutcome, ReportedOutcome
from veil.core.errors import (
    DeduplicationMissing,
    GroupMissing,
    MessageGone,
    MessageRefused,
    ReceiptInvalid,
    VeilError,
)
from veil.core.event import NOBODY
from veil.core.lease import WAITING, Deletion
from veil.core.message import PRIORITY_DEFAULT, Caller, NewMessage, Sent, StoredMessage, message_type
from veil.core.message_rules import Draft, body_md5, check_draft, content_deduplication_id
from veil.core.queue import Queue, QueueSettings
from veil.core.receipt import Receipt
from veil.service.service import Service
from veil.service.time_slices import BYTES_AT_ONCE, TimeSlice
from veil.stores.store import Extension, Rotated

# ---- message ids

_IDS_AT_ONCE = 256
# The byte that has the version (4) in its high half, and the one whose two highest bits have the variant (binary 10).
_VERSION = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))
_DIGITS = struct.Struct("8s4s4s4s12s")  # of one id, between its hyphens


def _message_ids() -> Iterator[str]:
    while True:
        drawn = bytearray(os.urandom(16 * _IDS_AT_ONCE))
        drawn[6::16] = drawn[6::16].translate(_VERSION)
        drawn[8::16] = drawn[8::16].translate(_VARIANT)
        for parts in _DIGITS.iter_unpack(drawn.hex().encode()):
            yield b"-".join(parts).decode()


_ids = _message_ids()


def _start_anew() -> None:
    # A forked child would otherwise give out the ids that its parent still holds in stock.
    global _ids
    _ids = _message_ids()


os.register_at_fork(after_in_child=_start_anew)


def new_id() -> str:
    """A random UUID (version 4) as text."""
    return next(_ids)


# ---- send


async def send(
    service: Service,
    queue: Queue,
    drafts: Sequence[Draft],
    *,
    sender: str,
    retry_key: bytes | None = None,
    caller: Caller = NOBODY,
) -> Sequence[Sent | VeilError]:
    """Store the drafts, in order and together; a refused one is answered in its place and holds up no other.

    A call that comes again under the same retry key is answered like the first one and stores nothing, unless the queue's
    settings have changed so that it takes others of the drafts now.
    Raises GroupMissing and DeduplicationMissing for the whole call, and what the store raises.
    """
    refused: dict[int, VeilError] = {}
    messages: list[NewMessage] = []
    for place, draft in enumerate(drafts):
        try:
            messages.append(_checked(draft, queue.settings, sender, service.rules.type_attributes))
        except (GroupMissing, DeduplicationMissing):
            raise
        except MessageRefused as refusal:
            refused[place] = refusal
    if not messages:
        return list(refused.values())
    if refused and retry_key is not None:
        # The store answers a repetition by place. Settings may have changed since the first call: where others are refused now it
        # is another call, whose answers would not fit.
        retry_key = blake2b(f"{retry_key.hex()} {[*refused]}".encode(), digest_size=16).digest()
    stored = await service.store.send(queue, messages, retry_key=retry_key, caller=caller)
    if service.owner is None:
        note_sends(service, queue, messages, stored)
    if not refused:
        return stored
    answers = iter(stored)
    return [refused.get(place) or next(answers) for place in range(len(drafts))]


def note_sends(
    service: Service, queue: Queue, messages: Sequence[NewMessage], stored: Sequence[Sent], **_: object
) -> None:
    service.tallies["sent", queue.id] += len([sent for sent in stored if not sent.duplicate])


def _checked(
    draft: Draft, settings: QueueSettings, sender: str, type_attributes: Sequence[str]
) -> NewMessage:
    """The message to store; raises a MessageRefused member unless the queue takes the draft."""
    body_utf8 = check_draft(draft, settings)
    draft.body_md5 = body_md5(body_utf8)
    deduplication_id, delay_s = draft.deduplication_id, draft.delay_s
    if settings.fifo:
        delay_s = None  # a FIFO message has no delay of its own: 0 means the queue's
        if deduplication_id is None:
            deduplication_id = content_deduplication_id(body_utf8)
    return NewMessage(
        new_id(),
        draft.body,
        draft.body_md5,
        draft.attributes or None,
        draft.trace_header,
        sender,
        delay_s,
        draft.group,
        deduplication_id,
        message_type(draft.attributes, type_attributes) if draft.attributes else None,
        PRIORITY_DEFAULT if draft.priority is None else draft.priority,
    )


# ---- delete


async def delete(
    service: Service,
    queue: Queue,
    handles: Sequence[str],
    *,
    strict: bool = False,
    caller: Caller = NOBODY,
    reported: Sequence[ReportedOutcome | None] = (),
) -> list[VeilError | None]:
    """Delete each on its own; a refusal stands in its place, None is success (also with nothing left).

    `reported` has, for each handle, what its holder reports of an attempt that did not complete; left out, nothing is reported.
    With `strict` a receipt dies with its deadline, and MessageGone tells of every message that was not deleted.
    """
    answers, receipts, places = _read(service, queue, handles)
    if not receipts:
        return answers
    by_seq = NOTHING_REPORTED
    if any(reported):
        by_place = {receipt.seq: reported[place] for place, receipt in zip(places, receipts, strict=True)}
        by_seq = {seq: each for seq, each in by_place.items() if each is not None}
    outcomes = await service.store.delete(queue, receipts, strict=strict, caller=caller, reported=by_seq)
    if service.owner is None:
        note_deletions(service, queue, receipts, outcomes, caller=caller, reported=by_seq)
    if outcomes.count(Deletion.DELETED) < len(outcomes):
        for place, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, VeilError):
                answers[place] = outcome
            elif strict and outcome is not Deletion.DELETED:
                answers[place] = MessageGone(handles[place])
    return answers


def _read(
    service: Service, queue: Queue, handles: Sequence[str]
) -> tuple[list[VeilError | None], list[Receipt], Sequence[int]]:
    """Room for an answer to each, with the refusals of those that are no receipts; the receipts, and their places."""
    answers: list[VeilError | None] = [None] * len(handles)
    book, queue_id = service.store.receipts, queue.id
    try:
        return answers, book.read_all(handles, queue_id), range(len(handles))
    except ReceiptInvalid:
        receipts: list[Receipt] = []
        places: list[int] = []
        for place, text in enumerate(handles):
            try:
                receipts.append(book.read(text, queue_id))
                places.append(place)
            except ReceiptInvalid as refusal:
                answers[place] = refusal
        return answers, receipts, places


def note_deletions(
    service: Service,
    queue: Queue,
    receipts: Sequence[Receipt],
    outcomes: list[Deletion | VeilError],
    *,
    caller: Caller,
    reported: Mapping[int, ReportedOutcome],
    strict: bool = False,
) -> None:
    deleted = [receipt.seq for receipt in receipts]
    attempts = None if service.activity is None else service.activity.attempts
    if outcomes.count(Deletion.DELETED) < len(outcomes):
        deleted.clear()
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if outcome is Deletion.DELETED:
                deleted.append(receipt.seq)
            elif attempts is not None:
                attempts.came_late(receipt.seq, receipt.delivery, caller)
    if deleted:
        service.tallies["deleted", queue.id] += len(deleted)
        if attempts is not None:
            ends = [reported.get(seq) for seq in deleted] if reported else ()
            attempts.ended(queue, deleted, AttemptOutcome.COMPLETED, caller, ends)


# ---- extend and release


async def extend_lease(
    service: Service,
    queue: Queue,
    changes: Sequence[tuple[str, int]],
    *,
    caller: Caller = NOBODY,
    reported: Sequence[ReportedOutcome | None] = (),
) -> list[VeilError | None]:
    """Set each visibility (receipt, seconds from now; 0 releases) on its own; a refusal takes its place.

    `reported` has, for each change, what the holder reports of the attempt that it ends; left out, nothing is reported.
    """
    answers, receipts, places = _read(service, queue, [text for text, _ in changes])
    if not receipts:
        return answers
    asked = changes if len(receipts) == len(changes) else [changes[place] for place in places]
    told = [reported[place] for place in places] if reported else repeat(None)
    # Not by its own constructor, which is written in Python and would take half as long again.
    extensions = [
        tuple.__new__(Extension, (receipt, visibility_s, outcome))
        for receipt, (_, visibility_s), outcome in zip(receipts, asked, told, strict=False)
    ]
    outcomes = await service.store.extend(queue, extensions, caller=caller)
    if service.owner is None:
        note_extensions(service, queue, extensions, outcomes, caller=caller)
    if len(outcomes) == len(answers):
        return outcomes
    for place, refused in zip(places, outcomes, strict=True):
        answers[place] = refused
    return answers


def note_extensions(
    service: Service,
    queue: Queue,
    extensions: Sequence[Extension],
    outcomes: Sequence[VeilError | None],
    *,
    caller: Caller,
) -> None:
    if not extensions:
        return
    attempts = None if service.activity is None else service.activity.attempts
    receipts, lengths_s, told = zip(*extensions, strict=True)
    count, length_s = len(receipts), lengths_s[0]
    if length_s and outcomes.count(None) == lengths_s.count(length_s) == told.count(None) == count:
        if attempts is not None:
            count = attempts.renewed(queue, [receipt.seq for receipt in receipts], length_s, caller)
        if count:
            service.tallies["extended", queue.id] += count
        return
    changed: list[tuple[int, int, ReportedOutcome | None]] = []
    released: list[int] = []
    ends: list[ReportedOutcome | None] = []
    for receipt, visibility_s, end, refused in zip(receipts, lengths_s, told, outcomes, strict=True):
        if refused is not None:
            if attempts is not None:
                attempts.came_late(receipt.seq, receipt.delivery, caller)
        elif visibility_s:
            changed.append((receipt.seq, visibility_s, end))
        else:
            released.append(receipt.seq)
            ends.append(end)
    if changed:
        extended = len(changed) if attempts is None else attempts.changed(queue, changed, caller)
        if extended:
            service.tallies["extended", queue.id] += extended
    if released:
        service.tallies["released", queue.id] += len(released)
        if attempts is not None:
            attempts.ended(queue, released, AttemptOutcome.GIVEN_BACK, caller, ends)


# ---- search

# Of one search: so many rows or bytes are looked at, and whoever wants more goes on from there.
SEARCH_ROWS_MAX: Final = 5_000
SEARCH_BYTES_MAX: Final = 16 << 20
SEARCH_FOUND_BYTES_MAX: Final = 4 << 20
_ROWS_AT_ONCE: Final = 500


class SearchPage(NamedTuple):
    messages: list[StoredMessage]
    rows: int  # how many were looked at
    behind: int | None  # the seq to go on behind; None at the end of the queue
    is_full: bool  # as many were found as were wanted: there may be more behind
    bytes: int = 0  # of the messages looked at


async def search(
    service: Service,
    queue: Queue,
    fits: Callable[[StoredMessage], bool] | None,
    time_slice: TimeSlice,
    *,
    after_seq: int = 0,
    up_to_seq: int | None = None,
    limit: int,
    rows_max: int = SEARCH_ROWS_MAX,
    bytes_max: int = SEARCH_BYTES_MAX,
    enough: int | None = None,
) -> SearchPage:
    """The next `limit` messages that fit, by rising `seq`, all of them where `fits` is None: at most `rows_max` rows or
    `bytes_max` bytes are looked at, and none after `enough` were found."""
    found: list[StoredMessage] = []
    rows = found_bytes = looked_bytes = 0
    while enough is None or len(found) < enough:
        wanted = limit + 1 if fits is None else min(_ROWS_AT_ONCE, rows_max - rows)
        messages = await service.store.peek(
            queue, after_seq=after_seq, up_to_seq=up_to_seq, limit=wanted, bytes_max=BYTES_AT_ONCE
        )
        for message in messages:
            await time_slice.yield_if_spent()
            if len(found) == limit or found_bytes >= SEARCH_FOUND_BYTES_MAX:
                return SearchPage(found, rows, after_seq, True, looked_bytes)
            rows += 1
            looked_bytes += message.held_bytes
            after_seq = message.seq
            if fits is None or fits(message):
                found.append(message)
                found_bytes += message.held_bytes
        # A peek ends early where messages are large, so only an empty one is the end.
        if not messages:
            return SearchPage(found, rows, None, False, looked_bytes)
        if rows >= rows_max or looked_bytes >= bytes_max:
            return SearchPage(found, rows, after_seq, False, looked_bytes)
    return SearchPage(found, rows, None, False, looked_bytes)


# ---- purge


async def purge(service: Service, queue: Queue, *, caller: Caller = NOBODY) -> None:
    """Remove every message sent so far, held or not; raises PurgeInProgress soon after the last purge."""
    await service.store.purge(queue, rest_ms=service.rules.rest_after_purge_ms, caller=caller)
    if service.owner is not None:
        return
    service.tallies["purged", queue.id] += 1
    if service.activity is not None:
        service.activity.attempts.emptied(queue.id)


async def rotate_receipt(
    service: Service, queue: Queue, handle: str, visibility_s: int, *, caller: Caller = NOBODY
) -> tuple[str, int]:
    """Hide the message for that many seconds from now (0 shows it): the receipt to go on with, and the engine time at which it
    dies. Raises ReceiptInvalid, and MessageGone for a dead receipt."""
    receipt = service.store.receipts.read(handle, queue.id)
    asked = [Extension(receipt, visibility_s)]
    outcomes = await service.store.rotate(queue, asked, caller=caller)
    if service.owner is None:
        note_rotations(service, queue, asked, outcomes, caller=caller)
    (rotated,) = outcomes
    if isinstance(rotated, VeilError):
        raise rotated
    new = rotated.receipt
    text = service.store.receipts.write(new.queue_id, new.seq, new.holder)
    return text, rotated.deadline_ms


def note_rotations(
    service: Service,
    queue: Queue,
    extensions: Sequence[Extension],
    outcomes: Sequence[Rotated | VeilError],
    *,
    caller: Caller,
) -> None:
    for (receipt, visibility_s, _), outcome in zip(extensions, outcomes, strict=True):
        if isinstance(outcome, VeilError) or receipt.delivery == WAITING:
            continue
        service.tallies["extended" if visibility_s else "released", queue.id] += 1
        if service.activity is None:
            continue
        if visibility_s:
            service.activity.attempts.changed(queue, [(receipt.seq, visibility_s, None)], caller)
        else:
            service.activity.attempts.ended(queue, (receipt.seq,), AttemptOutcome.GIVEN_BACK, caller)
