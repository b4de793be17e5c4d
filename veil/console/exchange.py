"""What the console is asked and what it answers, without a word about sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"


class HttpRequest(Protocol):
    """One request, complete."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def peer(self) -> str: ...


@dataclass(slots=True)
class Answer:
    """One answer; with a stream, the body is what it yields."""

    status: int = 200
    body: bytes = b""
    content_type: str = HTML
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncIterator[bytes] | None = field(default=None, repr=False)


def see_other(place: str, *headers: tuple[str, str]) -> Answer:
    """Go there, with a GET."""
    return Answer(303, b"", TEXT, (("Location", place), *headers))


def download(pieces: AsyncIterator[bytes], name: str, content_type: str = TEXT) -> Answer:
    """The pieces as a file of that name, which must be made of plain characters; made while they are sent."""
    headers = (("Content-Disposition", f'attachment; filename="{name}"'),)
    return Answer(200, b"", content_type, headers, pieces)
