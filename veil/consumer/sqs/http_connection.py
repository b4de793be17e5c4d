"""One HTTP/1.1 connection to the service: a request out, its answer in, one at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from veil.signing.client_tls import problem_in_words

# How long an answer that nobody waits for any more is still listened for.
LINGER_S = 1.0


class NoAnswer(Exception):
    """No usable answer came, so what became of the request is unknown.

    `stale` means that a connection which had rested was closed without a byte in answer: very likely the peer closed it
    before it saw the request.
    """

    def __init__(self, reason: str, *, stale: bool = False) -> None:
        super().__init__(reason)
        self.stale = stale


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer whose end has been seen."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> str:
        """The value of a header, by its name in lower case; empty if it is not there."""
        for found, value in self.headers:
            if found.lower() == name:
                return value.decode("latin-1")
        return ""


Heir = Callable[[HttpAnswer], None]


class HttpConnection(asyncio.Protocol):
    """Exchanges one request at a time. Whoever uses it looks at `reusable` afterwards; a connection that is not closes itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[HttpConnection], None]) -> None:
        self._loop, self._on_lost = loop, on_lost
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._heir: Heir | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._bytes_left = 0
        self._heard = False  # a byte of the answer has come
        self._answers = 0
        self.reusable = True
        self.rested_since_s = loop.time()
        self.gone: asyncio.Future[None] = loop.create_future()

    async def exchange(
        self, request: bytes, *, timeout_s: float, answer_bytes_max: int, heir: Heir | None = None
    ) -> HttpAnswer:
        """The answer to the request, or NoAnswer.

        A caller that is cancelled closes the connection, so that the service stops working for nobody. What is in an answer
        that was already on its way then goes to the `heir`: the messages in it have been claimed.
        """
        waiting: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._waiting, self._heir = waiting, heir
        self._bytes_left, self._heard = answer_bytes_max, False
        self._timer = self._loop.call_later(timeout_s, self._fail, f"no answer within {timeout_s:g} s")
        self._transport.write(request)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:
                self.abandon()
            elif heir is not None and not waiting.cancelled() and waiting.exception() is None:
                heir(waiting.result())  # it came in the very moment of the cancelling
            raise

    def abandon(self) -> None:
        """End what is under way. With an heir, only our side is closed at first, and the other one heard for a moment."""
        self.reusable = False
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_exception(NoAnswer("the client was closed"))
        if waiting is None or self._heir is None or self._transport.is_closing():
            self.abort()
            return
        self._set_timer(LINGER_S)
        # TLS has no half-closed connections here: the peer only learns of it when the moment is over.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def abort(self) -> None:
        """Cut the connection."""
        self.reusable = False
        self._transport.abort()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._bytes_left -= len(data)
        if self._waiting is None:
            self.abort()  # nobody asked: whatever it is, it must not be taken for the next answer
            return
        if self._bytes_left < 0:
            self._fail("the answer is larger than any answer can be")
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the answer is not HTTP")

    def eof_received(self) -> None:
        self.reusable = False  # at once: the loss of the connection is told only later

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._waiting is not None:
            if self._heard and exc is None and self._ends_with_connection():
                self._finish()
            elif self._heard:
                self._fail("the connection was cut in the middle of the answer")
            elif isinstance(exc, ssl.SSLError) and "ALERT" in (exc.reason or ""):
                # After the handshake: in TLS 1.3 the server judges a client's certificate only then.
                self._fail(problem_in_words(exc, "the server", None) or "")
            else:
                self._fail("the connection was closed without an answer", stale=self._answers > 0)
        del self._parser  # it holds our methods: a circle
        self._on_lost(self)
        if not self.gone.done():
            self.gone.set_result(None)

    # ---- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_begin(self) -> None:
        if self._waiting is None:  # a second answer behind the first
            self.reusable = False

    def on_message_complete(self) -> None:
        if self._waiting is None:
            return
        if self._parser.get_status_code() < 200:  # an interim answer: the real one follows
            self._headers, self._body = [], []
            return
        if not self._parser.should_keep_alive():
            self.reusable = False
        self._finish()

    # ---- within

    def _ends_with_connection(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return bool(names) and names.isdisjoint((b"content-length", b"transfer-encoding"))

    def _finish(self) -> None:
        waiting, heir = self._waiting, self._heir
        assert waiting is not None
        answer = HttpAnswer(self._parser.get_status_code(), self._headers, b"".join(self._body))
        self._settle()
        self._answers += 1
        if not waiting.done():
            waiting.set_result(answer)
        elif heir is not None:
            heir(answer)
        if not self.reusable:
            self._transport.close()

    def _fail(self, reason: str, stale: bool = False) -> None:
        waiting = self._waiting
        self._settle()
        if waiting is not None and not waiting.done():
            waiting.set_exception(NoAnswer(reason, stale=stale))
        self.abort()

    def _settle(self) -> None:
        self._waiting = self._heir = None
        self._headers, self._body = [], []
        self._set_timer(None)
        self.rested_since_s = self._loop.time()

    def _set_timer(self, after_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if after_s is not None:
            self._timer = self._loop.call_later(after_s, self._fail, "abandoned")
