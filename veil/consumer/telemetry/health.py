"""A small HTTP server for whoever supervises a consumer: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from veil.consumer.telemetry.metrics import ConsumerMetrics

# A probe is a short request; anything else is no probe.
_HEAD_BYTES_MAX: Final = 8_192
_HEAD_WAIT_S: Final = 5.0
_CONNECTIONS_MAX: Final = 32

Problem = Callable[[], str | None]  # None: all is well; else what is not
_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def _no_problem() -> str | None:
    return None


class HealthServer:
    """Answers 200 `ok` or 503 with the problem in words. Healthy means the process is of use and need not be restarted;
    ready means that it receives messages. One answer for each connection, on the event loop it is started on."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        alive: Problem = _no_problem,
        ready: Problem = _no_problem,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self._host, self._port = host, port
        self._alive, self._ready, self._metrics = alive, ready, metrics
        self._server: asyncio.Server | None = None
        self._connections = 0

    @property
    def port(self) -> int:
        """The port it listens on; the system's choice when 0 was asked for."""
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen; raises OSError when the address cannot be had."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD_BYTES_MAX)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_HEAD_WAIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # nobody who is owed an answer
        finally:
            self._connections -= 1
            with suppress(ConnectionError):
                writer.close()

    def _answer(self, head: bytes) -> bytes:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _response(400, _TEXT, b"not a request\n")
        method, target = parts[0], parts[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, _TEXT, b"only GET\n")
        try:
            status, kind, body = self._page(target)
        except Exception as error:  # a gauge that fails must not look like a dead process without a word
            status, kind, body = 500, _TEXT, f"{type(error).__name__}\n".encode()
        return _response(status, kind, body, with_body=method == b"GET")

    def _page(self, target: bytes) -> tuple[int, str, bytes]:
        if target == b"/healthz":
            return _said(self._alive())
        if target == b"/readyz":
            return _said(self._alive() or self._ready())
        if target == b"/metrics" and self._metrics is not None:
            body, kind = self._metrics.page()
            return 200, kind, body
        return 404, _TEXT, b"/healthz, /readyz, /metrics\n"


def _said(problem: str | None) -> tuple[int, str, bytes]:
    return (200, _TEXT, b"ok\n") if problem is None else (503, _TEXT, f"{problem}\n".encode())


def _response(status: int, kind: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
