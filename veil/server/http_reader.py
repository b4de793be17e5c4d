"""Bytes to requests, within the limits and without a socket.

RESTING ──first byte──▶ HEAD ──blank line──▶ BODY ──last byte──▶ RESTING, with one more request ready
"""

from __future__ import annotations

import logging
from typing import Any

import httptools

from veil.server.http_answer import CLOSES, STAYS_OPEN, STAYS_OPEN_1_0
from veil.server.http_head import (
    CHUNKED,
    METHODS,
    SPEAKS_PLAIN,
    TLS_OPENING,
    Refusal,
    body_length,
    joined_headers,
    refusal_of,
    split_target,
)
from veil.server.http_limits import HttpLimits
from veil.wire.exchange import Request

log = logging.getLogger("veil.http")

RESTING, HEAD, BODY = range(3)

# The parser cannot stop between two requests, so it is fed in pieces: those of one piece exist at once.
_PIECE_BYTES = 8 * 1024
# Chunk sizes, extensions and trailers are no body; a client may not send them without end.
_CHUNK_OVERHEAD_FACTOR = 8
_CHUNK_OVERHEAD_BYTES = 16 * 1024


class RequestReader:
    """Turns what one client sends into requests; after a refusal it must not be fed again."""

    __slots__ = (
        "_body",
        "_body_left",
        "_body_raw_bytes",
        "_head_bytes",
        "_headers",
        "_limits",
        "_method",
        "_pairs",
        "_parser",
        "_persistence",
        "_priming",
        "_skipped_body",
        "_target",
        "awaits_continue",
        "body_bytes",
        "finished",
        "on_header",
        "peer",
        "phase",
        "ready",
        "refusal",
    )

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
        self.refusal: Refusal | None = None
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
            self._refuse(error)
            if self._head_bytes == 0 and piece.startswith(TLS_OPENING):
                self.refusal = Refusal(400, SPEAKS_PLAIN)
            return b""
        phase = self.phase
        if phase == HEAD:
            self._head_bytes += len(piece)
            if self._head_bytes >= head_bytes_max:
                # No header yet: the request line alone took it all.
                status = 431 if self._pairs else 414
                self.refusal = Refusal(status, f"the head may have at most {head_bytes_max} bytes")
        elif phase == BODY and self._body_left == CHUNKED:
            self._body_raw_bytes += len(piece)
            if self._body_raw_bytes > _CHUNK_OVERHEAD_FACTOR * self.body_bytes + _CHUNK_OVERHEAD_BYTES:
                self.refusal = Refusal(400, "the chunks hold too little of the body")
            elif len(self._pairs) > self._limits.header_count_max:  # trailers are noted with the headers
                self.refusal = Refusal(431, f"at most {self._limits.header_count_max} headers are allowed")
        return rest

    def release(self) -> None:
        """Let go of everything at once, since nothing more is read: parser and refusal refer back here, and what waits for the
        collector is in nobody's count."""
        self._parser = None
        self.refusal = None
        self.ready.clear()
        self._begin()

    def _refuse(self, error: Exception) -> None:
        if self.finished:
            return  # bytes behind a request that asked to close: not ours to judge
        self.refusal = refusal_of(error)
        context = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(context, Refusal):
            log.error("reading a request failed", exc_info=context or error)
            self.refusal = Refusal(500, "internal error")

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
        if not self._priming:
            self._begin()
            self.phase = HEAD

    def on_url(self, part: bytes) -> None:
        if not self._priming:
            self._target += part

    def on_headers_complete(self) -> None:
        if self._priming:
            return
        parser, limits = self._parser, self._limits
        if len(self._pairs) > limits.header_count_max:
            raise Refusal(431, f"at most {limits.header_count_max} headers are allowed")
        # What is noted after this is a trailer: it may not pass for a header, nor replace one.
        headers = self._headers = joined_headers(self._pairs)
        version = parser.get_http_version()
        length = body_length(version, headers, limits.body_bytes_max)
        method = METHODS.get(parser.get_method())
        if method is None:
            raise Refusal(501, "the method is not supported")
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
            raise Refusal(413, f"the body may have at most {self._limits.body_bytes_max} bytes")
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
