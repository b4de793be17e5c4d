"""Finding messages by what is in them, and showing a body."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlencode

from veil.console.queue_form import NumberField
from veil.console.web import Form
from veil.core.lease import State
from veil.core.limits import RETENTION_MAX_S
from veil.core.message import MessageAttribute, StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import first_seq_of
from veil.service.service import Service
from veil.service.turns import Turn

# ---- bodies and attributes

PREVIEW_CHARS: Final = 200
# Longer ones are shown as they were sent: to lay them out takes longer than a page may take.
_PRETTY_CHARS_MAX: Final = 50_000
_BINARY_SHOWN_BYTES: Final = 64


class Body(NamedTuple):
    """A body to look at."""

    preview: str  # its beginning, on one line
    text: str  # laid out if it is JSON, and cut if it is long
    is_json: bool
    is_cut: bool  # there is more than is shown


def show_preview(body: str) -> str:
    """Its beginning, on one line."""
    return " ".join(body[: PREVIEW_CHARS * 2].split())[:PREVIEW_CHARS]


def show_body(body: str, chars_max: int) -> Body:
    """The body laid out for reading; as it was sent where it is no JSON, or too large to lay out."""
    found = _pretty(body, chars_max)
    if found is None:
        return Body(show_preview(body), body[:chars_max], False, len(body) > chars_max)
    text, is_cut = found
    return Body(show_preview(body), text, True, is_cut)


def _pretty(body: str, chars_max: int) -> tuple[str, bool] | None:
    """The JSON laid out, and whether it was cut; None where it is none."""
    if len(body) > _PRETTY_CHARS_MAX or body.lstrip()[:1] not in ("{", "["):
        return None
    layout = _Layout(chars_max)
    try:
        # Numbers stay as they were written: 1.10 and 1e400 are not ours to round.
        document = json.loads(body, parse_float=_Written, parse_int=_Written, parse_constant=_Written)
        layout.add(document, "\n")
    except _Full:
        return "".join(layout.pieces)[:chars_max], True
    except (ValueError, RecursionError):
        return None
    return "".join(layout.pieces), False


class _Written(str):
    """A number, in the digits it was sent with."""

    __slots__ = ()


class _Full(Exception):
    """As much is laid out as is shown. What is nested deeply would come to many times its length otherwise."""


class _Layout:
    def __init__(self, chars_max: int) -> None:
        self.pieces: list[str] = []
        self._room = chars_max

    def add(self, value: object, newline: str) -> None:
        """Lay the value out behind what there is; raises _Full once there is enough."""
        inner = newline + "  "
        if isinstance(value, dict) and value:
            self._put("{")
            for place, (key, each) in enumerate(value.items()):
                self._put(f"{',' if place else ''}{inner}{_quoted(key)}: ")
                self.add(each, inner)
            self._put(newline + "}")
        elif isinstance(value, list) and value:
            self._put("[")
            for place, each in enumerate(value):
                self._put(f"{',' if place else ''}{inner}")
                self.add(each, inner)
            self._put(newline + "]")
        else:
            self._put(value if isinstance(value, _Written) else _quoted(value))

    def _put(self, text: str) -> None:
        self.pieces.append(text)
        self._room -= len(text)
        if self._room < 0:
            raise _Full


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def cut(text: str, chars_max: int) -> str:
    """The text, or its beginning and how long it is."""
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
ROWS_LOOKED_AT_MAX: Final = 5_000
_ROWS_AT_ONCE: Final = 500
# Messages may be large: a page ends early, and so does a look, before there is too much of them.
PAGE_BYTES_MAX: Final = 4 << 20
BYTES_LOOKED_AT_MAX: Final = 16 << 20
BYTES_AT_ONCE: Final = 1 << 20  # read without a pause
_SEQ_MAX: Final = (1 << 63) - 1
STATES: Final = {"visible": State.VISIBLE, "in-flight": State.IN_FLIGHT, "delayed": State.DELAYED}
_AGES: Final = {name: NumberField(name, "", "seconds", 0, RETENTION_MAX_S, "") for name in ("older", "newer")}
# A message's place says when it was sent, on the engine's clock; people filter by the wall's. The two part by what the wall
# clock was stepped since: so much is allowed for.
_STEP_MS: Final = 60_000


class Search(NamedTuple):
    """What is looked for; what the address of the page says."""

    text: str = ""
    attribute: str = ""
    receives: int = 0  # at least
    older: str = ""  # ages, as they were typed
    newer: str = ""
    state: str = ""
    after: int = 0  # the page begins behind the message of this seq
    problem: str = ""

    @property
    def is_filtered(self) -> bool:
        return self._replace(after=0, problem="") != Search()

    def query(self, **changed: object) -> str:
        """The query of the same page, or of one that differs in this."""
        search = self._replace(problem="", **changed)  # type: ignore[arg-type]
        return urlencode({name: value for name, value in search._asdict().items() if value})


class Looked(NamedTuple):
    """What was found, and how far the look came."""

    messages: list[StoredMessage]
    rows: int  # how many were looked at
    behind: int | None  # the seq to go on behind; None at the end of the queue
    is_full: bool  # the page is full: there may be more behind it


def read_search(query: Form) -> Search:
    """What the address asks for."""
    problem = ""
    for name, field in _AGES.items():
        try:
            if query.text(name):
                field.read(query.text(name))
        except ValueError as refusal:
            words = "Older than" if name == "older" else "Newer than"
            problem = f"{words} {refusal}, or one such as 5m, 12h, 4d."
    state = query.text("state")
    return Search(
        query.text("text"),
        query.text("attribute"),
        query.number("receives", 0, 0, 1_000_000),
        query.text("older"),
        query.text("newer"),
        state if state in STATES else "",
        query.number("after", 0, 0, _SEQ_MAX),
        problem,
    )


async def search_messages(
    service: Service,
    queue: Queue,
    search: Search,
    turn: Turn,
    *,
    page_rows: int = PAGE_ROWS,
    rows_max: int = ROWS_LOOKED_AT_MAX,
    bytes_max: int = BYTES_LOOKED_AT_MAX,
    enough: int | None = None,
) -> Looked:
    """The next messages that match: at most `rows_max` rows or `bytes_max` bytes are looked at, and none after `enough`."""
    if search.problem:
        return Looked([], 0, None, False)
    fits = _filter(search, service.clock.wall_ms())
    after = max(search.after, _first_seq(search, service.clock.now_ms()))
    found: list[StoredMessage] = []
    rows = found_bytes = looked_bytes = 0
    while enough is None or len(found) < enough:
        limit = min(_ROWS_AT_ONCE, rows_max - rows) if search.is_filtered else page_rows + 1
        messages = await service.store.peek(queue, after_seq=after, limit=limit, bytes_max=BYTES_AT_ONCE)
        for message in messages:
            await turn.pause()
            if len(found) == page_rows or found_bytes >= PAGE_BYTES_MAX:
                return Looked(found, rows, after, True)
            rows += 1
            looked_bytes += message.held_bytes
            after = message.seq
            if fits(message):
                found.append(message)
                found_bytes += message.held_bytes
        # A peek ends early where messages are large, so only an empty one is the end.
        if not messages:
            return Looked(found, rows, None, False)
        if rows >= rows_max or looked_bytes >= bytes_max:
            return Looked(found, rows, after, False)
    return Looked(found, rows, None, False)


def _first_seq(search: Search, now_ms: int) -> int:
    if not search.newer:
        return 0
    return first_seq_of(max(0, now_ms - _AGES["newer"].read(search.newer) * 1000 - _STEP_MS))


def _filter(search: Search, wall_ms: int) -> Callable[[StoredMessage], bool]:
    tests: list[Callable[[StoredMessage], bool]] = []
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
