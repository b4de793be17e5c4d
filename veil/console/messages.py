"""Finding messages by what is in them, and showing a body."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from veil.console.web import Form, FormRefused, NumberField
from veil.core.lease import State
from veil.core.limits import RETENTION_MAX_S
from veil.core.message import MessageAttribute, StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import SEQ_MAX, first_seq_of
from veil.core.text import seq_number
from veil.service import messages as service_messages
from veil.service.messages import SEARCH_BYTES_MAX, SEARCH_ROWS_MAX, SearchPage
from veil.service.service import Service
from veil.service.time_slices import TimeSlice

# ---- bodies and attributes

PREVIEW_CHARS: Final = 200
# Longer ones are shown as they were sent: to lay them out takes longer than a page may take.
_PRETTY_CHARS_MAX: Final = 50_000
_PRETTY_DEPTH_MAX: Final = 50
_BRACKET: Final = re.compile(r"[\[\]{}]")
_BINARY_SHOWN_BYTES: Final = 64


class Body(NamedTuple):
    text: str  # laid out if it is JSON, and cut if it is long
    is_json: bool
    is_cut: bool  # there is more than is shown


def show_preview(body: str) -> str:
    return " ".join(body[: PREVIEW_CHARS * 2].split())[:PREVIEW_CHARS]


def show_body(body: str, chars_max: int) -> Body:
    """The body laid out for reading; as it was sent where it is no JSON, or too large or too deep to lay out."""
    text = _pretty(body)
    shown = body if text is None else text
    return Body(shown[:chars_max], text is not None, len(shown) > chars_max)


def _pretty(body: str) -> str | None:
    """The JSON laid out, every number and name in it as it was written; None where it is none."""
    if len(body) > _PRETTY_CHARS_MAX or body.lstrip()[:1] not in ("{", "["):
        return None
    depth = deepest = 0
    for sign in _BRACKET.findall(body):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > _PRETTY_DEPTH_MAX:  # each line would be indented by thousands of blanks
        return None
    try:
        return msgspec.json.format(body, indent=2)
    except (ValueError, RecursionError):
        return None


def cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}… ({len(text):,} characters)"


def attributes_of(message: StoredMessage, chars_max: int) -> list[tuple[str, str, str]]:
    """Name, data type and value of each attribute, values cut; bytes as hexadecimal digits, the first of them."""
    return [
        (name, attribute.data_type, _value(attribute, chars_max))
        for name, attribute in (message.attributes or {}).items()
    ]


def _value(attribute: MessageAttribute, chars_max: int) -> str:
    if isinstance(attribute.value, str):
        return cut(attribute.value, chars_max)
    shown = attribute.value[:_BINARY_SHOWN_BYTES].hex(" ")
    return (
        shown
        if len(attribute.value) <= _BINARY_SHOWN_BYTES
        else f"{shown} … ({len(attribute.value):,} bytes)"
    )


# ---- search

PAGE_ROWS: Final = 50
STATES: Final = {state.label.replace(" ", "-"): state for state in State}
_AGES: Final = {
    "older": NumberField("older", "Older than", "seconds", 0, RETENTION_MAX_S),
    "newer": NumberField("newer", "Newer than", "seconds", 0, RETENTION_MAX_S),
}
# A message's place says when it was sent, on the engine's clock; people filter by the wall's. The two part by what the wall
# clock was stepped since: so much is allowed for.
_STEP_MS: Final = 60_000


def chosen_of(letters: Sequence[str]) -> list[tuple[int, str]]:
    """Key and id of each ticked letter; what is no such pair is passed over."""
    pairs = (text.partition(":") for text in letters)
    numbered = ((seq_number(seq), message_id[:128]) for seq, _, message_id in pairs)
    return [(seq, message_id) for seq, message_id in numbered if seq is not None and message_id]


class Search(NamedTuple):
    """What is looked for; what the address of the page says."""

    text: str = ""
    attribute: str = ""
    receives: int = 0  # at least
    older: str = ""  # ages, as they were typed
    newer: str = ""
    state: str = ""
    id: str = ""  # how the message id begins
    after: int = 0  # the page begins behind the message of this seq
    problem: str = ""

    @property
    def is_filtered(self) -> bool:
        return self._replace(after=0, problem="") != Search()


def read_search(query: Form) -> Search:
    problem = ""
    for field in _AGES.values():
        try:
            field.read_optional(query)
        except FormRefused as refusal:
            problem = f"{field.label} {refusal.sentence}, or one such as 5m, 12h, 4d."
    state = query.text("state")
    return Search(
        query.text("text"),
        query.text("attribute"),
        query.number("receives", 0, 0, 1_000_000),
        query.text("older"),
        query.text("newer"),
        state if state in STATES else "",
        query.text("id"),
        query.number("after", 0, 0, SEQ_MAX),
        problem,
    )


async def search_messages(
    service: Service,
    queue: Queue,
    search: Search,
    time_slice: TimeSlice,
    *,
    page_rows: int = PAGE_ROWS,
    rows_max: int = SEARCH_ROWS_MAX,
    bytes_max: int = SEARCH_BYTES_MAX,
    enough: int | None = None,
) -> SearchPage:
    """The next messages that match: at most `rows_max` rows or `bytes_max` bytes are looked at, and none after `enough`."""
    if search.problem:
        return SearchPage([], 0, None, False)
    return await service_messages.search(
        service,
        queue,
        _filter(search, service.clock.wall_ms()) if search.is_filtered else None,
        time_slice,
        after_seq=max(search.after, _first_seq(search, service.clock.now_ms())),
        limit=page_rows,
        rows_max=rows_max,
        bytes_max=bytes_max,
        enough=enough,
    )


def _first_seq(search: Search, now_ms: int) -> int:
    if not search.newer:
        return 0
    return first_seq_of(max(0, now_ms - _AGES["newer"].read(search.newer) * 1000 - _STEP_MS))


def _filter(search: Search, wall_ms: int) -> Callable[[StoredMessage], bool]:
    tests: list[Callable[[StoredMessage], bool]] = []
    if search.id:
        tests.append(lambda message: message.message_id.startswith(search.id))
    if search.text:
        text = search.text.casefold()
        tests.append(lambda message: text in message.body.casefold())
    if search.attribute:
        tests.append(_has_attribute(search.attribute))
    if search.receives:
        tests.append(lambda message: message.receive_count >= search.receives)
    if search.older:
        before_ms = wall_ms - _AGES["older"].read(search.older) * 1000
        tests.append(lambda message: message.sent_wall_ms <= before_ms)
    if search.newer:
        after_ms = wall_ms - _AGES["newer"].read(search.newer) * 1000
        tests.append(lambda message: message.sent_wall_ms >= after_ms)
    if search.state:
        state = STATES[search.state]
        tests.append(lambda message: message.state == state)
    return lambda message: all(test(message) for test in tests)


def _has_attribute(wanted: str) -> Callable[[StoredMessage], bool]:
    name, equals, value = wanted.partition("=")
    name, value = name.strip(), value.strip()

    def test(message: StoredMessage) -> bool:
        attribute = (message.attributes or {}).get(name)
        return attribute is not None and (not equals or attribute.value in (value, value.encode()))

    return test
