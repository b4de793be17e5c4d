"""Bytes to requests, within the limits and without a socket.

RESTING ──first byte──▶ HEAD ──blank line──▶ BODY ──last byte──▶ RESTING, with one more request ready
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import httptools

from veil.server.http_limits import HttpLimits
from veil.wire.exchange import Request, Response

_log = logging.getLogger(__name__)


# ---- writing answers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# What an answer says about the connection after it.
STAYS_OPEN = b""  # HTTP/1.1's default
STAYS_OPEN_1_0 = b"Connection: keep-alive\r\n"
CLOSES = b"Connection: close\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_BODILESS = frozenset((204, 304))
_OPENINGS_MAX = 256
_openings: dict[tuple[int, str], bytes] = {}  # of one second
_openings_s = 0


def encode_answer(response: Response, method: str, persistence: bytes) -> bytes:
    """The whole answer as one piece for the socket; raises ValueError for a header that would split it."""
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
    """Status, date and type of an answer, made once a second: SDKs set their signing clock by the date."""
    global _openings_s
    now_s = int(time.time())
    if now_s != _openings_s:
        _openings.clear()
        _openings_s = now_s
    known = _openings.get((status, content_type))
    if known is not None:
        return known
    if not 200 <= status <= 599:
        raise ValueError(f"status={status}: expected 200 to 599")
    named = _fields((("Content-Type", content_type),)) if content_type and status not in _BODILESS else b""
    date = formatdate(now_s, usegmt=True).encode()
    opening = b"HTTP/1.1 %d %b\r\nDate: %b\r\n%b" % (
        status,
        _PHRASES.get(status, "Unknown").encode(),
        date,
        named,
    )
    if len(_openings) < _OPENINGS_MAX:  # a front end that made up content types must not fill memory
        _openings[status, content_type] = opening
    return opening


def _fields(headers: tuple[tuple[str, str], ...]) -> bytes:
    text = ""
    for name, value in headers:
        line = f"{name}: {value}"
        if "\n" in line or "\r" in line or "\0" in line:  # it would start a header of its own
            raise ValueError(f"headers={headers!r}: expected no CR, LF or NUL in names and values")
        text = f"{text}{line}\r\n"
    return text.encode("latin-1")


# ---- the rules for a request's head
#
# The parser (llhttp, strict) already refuses what smuggling is made of: bare CR or LF, folded lines, control
# characters, space before the colon, Content-Length twice or beside Transfer-Encoding, malformed chunks. This
# file closes what it leaves open: other transfer codings before `chunked`, chunks in HTTP/1.0, HTTP/0.9 and
# 2.0, repeated Host, fragments.

CHUNKED = -1  # as a body length: known only at its end

# Methods that could mean something to a front end, which decides itself (405). The parser also knows CONNECT,
# the WebDAV family and Icecast's SOURCE.
METHODS: Mapping[bytes, str] = {
    name.encode(): name for name in ("POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")
}

# Clients send a handful of names in two spellings: looking them up is cheaper than lowering each.
# fmt: off
_COMMON_NAMES = (
    "accept", "accept-encoding", "accept-language", "amz-sdk-invocation-id", "amz-sdk-request",
    "authorization", "cache-control", "connection", "content-encoding", "content-length", "content-md5",
    "content-type", "cookie", "date", "expect", "host", "if-modified-since", "if-none-match",
    "keep-alive", "origin", "referer", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "te",
    "traceparent", "transfer-encoding", "upgrade", "user-agent", "x-amz-content-sha256", "x-amz-date",
    "x-amz-security-token", "x-amz-target", "x-amzn-query-mode", "x-amzn-trace-id", "x-forwarded-for",
    "x-forwarded-host", "x-forwarded-proto", "x-veil-bulk", "x-veil-outcome",
)
# fmt: on


# How a TLS handshake begins: a record of that type, of any version of TLS.
TLS_OPENING = b"\x16\x03"
SPEAKS_PLAIN = "this port does not speak TLS: use http://"


# No other names are kept: clients could fill memory with them.
_header_names = {
    **{spelling.encode(): name for name in _COMMON_NAMES for spelling in (name, name.title())},
    b"TE": "te",
    b"Content-MD5": "content-md5",
}


class HttpRefusal(Exception):
    """A request answered with this status, and then the connection closed: what follows may be misread."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def joined_headers(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers by lower-case name, repeated ones joined; the parser leaves blanks and tabs behind values, and lets no
    other white space pass."""
    names = _header_names
    headers: dict[str, str] = {}
    for name, value in pairs:
        try:
            key = names[name]
        except KeyError:
            key = name.decode("ascii").lower()
        headers[key] = value.rstrip().decode("latin-1")
    if len(headers) == len(pairs):
        return headers
    headers.clear()
    for name, value in pairs:
        key, text = name.decode("ascii").lower(), value.rstrip().decode("latin-1")
        if key in headers:
            if key == "host":
                raise HttpRefusal(400, "more than one Host header")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    return headers


def body_length(version: str, headers: Mapping[str, str], body_bytes_max: int) -> int:
    """How many bytes of body follow this head, or CHUNKED; raises HttpRefusal if it must not be served."""
    if version == "1.1":
        if "host" not in headers:
            raise HttpRefusal(400, "HTTP/1.1 needs a Host header")
    elif version != "1.0":
        raise HttpRefusal(505, f"HTTP/{version} is not supported, use HTTP/1.1")
    if "content-encoding" in headers and headers["content-encoding"].lower() not in ("identity", ""):
        raise HttpRefusal(415, "a compressed request body is not supported")
    if "expect" in headers and headers["expect"].lower() != "100-continue":
        raise HttpRefusal(417, "the only supported expectation is 100-continue")
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise HttpRefusal(501, "the only supported transfer coding is chunked")
        if version == "1.0":
            # An HTTP/1.0 intermediary would not have seen the chunks as framing: two readings of one stream.
            raise HttpRefusal(400, "HTTP/1.0 has no transfer codings")
        return CHUNKED
    length = int(headers.get("content-length", "0"))
    if length > body_bytes_max:
        raise HttpRefusal(413, f"the body may have at most {body_bytes_max} bytes")
    return length


def split_target(target: bytes) -> tuple[str, str, str]:
    """Path, query and, for an absolute target, the authority that overrides the Host header."""
    if target == b"/":
        return "/", "", ""
    if b"#" in target:
        raise HttpRefusal(400, "a request target has no fragment")
    text = target.decode("ascii")  # the parser lets only ASCII pass
    authority = ""
    if not text.startswith("/") and text != "*":
        scheme, separator, rest = text.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise HttpRefusal(400, "the request target is neither a path nor an http URL")
        end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
        authority, text = rest[:end], rest[end:]
        if not authority or "@" in authority:
            raise HttpRefusal(400, "the request target's authority must be a host and at most a port")
        if not text.startswith("/"):
            text = "/" + text
    path, _, query = text.partition("?")
    return path, query, authority


def refusal_of(error: httptools.HttpParserError) -> HttpRefusal:
    """The refusal behind what the parser raised."""
    reason = str(error)
    if isinstance(error, httptools.HttpParserCallbackError):
        if isinstance(error.__context__, HttpRefusal):
            return error.__context__
        _log.error("reading a request failed", exc_info=error.__context__ or error)
        return HttpRefusal(500, "internal error")
    if reason == "Content-Length overflow":
        return HttpRefusal(413, reason)
    if reason in ("Invalid HTTP version", "Pause on PRI/Upgrade"):  # the latter is HTTP/2's preface
        return HttpRefusal(505, "use HTTP/1.1")
    if reason == "Request has invalid `Transfer-Encoding`":
        return HttpRefusal(501, "the only supported transfer coding is chunked")
    return HttpRefusal(400, f"malformed request: {reason}")


RESTING, HEAD, BODY = range(3)

# The parser cannot stop between two requests, so it is fed in pieces: those of one piece exist at once.
_PIECE_BYTES = 8 * 1024
# Chunk sizes, extensions and trailers are no body; a client may not send them without end.
_CHUNK_OVERHEAD_FACTOR = 8
_CHUNK_OVERHEAD_BYTES = 16 * 1024


class RequestReader:
    """Turns what one client sends into requests; after a refusal it must not be fed again."""

    def __init__(self, limits: HttpLimits, peer: str) -> None:
        self._limits = limits
        self.peer = peer
        self._pairs: list[tuple[bytes, bytes]] = []
        keep = self._pairs.append
        # Called for every header of every request, so it only notes them: half the cost of one that looks.
        self.on_header = lambda name, value: keep((name, value))
        self._parser: Any = httptools.HttpRequestParser(self)
        self._priming = False
        self._head_bytes = 0
        self.phase = RESTING
        self.ready: list[tuple[Request, bytes]] = []  # each with what its answer says about the connection
        self.refusal: HttpRefusal | None = None
        self.finished = False  # the last request that this connection may bring has been read
        self._begin()

    def _begin(self) -> None:
        self._pairs.clear()
        self._target = b""
        self._headers: dict[str, str] = {}
        self._method = ""
        self._persistence = STAYS_OPEN
        self._body: bytes | bytearray = b""
        self._body_left = 0
        self._body_raw_bytes = 0
        self._skipped_body = b""
        self.body_bytes = 0  # of the body that is being read
        self.awaits_continue = False  # the client sends its body only when told to

    @property
    def target_seen(self) -> bool:
        """Whether enough of a request was read for the client to expect an answer."""
        return bool(self._target)

    def feed(self, data: bytes | bytearray) -> bytes | bytearray:
        """Read one piece of the data and give back the rest, to be fed when `ready` has been served."""
        phase, head_bytes_max = self.phase, self._limits.header_bytes_max
        if phase == BODY:
            size = max(_PIECE_BYTES, self._body_left)
        else:
            size = min(_PIECE_BYTES, head_bytes_max - self._head_bytes)
            self.phase = HEAD
        piece, rest = (data, b"") if len(data) <= size else (data[:size], data[size:])
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            rest = piece[upgrade.args[0] :] + rest
            self._decline_upgrade()
        except httptools.HttpParserError as error:
            if not self.finished:  # bytes behind a request that asked to close are not ours to judge
                self.refusal = refusal_of(error)
            if self._head_bytes == 0 and piece.startswith(TLS_OPENING):
                self.refusal = HttpRefusal(400, SPEAKS_PLAIN)
            return b""
        phase = self.phase
        # Of a piece that ends a request it is not known how much of it is the head of the next one.
        if phase == HEAD and not self.ready:
            self._head_bytes += len(piece)
            if self._head_bytes >= head_bytes_max:
                # No header yet: the request line alone took it all.
                status = 431 if self._pairs else 414
                self.refusal = HttpRefusal(status, f"the head may have at most {head_bytes_max} bytes")
        elif phase == BODY and self._body_left == CHUNKED:
            self._body_raw_bytes += len(piece)
            if self._body_raw_bytes > _CHUNK_OVERHEAD_FACTOR * self.body_bytes + _CHUNK_OVERHEAD_BYTES:
                self.refusal = HttpRefusal(400, "the chunks hold too little of the body")
            elif len(self._pairs) > self._limits.header_count_max:  # trailers are noted with the headers
                self.refusal = HttpRefusal(
                    431, f"at most {self._limits.header_count_max} headers are allowed"
                )
        return rest

    def release(self) -> None:
        """Let go of everything at once, since nothing more is read: parser and refusal refer back here, and what waits for the
        collector is in nobody's count."""
        self._parser = None
        self.refusal = None
        self.ready.clear()
        self._begin()

    def _decline_upgrade(self) -> None:
        # The parser left HTTP after the head and did not read the body, if there is one. A fresh parser that
        # is told of the same body, without the upgrade, goes on from there: to us this is plain HTTP/1.1.
        self._parser = httptools.HttpRequestParser(self)
        if self._skipped_body:
            framing, self._skipped_body = self._skipped_body, b""
            self._priming = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
            self._priming = False

    # ---- called by the parser, which wraps what they raise

    def on_message_begin(self) -> None:
        if self._priming:
            return
        self.phase = HEAD
        # Of `_begin` what nearly every request changes; the rest is as it was unless a flag or a body says so.
        self._pairs.clear()
        self._target = self._body = b""
        self.body_bytes = self._body_left = 0
        self._persistence = STAYS_OPEN
        if self._body_raw_bytes or self._skipped_body or self.awaits_continue:
            self._begin()

    def on_url(self, part: bytes) -> None:
        if not self._priming:
            self._target += part

    def on_headers_complete(self) -> None:
        if self._priming:
            return
        parser, limits = self._parser, self._limits
        if len(self._pairs) > limits.header_count_max:
            raise HttpRefusal(431, f"at most {limits.header_count_max} headers are allowed")
        # What is noted after this is a trailer: it may not pass for a header, nor replace one.
        headers = self._headers = joined_headers(self._pairs)
        version = parser.get_http_version()
        length = body_length(version, headers, limits.body_bytes_max)
        method = METHODS.get(parser.get_method())
        if method is None:
            raise HttpRefusal(501, "the method is not supported")
        self._method = method
        if not parser.should_keep_alive():
            self._persistence = CLOSES
        elif version == "1.0":
            self._persistence = STAYS_OPEN_1_0
        self.phase = BODY
        if length:
            self._body_left = length
            self.awaits_continue = "expect" in headers and version == "1.1"
            if parser.should_upgrade():
                chunked = b"Transfer-Encoding: chunked"
                self._skipped_body = chunked if length == CHUNKED else b"Content-Length: %d" % length

    def on_body(self, chunk: bytes) -> None:
        self.awaits_continue = False
        self.body_bytes += len(chunk)
        if self._body_left != CHUNKED:
            self._body_left -= len(chunk)
        elif self.body_bytes > self._limits.body_bytes_max:
            raise HttpRefusal(413, f"the body may have at most {self._limits.body_bytes_max} bytes")
        if not self._body:
            self._body = chunk
            return
        # One growing buffer, not a list of pieces: tiny chunks would cost twenty times their size.
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += chunk

    def on_message_complete(self) -> None:
        if self._skipped_body:
            return  # the body of a declined upgrade is still to come
        path, query, authority = split_target(self._target)
        if authority:
            self._headers["host"] = authority
        body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        self.ready.append(
            (Request(self._method, path, query, self._headers, body, self.peer), self._persistence)
        )
        self._body = b""
        self._head_bytes = 0
        self.phase = RESTING
        if self._persistence is CLOSES:
            self.finished = True
