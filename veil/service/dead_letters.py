"""A dead letter as people sort them: its source, its type, why it is here, and whether it was redriven before.

The server itself knows the source of what it dead-lettered. The reason is written on the message by the consumer that gave
it up, as attributes (`veil.error_type`, `veil.reason`, …: the consumer's `dead_letter` module); a message that was merely
received too often has none, and of it the journal tells what its attempts ended in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from veil.core.decide import home_of
from veil.core.message import (
    ERROR_TYPE,
    HANDLER,
    MESSAGE_ID,
    REASON,
    RECEIVE_COUNT,
    REDRIVEN_FROM,
    MessageAttribute,
    StoredMessage,
)
from veil.core.message_rules import spared_for_mark
from veil.core.queue import Chosen, ContentChange, Queue, QueueKey
from veil.core.text import fingerprint, whole_number
from veil.journal.attempts import JournalLookup
from veil.service.time_slices import BYTES_AT_ONCE, TimeSlice
from veil.stores.store import Store

_COUNT_DIGITS_MAX: Final = 9
# Whoever sends a message may write a megabyte into each of these.
_TEXT_CHARS_MAX: Final = 500
_REASON_CHARS_MAX: Final = 4_000


class Letter(NamedTuple):
    message: StoredMessage
    source: QueueKey | None
    is_known_to_server: bool  # the server dead-lettered it, and so knows its source
    message_type: str | None
    error_type: str | None
    reason: str | None
    handler: str | None
    first_id: str
    redriven_from: str | None
    receives: int

    @property
    def fingerprint(self) -> str:
        """The reason with what differs from one message to the next masked."""
        return _fingerprint(self.reason) if self.reason else ""

    @property
    def group(self) -> str:
        """What letters of one source, type and reason have in common: twelve hexadecimal digits."""
        keys = (self.source and self.source.name, self.message_type, self.error_type, self.fingerprint)
        return sha256(repr(keys).encode("utf-8", "replace")).hexdigest()[:12]

    @property
    def snippet(self) -> str:
        """The beginning of the body, on one line."""
        return " ".join(self.message.body[:400].split())[:160]


def read_letter(queue: Queue, message: StoredMessage) -> Letter:
    attributes = message.attributes or {}
    receives = whole_number(_text(attributes, RECEIVE_COUNT), _COUNT_DIGITS_MAX)
    return Letter(
        message,
        home_of(message, queue.key),
        message.dead_letter_source is not None,
        message.message_type,
        _text(attributes, ERROR_TYPE),
        _text(attributes, REASON, _REASON_CHARS_MAX),
        _text(attributes, HANDLER),
        _text(attributes, MESSAGE_ID) or message.message_id,
        _text(attributes, REDRIVEN_FROM),
        message.receive_count if receives is None else receives,
    )


def _text(
    attributes: Mapping[str, MessageAttribute], name: str, chars_max: int = _TEXT_CHARS_MAX
) -> str | None:
    found = attributes.get(name)
    return found.value[:chars_max] if found is not None and isinstance(found.value, str) else None


# Masking takes a hundred times as long as reading; letters of one error mostly have a few reasons.
_fingerprint: Final = lru_cache(maxsize=2_000)(fingerprint)


class LetterFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which dead letters; every field that is given must match."""

    text: str = ""  # in the body, the reason or an attribute, whatever the case
    source: str = ""
    type: str = ""
    error: str = ""  # the error's type
    group: str = ""
    redriven: str = ""  # yes, no, or either
    reason: str = ""  # of the group: for people, nothing is compared with it

    def __bool__(self) -> bool:
        return any((self.text, self.source, self.type, self.error, self.group, self.redriven))

    def matches(self, letter: Letter, last_error: str | None = None) -> bool:
        """Whether the letter is one of these; `last_error` is what the journal tells of one that has none written on it."""
        if self.source and (letter.source is None or letter.source.name != self.source):
            return False
        if self.type and letter.message_type != self.type:
            return False
        if self.error and (letter.error_type or last_error) != self.error:
            return False
        if self.redriven and (letter.redriven_from is not None) != (self.redriven == "yes"):
            return False
        if self.group and letter.group != self.group:
            return False
        return not self.text or _mentions(letter, self.text.lower())

    def words(self) -> str:
        said = [
            f"of source {self.source}" if self.source else "",
            f"of type {self.type}" if self.type else "",
            f"with error {self.error}" if self.error else "",
            f"with the reason {self.reason!r}" if self.group else "",
            {"yes": "redriven before", "no": "not redriven before"}.get(self.redriven, ""),
            f"with {self.text!r} in body, reason or attributes" if self.text else "",
        ]
        return ", ".join(each for each in said if each) or "all"


def _mentions(letter: Letter, text: str) -> bool:
    if text in letter.message.body.lower() or text in letter.message.message_id or text == letter.first_id:
        return True
    return any(
        text in name.lower() or (isinstance(attribute.value, str) and text in attribute.value.lower())
        for name, attribute in (letter.message.attributes or {}).items()
    )


# Messages of which the journal is asked together: a look into it is bounded in events.
_ASKED_AT_ONCE: Final = 64
_ROWS_AT_ONCE: Final = 250


async def look_through(
    store: Store,
    queue: Queue,
    wanted: LetterFilter,
    lives: JournalLookup | None,
    time_slice: TimeSlice,
    *,
    after_seq: int,
    up_to_seq: int | None = None,
) -> AsyncIterator[tuple[Letter, bool]]:
    """Each dead letter between those keys, the oldest first, and whether the filter lets it through."""
    limit = _ASKED_AT_ONCE if wanted.error else _ROWS_AT_ONCE
    while messages := await store.peek(
        queue, after_seq=after_seq, up_to_seq=up_to_seq, limit=limit, bytes_max=BYTES_AT_ONCE
    ):
        letters: list[Letter] = []
        for message in messages:
            await time_slice.yield_if_spent()
            letters.append(read_letter(queue, message))
        errors = await _last_errors(wanted, letters, lives)
        for letter in letters:
            await time_slice.yield_if_spent()
            after_seq = letter.message.seq
            yield letter, wanted.matches(letter, errors.get(after_seq))


async def _last_errors(
    wanted: LetterFilter, letters: Sequence[Letter], lives: JournalLookup | None
) -> dict[int, str]:
    """By key, the type of the last error of those letters whose match depends on it."""
    if not wanted.error or lives is None:
        return {}
    asked = {
        each.message.seq for each in letters if not each.error_type and wanted.matches(each, wanted.error)
    }
    return {seq: error.reported.error_type or "" for seq, error in (await lives.errors(asked)).items()}


def write_filter(given: LetterFilter) -> str:
    return msgspec.json.encode(given).decode()


def read_filter(text: str) -> LetterFilter:
    return msgspec.json.decode(text, type=LetterFilter)


# ---- redriving


def to_chosen(letter: Letter, destination: QueueKey | None, type_attributes: Sequence[str]) -> Chosen:
    """The letter as a store is to redrive it: marked, and to where its consumer says where the server does not know."""
    if destination is None and not letter.is_known_to_server:
        destination = letter.source  # None: the store refuses, and says why
    message = letter.message
    change = ContentChange(type_attributes=type_attributes, is_marked=True)
    return Chosen(message.seq, message.message_id, destination, change)


def with_room_for_mark(message: StoredMessage) -> dict[str, MessageAttribute] | None:
    """The message's attributes with one place free for the mark of a redrive; None where they can stay as they are."""
    attributes = message.attributes or {}
    spare = spared_for_mark(attributes)
    return {name: value for name, value in attributes.items() if name != spare} if spare else None


def has_room_for_mark(message: StoredMessage) -> bool:
    return spared_for_mark(message.attributes or {}) is not None
