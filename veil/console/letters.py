"""A dead letter as people sort them: where it came from, what it is, why it is here, and whether it was redriven before.

What the server itself knows is the source. The reason is written on the message by the consumer that gave it up, as
attributes (`veil.error_type`, `veil.reason`, …: the consumer's `dead_letter` module); a message that was merely received
too often bears none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import urlencode

from veil.console.messages import BYTES_AT_ONCE, BYTES_LOOKED_AT_MAX
from veil.console.turns import Turn
from veil.console.web import Form
from veil.core.errors import ArnRefused
from veil.core.limits import ATTRIBUTES_MAX
from veil.core.message import (
    ERROR_TYPE,
    FIRST_RECEIVED_AT,
    HANDLER,
    LAST_RECEIVED_AT,
    MESSAGE_ID,
    REASON,
    RECEIVE_COUNT,
    SOURCE_QUEUE,
    TRACEBACK,
    MessageAttribute,
    StoredMessage,
)
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.core.text import fingerprint, seq_number, whole_number
from veil.service.moves import REDRIVEN_FROM
from veil.service.service import Service

# What a consumer writes anew whenever it gives a message up; the least useful first.
_FOR_A_MARK: Final = (LAST_RECEIVED_AT, FIRST_RECEIVED_AT, TRACEBACK, HANDLER)

_COUNT_DIGITS_MAX: Final = 9
# Whoever sends a message may write a megabyte into each of these.
_TEXT_CHARS_MAX: Final = 500
_REASON_CHARS_MAX: Final = 4_000


class Letter(NamedTuple):
    """One dead letter."""

    message: StoredMessage
    source: QueueKey | None
    is_known_to_server: bool  # a move task finds its source too
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


class LetterWish(NamedTuple):
    """Which dead letters; what the address of the page says."""

    text: str = ""  # in the body, the reason or an attribute, whatever the case
    source: str = ""
    type: str = ""
    group: str = ""
    redriven: str = ""  # yes, no, or either
    after: int = 0

    @property
    def is_filtered(self) -> bool:
        return any((self.text, self.source, self.type, self.group, self.redriven))

    def matches(self, letter: Letter) -> bool:
        """Whether the letter is one of these."""
        if self.source and (letter.source is None or letter.source.name != self.source):
            return False
        if self.type and letter.message_type != self.type:
            return False
        if self.redriven and (letter.redriven_from is not None) != (self.redriven == "yes"):
            return False
        if self.group and letter.group != self.group:
            return False
        return not self.text or _mentions(letter, self.text.lower())

    def query(self, **changed: object) -> str:
        """The query of the same page, or of one that differs in this."""
        wish = self._replace(**changed)  # type: ignore[arg-type]
        return urlencode({name: value for name, value in wish._asdict().items() if value})

    @property
    def fields(self) -> list[tuple[str, str]]:
        """What a form must carry to mean the same letters."""
        return [(name, str(value)) for name, value in self._asdict().items() if value and name != "after"]

    def words(self, reason: str = "") -> str:
        """The filter as a sentence would say it; `reason` is that of the group."""
        said = [
            f"of source {self.source}" if self.source else "",
            f"of type {self.type}" if self.type else "",
            f"with the reason {reason!r}" if self.group else "",
            {"yes": "redriven before", "no": "not redriven before"}.get(self.redriven, ""),
            f"with {self.text!r} in body, reason or attributes" if self.text else "",
        ]
        return ", ".join(each for each in said if each) or "all"


def read_wish(form: Form) -> LetterWish:
    """What a query or a form asks for."""
    redriven = form.text("redriven")
    return LetterWish(
        form.text("text")[:200],
        form.text("source")[:100],
        form.text("type")[:256],
        form.text("group")[:12],
        redriven if redriven in ("yes", "no") else "",
        form.number("after", 0, 0, (1 << 63) - 1),
    )


def read_letter(queue: Queue, message: StoredMessage) -> Letter:
    """What the message tells about itself."""
    attributes = message.attributes or {}
    reason = _text(attributes, REASON, _REASON_CHARS_MAX)
    source = _source(queue, message)
    receives = whole_number(_text(attributes, RECEIVE_COUNT), _COUNT_DIGITS_MAX)
    return Letter(
        message,
        source,
        message.dead_letter_source is not None,
        message.message_type,
        _text(attributes, ERROR_TYPE),
        reason,
        _text(attributes, HANDLER),
        _text(attributes, MESSAGE_ID) or message.message_id,
        _text(attributes, REDRIVEN_FROM),
        message.receive_count if receives is None else receives,
    )


def with_room_for_mark(message: StoredMessage) -> dict[str, MessageAttribute] | None:
    """The message's attributes with one place free for the mark of a redrive; None where they can stay as they are."""
    attributes = message.attributes or {}
    if len(attributes) < ATTRIBUTES_MAX or REDRIVEN_FROM in attributes:
        return None
    spare = next((name for name in _FOR_A_MARK if name in attributes), None)
    if spare is None:
        return None
    return {name: value for name, value in attributes.items() if name != spare}


def has_room_for_mark(message: StoredMessage) -> bool:
    """Whether the mark of a redrive finds a place among the attributes."""
    attributes = message.attributes or {}
    return (
        len(attributes) < ATTRIBUTES_MAX
        or REDRIVEN_FROM in attributes
        or any(name in attributes for name in _FOR_A_MARK)
    )


def _source(queue: Queue, message: StoredMessage) -> QueueKey | None:
    if message.dead_letter_source is not None:
        return parse_arn(message.dead_letter_source)
    text = _text(message.attributes or {}, SOURCE_QUEUE)
    if text is None:
        return None
    try:
        key = parse_arn(text)
    except ArnRefused:
        # A name or a URL: the queue's name stands last.
        name = text.rstrip("/").rsplit("/", 1)[-1]
        return queue.key._replace(name=name) if name else None
    # The sender of a message may write anything there: it leads to no other account.
    return key if key.account == queue.key.account else None


def _text(
    attributes: Mapping[str, MessageAttribute], name: str, chars_max: int = _TEXT_CHARS_MAX
) -> str | None:
    found = attributes.get(name)
    return found.value[:chars_max] if found is not None and isinstance(found.value, str) else None


@lru_cache(maxsize=2_000)
def _fingerprint(reason: str) -> str:
    # Masking takes a hundred times as long as reading; letters of one error mostly have a few reasons.
    return fingerprint(reason)


def _mentions(letter: Letter, text: str) -> bool:
    if text in letter.message.body.lower() or text in letter.message.message_id or text == letter.first_id:
        return True
    return any(
        text in name.lower() or (isinstance(attribute.value, str) and text in attribute.value.lower())
        for name, attribute in (letter.message.attributes or {}).items()
    )


# ---- Looks at the dead letters of a queue: a page of those that match, and what they are as groups; nothing is received.

PAGE_ROWS: Final = 50
ROWS_LOOKED_AT_MAX: Final = 5_000
GROUPED_ROWS: Final = 1_000  # unless somebody asks for more: the page shall be there at once
GROUPED_ROWS_MAX: Final = 50_000
GROUPED_BYTES_MAX: Final = 64 << 20  # where more is asked for than usual
_ROWS_AT_ONCE: Final = 250
GROUPS_SHOWN_MAX: Final = 50
GROUPS_MAX: Final = 2_000  # each keeps an example
_CHOICES_MAX: Final = 200


class LetterPage(NamedTuple):
    """Some dead letters, and how far the look came."""

    letters: list[Letter]
    rows: int
    behind: int | None  # the key to go on behind; None at the end of the queue
    is_full: bool


@dataclass(slots=True)
class LetterGroup:
    """Dead letters of one source, type and reason."""

    example: Letter
    count: int = 0
    redriven: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0

    def take(self, letter: Letter) -> None:
        """One more."""
        self.count += 1
        self.redriven += letter.redriven_from is not None
        self.first_ms = min(self.first_ms, letter.message.sent_wall_ms)
        self.last_ms = max(self.last_ms, letter.message.sent_wall_ms)


@dataclass(slots=True)
class LetterGroups:
    """What the first rows of a queue are, the most frequent first; bounded in rows and in bytes."""

    groups: list[LetterGroup] = field(default_factory=list)
    by_key: dict[str, LetterGroup] = field(default_factory=dict)
    rows: int = 0
    matching: int = 0  # of those rows, the ones that the filter lets through
    movable: int = 0  # of the matching ones, those whose source the server itself knows
    sourceless: int = 0  # of the matching ones, those that nobody knows the source of
    ungrouped: int = 0
    is_all: bool = True

    def take(self, letter: Letter) -> None:
        """One more."""
        self.rows += 1
        key = letter.group
        group = self.by_key.get(key)
        if group is None:
            # Of thousands of groups the first are told apart; what else there is shows as one number.
            if len(self.groups) >= GROUPS_MAX:
                self.ungrouped += 1
                return
            group = self.by_key[key] = LetterGroup(letter)
            self.groups.append(group)
        group.take(letter)

    @property
    def sources(self) -> list[str]:
        names = {each.example.source.name for each in self.groups if each.example.source is not None}
        return sorted(names)[:_CHOICES_MAX]

    @property
    def types(self) -> list[str]:
        return sorted({each.example.message_type for each in self.groups if each.example.message_type})[
            :_CHOICES_MAX
        ]


async def letter_page(service: Service, queue: Queue, wish: LetterWish, turn: Turn) -> LetterPage:
    """The next dead letters that match, behind the wish's `after`."""
    found: list[Letter] = []
    rows, looked_bytes, after = 0, 0, wish.after
    while rows < ROWS_LOOKED_AT_MAX and looked_bytes < BYTES_LOOKED_AT_MAX:
        messages = await _peek(service, queue, after)
        if not messages:
            return LetterPage(found, rows, None, False)
        for message in messages:
            await turn.pause()
            rows += 1
            looked_bytes += message.held_bytes
            after = message.seq
            letter = read_letter(queue, message)
            if wish.matches(letter):
                found.append(letter)
                if len(found) == PAGE_ROWS:
                    return LetterPage(found, rows, after, True)
    return LetterPage(found, rows, after, False)


async def letter_groups(
    service: Service, queue: Queue, wish: LetterWish, turn: Turn, rows_max: int = ROWS_LOOKED_AT_MAX
) -> LetterGroups:
    """The first rows of the queue as groups, and how many of them match."""
    told = LetterGroups()
    bytes_max = BYTES_LOOKED_AT_MAX if rows_max <= ROWS_LOOKED_AT_MAX else GROUPED_BYTES_MAX
    looked_bytes = after = 0
    while messages := await _peek(service, queue, after):
        if told.rows >= rows_max or looked_bytes >= bytes_max:
            told.is_all = False
            break
        for message in messages:
            await turn.pause()
            looked_bytes += message.held_bytes
            letter = read_letter(queue, message)
            told.take(letter)
            if wish.matches(letter):
                told.matching += 1
                told.movable += letter.is_known_to_server
                told.sourceless += letter.source is None
        after = messages[-1].seq
    told.groups.sort(key=lambda each: (-each.count, each.first_ms))
    return told


async def _peek(service: Service, queue: Queue, after: int) -> list[StoredMessage]:
    return await service.store.peek(queue, after_seq=after, limit=_ROWS_AT_ONCE, bytes_max=BYTES_AT_ONCE)


def chosen_of(letters: Sequence[str]) -> list[tuple[int, str]]:
    """Key and id of each ticked letter; what is no such pair is passed over."""
    pairs = (text.partition(":") for text in letters)
    numbered = ((seq_number(seq), message_id[:128]) for seq, _, message_id in pairs)
    return [(seq, message_id) for seq, message_id in numbered if seq is not None and message_id]
