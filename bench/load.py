"""A closed-loop HTTP load generator, cheap enough to share a machine with the server that it measures.

Each connection has one request under way. Nothing of an answer is parsed but its status, its length and its
end. A server that closes the connection after an answer is connected to again: that is its cost, not an error.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

MakeRequest = Callable[[int], bytes | None]
OnResponse = Callable[[int, int, bytes], None]
_LAST_ANSWERS_MS = 500  # for which the end of a load waits for what was asked


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load saw. `errors` counts answers other than 2xx and connections that broke."""

    requests: int
    seconds: float
    errors: int
    p50_ms: float
    p99_ms: float
    cpu_s: float  # used by the generator itself
    latencies_s: array[float]

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def cpu_us_per_request(self) -> float:
        """What one request cost the generator."""
        return self.cpu_s / self.requests * 1e6 if self.requests else 0.0


def _joined(chunks: bytes) -> bytes:
    """A body that was sent in chunks."""
    body, at = b"", 0
    while size := int(chunks[at : (begin := chunks.index(b"\r\n", at) + 2) - 2], 16):
        body += chunks[begin : begin + size]
        at = begin + size + 2
    return body


class _Client(asyncio.Protocol):
    __slots__ = ("_begun_s", "_buffer", "_index", "_need_bytes", "_pending", "_run", "_transport")

    def __init__(self, run: _Run, index: int) -> None:
        self._run = run
        self._begun_s = 0.0
        self._pending = False  # a request has been written and not been answered
        self._index = index
        self._buffer = b""
        self._need_bytes = 0  # how much the buffer must hold before looking at it again is worth while

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def begin(self) -> None:
        """Write the connection's next request."""
        request = self._run.make_request(self._index)
        if request is None:
            self._run.stop()
            return
        self._begun_s = time.perf_counter()
        self._pending = True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            if len(data) < self._need_bytes:
                self._buffer = data
                return
        head_end = data.find(b"\r\n\r\n")
        if head_end < 0:
            self._buffer, self._need_bytes = data, 0
            return
        at = data.find(b"\r\nContent-Length: ", 0, head_end)
        if at < 0:
            at = data[:head_end].lower().find(b"\r\ncontent-length: ")
        body_at = head_end + 4
        end = body_at
        if at >= 0:
            end += int(data[at + 18 : data.find(b"\r", at + 18)])
        elif data[:head_end].lower().find(b"\r\ntransfer-encoding: chunked") >= 0:
            if not data.endswith(b"\r\n0\r\n\r\n"):
                self._buffer, self._need_bytes = data, 0
                return
            data = data[:body_at] + _joined(data[body_at:])
            end = len(data)
        if len(data) < end:
            self._buffer, self._need_bytes = data, end
            return
        self._buffer = b""
        self._pending = False
        run = self._run
        if run.stopping:
            return
        now_s = time.perf_counter()
        run.latencies_s.append(now_s - self._begun_s)
        if data[9] != 50:  # not 2xx
            run.errors += 1
        if run.on_response is not None:
            run.on_response(self._index, int(data[9:12]), data[body_at:end])
        run.left -= 1
        if run.left <= 0 or now_s >= run.until_s:
            run.stop()
        elif data.find(b"\r\nConnection: close", 0, head_end) >= 0:
            run.reconnect(self)
        else:
            self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pending:
            self._run.lost()

    @property
    def is_waiting(self) -> bool:
        """Whether its request has not been answered."""
        return self._pending

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()


class _Run:
    def __init__(
        self,
        connect: Callable[[_Client], Awaitable[object]],
        make_request: MakeRequest,
        on_response: OnResponse | None,
        requests: int | None,
        clients: int,
    ) -> None:
        self._connect = connect
        self._reconnecting: set[asyncio.Future[None]] = set()
        self.make_request = make_request
        self.on_response = on_response
        self.left: float = requests if requests is not None else float("inf")
        self.until_s = float("inf")
        self.latencies_s: array[float] = array("d")
        self.errors = 0
        self.open = clients
        self.stopping = False
        self.done = asyncio.Event()

    def stop(self) -> None:
        self.stopping = True
        self.done.set()

    def reconnect(self, client: _Client) -> None:
        """Give the client a new connection and let it go on."""
        task = asyncio.ensure_future(self._connect_again(client))
        self._reconnecting.add(task)
        task.add_done_callback(self._reconnecting.discard)

    async def _connect_again(self, client: _Client) -> None:
        client.abort()
        await asyncio.sleep(0)  # the end of the old connection must not be taken for the new one's
        try:
            await self._connect(client)
        except OSError:
            self.lost()
            return
        if not self.stopping:
            client.begin()

    def lost(self) -> None:
        """One connection fewer, which nobody wanted."""
        if not self.stopping:
            self.errors += 1
            self.open -= 1
            if not self.open:
                self.stop()


async def _run(
    host: str,
    port: int,
    connections: int,
    make_request: MakeRequest,
    on_response: OnResponse | None,
    seconds: float | None,
    requests: int | None,
    tls: ssl.SSLContext | None,
) -> LoadResult:
    loop = asyncio.get_running_loop()

    async def connect(client: _Client) -> None:
        await loop.create_connection(lambda: client, host, port, ssl=tls)

    run = _Run(connect, make_request, on_response, requests, connections)
    clients = [_Client(run, index) for index in range(connections)]
    for client in clients:
        await connect(client)
    cpu_s, begun_s = time.process_time(), time.perf_counter()
    if seconds is not None:
        run.until_s = begun_s + seconds
    for client in clients:
        client.begin()
    # A server that stops answering must not hang the measurement.
    limit_s = seconds + 10.0 if seconds is not None else None
    try:
        await asyncio.wait_for(run.done.wait(), limit_s)
    except TimeoutError:
        run.errors += 1
    ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
    run.stop()
    # A receive that is cut off is undone, which would change what is measured next.
    for _ in range(_LAST_ANSWERS_MS):
        if not any(client.is_waiting for client in clients):
            break
        await asyncio.sleep(0.001)
    latencies_s = run.latencies_s
    for client in clients:
        client.abort()
    ordered = sorted(latencies_s)

    def percentile_ms(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else 0.0

    return LoadResult(
        requests=len(ordered),
        seconds=ended_s - begun_s,
        errors=run.errors,
        p50_ms=percentile_ms(0.50),
        p99_ms=percentile_ms(0.99),
        cpu_s=cpu_s,
        latencies_s=latencies_s,
    )


def run_load(
    host: str,
    port: int,
    connections: int,
    make_request: MakeRequest,
    on_response: OnResponse | None = None,
    *,
    seconds: float | None = None,
    requests: int | None = None,
    tls: ssl.SSLContext | None = None,
) -> LoadResult:
    """Load the server for so many seconds or requests (whichever ends first) and say what came back.

    `make_request` gives the bytes of a connection's next request, or None when there is nothing more to ask,
    which ends the load; `on_response` gets the connection, the status and the body. Answers that arrive after
    the end are not counted.
    """
    if seconds is None and requests is None:
        raise ValueError("seconds=None, requests=None: expected one of them")
    if connections < 1:
        raise ValueError(f"connections={connections}: expected 1 or more")
    return uvloop.run(_run(host, port, connections, make_request, on_response, seconds, requests, tls))


def process_cpu_s(pid: int) -> float:
    """The CPU seconds that a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
