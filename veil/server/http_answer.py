"""The bytes of an answer, with as little work for each as its own data demands."""

from __future__ import annotations

from http import HTTPStatus

from veil.wire.exchange import Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# What an answer says about the connection after it.
STAYS_OPEN = b""  # HTTP/1.1's default
STAYS_OPEN_1_0 = b"Connection: keep-alive\r\n"
CLOSES = b"Connection: close\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_BODILESS = frozenset((204, 304))
_OPENINGS_MAX = 256
_openings: dict[tuple[int, str], bytes] = {}


def encode_answer(response: Response, method: str, persistence: bytes) -> bytes:
    """The whole answer as one piece for the socket; raises ValueError for a header that would split it."""
    opening = _openings.get((response.status, response.content_type))
    if opening is None:
        opening = _opening(response.status, response.content_type)
    fields = _fields(response.headers) if response.headers else b""
    body = response.body
    if response.status in _BODILESS:
        return b"%b%b%b\r\n" % (opening, persistence, fields)
    # HEAD is told the length that GET would have had, and gets no body: it would be read as the next answer.
    shown = body if method != "HEAD" else b""
    return b"%bContent-Length: %d\r\n%b%b\r\n%b" % (opening, len(body), persistence, fields, shown)


def encode_stream_head(response: Response) -> bytes:
    """The head of an answer whose body ends with the connection: no length, no chunks, any client can read it."""
    fields = _fields(response.headers) if response.headers else b""
    return b"%b%b%b\r\n" % (_opening(response.status, response.content_type), CLOSES, fields)


def encode_refusal(status: int, reason: str) -> bytes:
    """An answer that ends the connection, in plain text."""
    return encode_answer(Response(status=status, body=reason.encode() + b"\n"), "", CLOSES)


def _opening(status: int, content_type: str) -> bytes:
    if not 200 <= status <= 599:
        raise ValueError(f"status={status}: expected 200 to 599")
    named = _fields((("Content-Type", content_type),)) if content_type and status not in _BODILESS else b""
    opening = b"HTTP/1.1 %d %b\r\n%b" % (status, _PHRASES.get(status, "Unknown").encode(), named)
    if len(_openings) < _OPENINGS_MAX:  # a front end that made up content types must not fill memory
        _openings[status, content_type] = opening
    return opening


def _fields(headers: tuple[tuple[str, str], ...]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    # One CR and one LF for each header: any more came in with a value and would start a header of its own.
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError(f"headers={headers!r}: expected no CR, LF or NUL in names and values")
    return text.encode("latin-1")
