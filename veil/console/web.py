"""HTTP for the console: forms, cookies, roles, refusals, and the table of routes."""

from __future__ import annotations

import asyncio
import re
from codecs import iterdecode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from veil.core.queue import QueueKey
from veil.core.text import length_s, read_pairs, whole_number
from veil.wire.exchange import Response
from veil.words import length

if TYPE_CHECKING:
    from veil.console.visit import Visit

# ---- refusals


class Refused(Exception):
    """The request is not answered with what it asked for; the text is for people."""

    status = 400
    title = ""  # of the page that says so; empty: whether a change was asked for decides

    def __init_subclass__(cls, status: int, title: str = "") -> None:
        cls.status, cls.title = status, title

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class NotFound(Refused, status=404, title="Not found"):
    """There is no such page, queue or message."""


class Forbidden(Refused, status=403, title="Not permitted"):
    """The visitor's role, token or address does not permit it."""


class TooMany(Refused, status=429, title="Too many requests"):
    """Asked too often, or too many at once."""

    def __init__(self, sentence: str, retry_after_s: int = 1) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class StoreUnanswered(Refused, status=503, title="Server in trouble"):
    """The store did not answer: whether a change was made is not known."""


class FormRefused(Refused, status=422):
    """What stands in a field cannot be used; the sentence is shown beside it."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


# ---- requests and answers

HTML = "text/html; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"


def html(text: str, status: int = 200) -> Response:
    return Response(status, text.encode("utf-8", "replace"), HTML)


def plain(status: int, sentence: str, *headers: tuple[str, str]) -> Response:
    return Response(status, sentence.encode() + b"\n", headers=headers)


def see_other(place: str, *headers: tuple[str, str]) -> Response:
    return Response(303, headers=(("Location", place), *headers))


# ---- cookies

_PORT = re.compile(r":([0-9]{1,5})\Z", re.ASCII)


def read_cookies(header: str) -> dict[str, str]:
    """The cookies of a request; of a name that comes twice, the first."""
    cookies: dict[str, str] = {}
    for pair in header.split(";"):
        name, equals, value = pair.strip().partition("=")
        if equals:
            cookies.setdefault(name, value)
    return cookies


def cookie_name(headers: Mapping[str, str]) -> str:
    """The name of this server's cookie: cookies do not know ports, and a machine may have several servers."""
    port = _PORT.search(headers.get("host", ""))
    return f"veil_console_{port[1]}" if port else "veil_console"


def session_cookie(headers: Mapping[str, str]) -> str:
    """The value of this server's cookie in a request; empty where there is none."""
    return read_cookies(headers.get("cookie", "")).get(cookie_name(headers), "")


def set_cookie(name: str, value: str, *, secure: bool) -> tuple[str, str]:
    """The header that sets a cookie until the browser is closed; an empty value takes it away."""
    text = f"{name}={value}; Path=/console; HttpOnly; SameSite=Strict"
    if not value:
        text += "; Max-Age=0"
    return "Set-Cookie", text + ("; Secure" if secure else "")


# ---- forms

_FIELDS_MAX = 2_000
_FIELD_BYTES_MAX = 2 << 20  # a message has at most half of it; a page shows again what was filled in
_CONTENT_TYPE_CHARS_MAX = 300
_PART_HEAD_BYTES_MAX = 2_000
_PIECE_BYTES = 64 * 1024
_BOUNDARY = re.compile(r'boundary="?([0-9A-Za-z\'()+_,./:=? -]{1,70})"?\s*(?:;|\Z)', re.ASCII)
_NAME = re.compile(rb'[;\s]name="([^"\r\n]*)"', re.IGNORECASE)
_FILENAME = re.compile(rb'[;\s]filename="([^"\r\n]*)"', re.IGNORECASE)


class Upload(NamedTuple):
    """A file that was chosen in a form."""

    name: str
    content: bytes


class Form:
    """The fields of a query or of a posted form."""

    def __init__(self, pairs: list[tuple[str, str]], files: dict[str, Upload] | None = None) -> None:
        self.pairs = pairs
        self.files = files or {}
        self._first: dict[str, str] = {}
        for name, value in pairs:
            self._first.setdefault(name, value)

    def text(self, name: str, default: str = "") -> str:
        """The field's value, without blanks around it."""
        return self._first.get(name, default).strip()

    def raw(self, name: str, default: str = "") -> str:
        """The field's value as it was typed; browsers send line breaks as CR LF, here they are LF."""
        return self._first.get(name, default).replace("\r\n", "\n")

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.pairs if each == name]

    def checked(self, name: str) -> bool:
        return name in self._first

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number within bounds; anything else is the default. For queries, where nobody is told of mistakes."""
        number = whole_number(self.text(name), 20)
        return default if number is None else min(max(number, low), high)


class NumberField(NamedTuple):
    """A field that takes a number: a length of time, a size, or a count."""

    name: str
    label: str
    unit: str
    low: int
    high: int

    def read(self, text: str) -> int:
        """The number; raises FormRefused."""
        number = length_s(text) if self.unit == "seconds" else whole_number(text)
        if number is None or not self.low <= number <= self.high:
            words = f" ({length(self.high)})" if self.unit == "seconds" and self.high > 60 else ""
            expected = f"a whole number of {self.unit} from {self.low:,} to {self.high:,}{words}"
            raise FormRefused(
                self.name, f"{text[:40]!r}: expected {expected}" if text else f"Enter {expected}"
            )
        return number

    def read_optional(self, form: Form) -> int | None:
        """The number in the form's field, None where that is empty; raises FormRefused."""
        text = form.text(self.name)
        return self.read(text) if text else None


def read_query(query: str) -> Form:
    """The fields of a query, which is no longer than the head of a request may be."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="replace")
    except ValueError:
        raise Refused(f"the query has too many fields: expected at most {_FIELDS_MAX}") from None
    return Form(pairs)


async def read_form(content_type: str, body: bytes) -> Form:
    """The fields of a posted form, of either encoding; in a thread, since a large one takes a while."""
    return await asyncio.to_thread(_read_form, content_type, body)


def _read_form(content_type: str, body: bytes) -> Form:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _read_multipart(content_type[:_CONTENT_TYPE_CHARS_MAX], body)
    if kind != "application/x-www-form-urlencoded":
        raise Refused(f"content type {content_type[:80]!r}: expected a form")
    try:
        pairs = read_pairs(body, _FIELDS_MAX)
    except ValueError as expected:
        raise Refused(f"the form is not readable: {expected}") from None
    return Form([(_text(name), _text(value)) for name, value in pairs])


def _text(raw: bytes) -> str:
    """The text, a piece at a time: bytes that are none take the decoder long, and it keeps other threads waiting."""
    if len(raw) > _FIELD_BYTES_MAX:
        raise Refused(f"a field has {len(raw)} bytes: expected at most {_FIELD_BYTES_MAX}")
    # Surrogates cannot be stored or shown: what is no UTF-8 comes in with replacement characters.
    pieces = (raw[at : at + _PIECE_BYTES] for at in range(0, len(raw), _PIECE_BYTES))
    return "".join(iterdecode(pieces, "utf-8", "replace"))


def _read_multipart(content_type: str, body: bytes) -> Form:
    """The parts of a form with files, cut apart at the boundary; the parser for mail takes seconds for a large one."""
    found = _BOUNDARY.search(content_type)
    edge = b"--" + found[1].encode("ascii", "replace") if found else b""
    pieces = body.split(b"\r\n" + edge, _FIELDS_MAX + 1) if edge and body.startswith(edge) else []
    if len(pieces) > _FIELDS_MAX:
        raise Refused(f"the form has too many fields: expected at most {_FIELDS_MAX}")
    if not pieces or not pieces[-1].startswith(b"--"):
        raise Refused("the form is not readable: expected parts between boundaries")
    pieces[0] = pieces[0].removeprefix(edge)
    form = Form([])
    for piece in pieces[:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        name = _NAME.search(head) if len(head) <= _PART_HEAD_BYTES_MAX else None
        if not blank or name is None:
            raise Refused("the form is not readable: expected a name for each part")
        named, filename = _shown(name[1]), _FILENAME.search(head)
        if filename is not None:
            form.files[named] = Upload(_shown(filename[1])[:255], content)
        else:
            form.pairs.append((named, _text(content)))
    return Form(form.pairs, form.files)


def _shown(quoted: bytes) -> str:
    # Browsers escape no more than these three in the names of fields and files.
    text = quoted.decode("utf-8", "replace")
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


# ---- roles


class Role(IntEnum):
    """Each may do what the lower ones may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


# ---- routes

ROOT = "/console"

ViewValues = Callable[["Visit"], Awaitable[Mapping[str, Any]]]
H = TypeVar("H", bound=Callable[["Visit"], Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class Route:
    """One path and what answers it."""

    method: str  # GET, POST, or LIVE: a GET that is answered with a stream
    parts: tuple[str, ...]  # `{name}` stands for any one part
    needs: Role | None  # None: open to who is not logged in
    handler: Callable[[Visit], Awaitable[Any]]  # gives a Response; of a stream its fragments by name

    @property
    def is_live(self) -> bool:
        return self.method == "LIVE"


_routes: list[Route] = []


def page(path: str, *, needs: Role | None = Role.VIEWER) -> Callable[[H], H]:
    """What answers a GET of the path, below /console; it changes nothing."""
    return _added("GET", path, needs)


def post(path: str, *, needs: Role | None) -> Callable[[H], H]:
    """What answers a POST of the path: its token and the visitor's role have been checked."""
    return _added("POST", path, needs)


def live(path: str, *, needs: Role = Role.VIEWER) -> Callable[[H], H]:
    """What renders the fragments of a stream at the path, once a second while somebody looks."""
    return _added("LIVE", path, needs)


def view(
    path: str, template: str, *, title: str = "", live_parts: Mapping[str, str], needs: Role = Role.VIEWER
) -> Callable[[ViewValues], Callable[[Visit], Awaitable[Response]]]:
    """A page and its stream, from the same values: the stream draws the parts again, each by the id of its element. The values
    may have another title; without parts there is no stream."""

    def put(values: ViewValues) -> Callable[[Visit], Awaitable[Response]]:
        async def shown(visit: Visit) -> Response:
            return await visit.page(template, **{"title": title, **await values(visit)})

        async def drawn(visit: Visit) -> Mapping[str, str]:
            found = await values(visit)
            return {name: await visit.fragment(part, **found) for name, part in live_parts.items()}

        page(path, needs=needs)(shown)
        if live_parts:
            live(f"{path}/live", needs=needs)(drawn)
        return shown

    return put


def _added(method: str, path: str, needs: Role | None) -> Callable[[H], H]:
    def put(handler: H) -> H:
        _routes.append(Route(method, tuple(part for part in path.split("/") if part), needs, handler))
        return handler

    return put


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of a path below /console and the parts that it leaves open."""
    parts = [unquote(part) for part in path.split("/") if part]
    kinds = ("GET", "LIVE") if method in ("GET", "HEAD") else (method,)
    fitting = [
        (route, {name[1:-1]: part for name, part in zip(route.parts, parts, strict=True) if name[0] == "{"})
        for route in _routes
        if route.method in kinds
        and len(route.parts) == len(parts)
        and all(name[0] == "{" or name == part for name, part in zip(route.parts, parts, strict=True))
    ]
    # Fixed words before open ones: /queues/new is a page, not a region.
    return min(fitting, key=lambda each: len(each[1]), default=None)


def methods_of(path: str) -> list[str]:
    return [method for method in ("GET", "POST") if find_route(method, path) is not None]


def link(*parts: str) -> str:
    return ROOT + "".join("/" + quote(part, safe="") for part in parts)


def dead_letters_link(key: QueueKey) -> str:
    return link("dead-letters", key.region, key.name)


def queue_link(key: QueueKey, *parts: str) -> str:
    return link("queues", key.region, key.name, *parts)
