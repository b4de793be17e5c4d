"""One HTTP request and its answer, as the front ends see them.

The server layer fills `Request` from the socket and writes `Response` to it; everything between is bytes and rules, so
that a front end can be tested by calling it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from itertools import count
from uuid import uuid4

import msgspec


def _always(size_bytes: int) -> bool:
    return True


class Request(msgspec.Struct):
    method: str
    path: str  # as sent, still percent-encoded, without the query
    query: str  # as sent, without the question mark
    headers: Mapping[str, str]  # names in lower case; repeated ones joined by ", "
    body: bytes = b""
    peer: str = ""  # the address of the other end
    # Asked before a large answer is made of what was read for it: whether the server can hold so many bytes more.
    has_room: Callable[[int], bool] = _always


class Response(msgspec.Struct):
    """One answer. `undelivered` runs if the connection was gone before a byte of it could be written; `delivering`, if any, is
    waited for before the first.

    With a `stream` the body is what it yields, as it comes, and the connection ends with it; it is closed when the
    client goes or the server stops.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    undelivered: Callable[[], None] | None = None
    delivering: Callable[[], Awaitable[None]] | None = None
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Request], Awaitable[Response]]
AnswerCounts = Counter[tuple[str, int]]  # by action and class of status


def request_ids() -> Iterator[str]:
    """Ids in the form of UUIDs, unlike each other and those of any other process: a random half, and a counted one."""
    return map((str(uuid4())[:24] + "%012x").__mod__, count(1))
