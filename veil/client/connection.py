"""HTTP/1.1 connections to the service: one request and its answer at a time, kept alive and used again."""

from __future__ import annotations

import asyncio
import errno
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import httptools

from veil.client.credentials import Credentials
from veil.client.endpoint import Endpoint, problem_in_words
from veil.signing.sigv4 import PostSigner

# ---- the bytes of a request

# What `PostSigner` signs. With the mode, services name errors in both spellings.
_CONSTANT: Final = "Content-Type: application/x-amz-json-1.0\r\nx-amzn-query-mode: true\r\n"


class RequestHead:
    """Writes requests to one endpoint."""

    def __init__(self, endpoint: Endpoint, region: str, user_agent: str, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._signer = PostSigner(host=endpoint.host_header, path=endpoint.path, region=region)
        self._start = (
            f"POST {endpoint.path} HTTP/1.1\r\nHost: {endpoint.host_header}\r\n{_CONSTANT}"
            f"User-Agent: {user_agent}\r\nX-Amz-Target: "
        )

    def request(
        self,
        target: str,
        body: bytes,
        credentials: Credentials,
        invocation: str,
        attempt: int,
        for_veil: str = "",
    ) -> bytes:
        """Head and body, signed for now; `for_veil` are header lines beside the signature, which other services ignore."""
        token = credentials.session_token
        timestamp, authorization = self._signer.sign(
            target=target,
            body=body,
            key_id=credentials.key_id,
            secret=credentials.secret,
            session_token=token,
            now_ms=self._wall_ms(),
        )
        token_line = "" if token is None else f"X-Amz-Security-Token: {token}\r\n"
        parent = current_span()
        parent_line = "" if parent is None else f"traceparent: {parent}\r\n"
        head = (
            f"{self._start}{target}\r\nX-Amz-Date: {timestamp}\r\n{token_line}Authorization: {authorization}\r\n"
            f"amz-sdk-invocation-id: {invocation}\r\namz-sdk-request: attempt={attempt}\r\n"
            f"{for_veil}{parent_line}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def current_span() -> str | None:
    """The span in which this is called, as W3C's trace context writes it, where OpenTelemetry is in use."""
    trace = sys.modules.get("opentelemetry.trace")  # importing it here would cost everybody else
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else None


# ---- one connection

# How long an answer is still waited for after its caller was cancelled.
LINGER_S = 1.0
_READ_FIRST_S: Final = 0.05


class NoAnswer(Exception):
    """No usable answer came, so what became of the request is unknown.

    `stale` means that a connection which had rested was closed without a byte in answer: very likely the peer closed it
    before it saw the request. `refused` means that no server listens there, `untrusted` that TLS could not be agreed on.
    """

    def __init__(
        self, reason: str, *, stale: bool = False, refused: bool = False, untrusted: bool = False
    ) -> None:
        super().__init__(reason)
        self.stale, self.refused, self.untrusted = stale, refused, untrusted


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


OnOrphaned = Callable[[HttpAnswer], None]  # gets an answer whose caller was cancelled


class ClientConnection(asyncio.Protocol):
    """Exchanges one request at a time. Its user looks at `reusable` afterwards; a connection that is not closes itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[ClientConnection], None]) -> None:
        self._loop, self._on_lost = loop, on_lost
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._on_orphaned: OnOrphaned | None = None
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
        self,
        request: bytes,
        *,
        timeout_s: float,
        answer_bytes_max: int,
        on_orphaned: OnOrphaned | None = None,
    ) -> HttpAnswer:
        """The answer to the request, or NoAnswer.

        A caller that is cancelled closes the connection, so that the service stops its work. What is in an answer
        that was already on its way then goes to `on_orphaned`: the messages in it have been claimed.
        """
        waiting: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._waiting, self._on_orphaned = waiting, on_orphaned
        self._bytes_left, self._heard = answer_bytes_max, False
        self._timer = self._loop.call_later(timeout_s, self._time_is_up, timeout_s)
        self._transport.write(request)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:
                self.abandon()
            elif on_orphaned is not None and not waiting.cancelled() and waiting.exception() is None:
                on_orphaned(waiting.result())  # it came in the very moment of the cancelling
            raise

    def _time_is_up(self, timeout_s: float) -> None:
        # A process that stood still finds its timer due before it has read an answer that came meanwhile, and the messages in
        # that are claimed: let the loop read first.
        self._timer = self._loop.call_later(_READ_FIRST_S, self._fail, f"no answer within {timeout_s:g} s")

    def abandon(self) -> None:
        """End what is under way. With `on_orphaned`, only our side is closed at first, and the other one heard for a moment."""
        self.reusable = False
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_exception(NoAnswer("the client was closed"))
        if waiting is None or self._on_orphaned is None or self._transport.is_closing():
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
            self.abort()  # not asked for: it must not be taken for the next answer
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
        self.reusable = False  # at once: `connection_lost` comes only later

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._waiting is not None:
            if self._heard and exc is None and self._ends_with_connection():
                self._finish()
            elif self._heard:
                self._fail("the connection was cut in the middle of the answer")
            elif isinstance(exc, ssl.SSLError) and "ALERT" in (exc.reason or ""):
                # After the handshake: in TLS 1.3 the server judges a client's certificate only then.
                self._fail(problem_in_words(exc, "the server", None) or "", untrusted=True)
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
        waiting, on_orphaned = self._waiting, self._on_orphaned
        assert waiting is not None
        answer = HttpAnswer(self._parser.get_status_code(), self._headers, b"".join(self._body))
        self._settle()
        self._answers += 1
        if not waiting.done():
            waiting.set_result(answer)
        elif on_orphaned is not None:
            on_orphaned(answer)
        if not self.reusable:
            self._transport.close()

    def _fail(self, reason: str, *, stale: bool = False, untrusted: bool = False) -> None:
        waiting = self._waiting
        self._settle()
        if waiting is not None and not waiting.done():
            waiting.set_exception(NoAnswer(reason, stale=stale, untrusted=untrusted))
        self.abort()

    def _settle(self) -> None:
        self._waiting = self._on_orphaned = None
        self._headers, self._body = [], []
        self._set_timer(None)
        self.rested_since_s = self._loop.time()

    def _set_timer(self, after_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if after_s is not None:
            self._timer = self._loop.call_later(after_s, self._fail, "abandoned")


# ---- the connection pool

# Shorter than services wait before they close a connection at rest (Veil: 75 s).
REST_S_MAX = 50.0


class HttpPool:
    """At most `connections` exchanges at a time; more wait for their turn. Redirects and proxies are not followed."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        connections: int,
        connect_timeout_s: float,
        ssl_context: ssl.SSLContext | None,
        bundle: str | None = None,
    ) -> None:
        """`bundle` is the file that the context trusts, to be named where that was not enough."""
        self._endpoint, self._connections = endpoint, connections
        self._connect_timeout_s, self._ssl_context, self._bundle = connect_timeout_s, ssl_context, bundle
        self._turns = asyncio.Semaphore(connections)
        self._resting: list[ClientConnection] = []  # the last one used is the first one taken
        self._open: set[ClientConnection] = set()
        self._ending = self._closed = False

    async def exchange(
        self,
        request: bytes,
        *,
        timeout_s: float,
        answer_bytes_max: int,
        rest_s_max: float = REST_S_MAX,
        on_orphaned: OnOrphaned | None = None,
    ) -> HttpAnswer:
        """The answer, or NoAnswer; on a connection that has not rested for longer than `rest_s_max` (0: on a new one)."""
        if self._turns.locked():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._turns.acquire()
            except TimeoutError:
                raise NoAnswer(f"all {self._connections} connections were busy for {timeout_s:g} s") from None
        else:
            await self._turns.acquire()
        try:
            connection = self._rested(rest_s_max) or await self._connected()
            try:
                if self._ending and on_orphaned is not None:
                    # What it claims could not be given back any more.
                    raise NoAnswer("the client was closed")
                return await connection.exchange(
                    request, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max, on_orphaned=on_orphaned
                )
            finally:
                if connection.reusable and not self._closed:
                    self._resting.append(connection)
        finally:
            self._turns.release()

    async def abandon(self) -> None:
        """End every exchange; returns when the answers that were on their way have gone to `on_orphaned`.

        From now on there are no exchanges with it any more; others go on being possible.
        """
        self._ending = True
        ending = [*self._open]
        for connection in ending:
            connection.abandon()
        if ending:  # bounded: a connection that cannot even be cut is not ours to wait for
            await asyncio.wait([connection.gone for connection in ending], timeout=2 * LINGER_S)

    async def close(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        await self.abandon()

    def _rested(self, rest_s_max: float) -> ClientConnection | None:
        now_s = asyncio.get_running_loop().time()
        while self._resting:
            rest_s = now_s - self._resting[-1].rested_since_s
            if rest_s_max <= rest_s < REST_S_MAX:
                return None  # the rest of them have rested longer still
            connection = self._resting.pop()
            if rest_s >= REST_S_MAX:
                connection.abort()
            elif connection.reusable:
                return connection
        return None

    async def _connected(self) -> ClientConnection:
        endpoint, loop = self._endpoint, asyncio.get_running_loop()
        connection = ClientConnection(loop, self._lost)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    lambda: connection, endpoint.host, endpoint.port, ssl=self._ssl_context
                )
        except TimeoutError:
            raise NoAnswer(f"no connection within {self._connect_timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            in_words = problem_in_words(error, endpoint.host, self._bundle)
            refused = _is_refusal(error)
            words = in_words or ("connection refused" if refused else _in_words(error))
            raise NoAnswer(words, refused=refused, untrusted=in_words is not None) from None
        if self._closed:
            connection.abort()
            raise NoAnswer("the client was closed")
        self._open.add(connection)
        return connection

    def _lost(self, connection: ClientConnection) -> None:
        if connection in self._resting:
            self._resting.remove(connection)
        self._open.discard(connection)


def _is_refusal(error: OSError) -> bool:
    # Of a name with several addresses, such as localhost, asyncio tells the errors of all in one text.
    several = error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error)
    return several or isinstance(error, ConnectionRefusedError)


def _in_words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
