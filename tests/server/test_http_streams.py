"""Answers that are written as they come: no faster than the client takes them, and never for a client that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.waiting import PATIENCE_S
from veil.server.http import HttpServer
from veil.server.http_limits import HttpLimits
from veil.wire.exchange import Request, Response

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Source:
    """A stream that the test feeds, and that notes how far it came and that it was closed."""

    def __init__(self, piece: bytes = b"") -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.piece = piece  # yielded without end, where there is one
        self.yielded = 0
        self.closed = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        return Response(content_type="text/event-stream", stream=self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            while True:
                piece = self.piece or await self.pieces.get()
                if piece is None:
                    return
                self.yielded += 1
                yield piece
        finally:
            self.closed.set()


@pytest.fixture
async def started() -> AsyncIterator[list[HttpServer]]:
    servers: list[HttpServer] = []
    yield servers
    for server in servers:
        await server.close(grace_s=0)
        assert server.connection_count == 0


async def begin(
    started: list[HttpServer], source: Source, method: bytes = b"GET", **limits: float
) -> tuple[HttpServer, asyncio.StreamReader, asyncio.StreamWriter]:
    server = HttpServer(source, HttpLimits(**limits))  # type: ignore[arg-type]
    await server.start("127.0.0.1", 0)
    started.append(server)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(GET.replace(b"GET", method))
    return server, reader, writer


async def test_pieces_arrive_as_they_come_and_the_connection_ends_with_the_stream(started: list[HttpServer]):
    source = Source()
    _, reader, writer = await begin(started, source)
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert "text/event-stream" in head and "Connection: close" in head and "Content-Length" not in head
        source.pieces.put_nowait(b"one\n")
        assert await reader.readline() == b"one\n"
        source.pieces.put_nowait(b"two\n")
        assert await reader.readline() == b"two\n"
        source.pieces.put_nowait(None)
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_goes_ends_the_stream(started: list[HttpServer]):
    source = Source()
    _, reader, writer = await begin(started, source)
    async with asyncio.timeout(60):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await source.closed.wait()
    await writer.wait_closed()


async def test_a_client_that_does_not_read_holds_the_stream_up_and_is_cut_in_the_end(
    started: list[HttpServer],
):
    source = Source(b"x" * 65_536)
    server, reader, writer = await begin(started, source, write_deadline_s=5, write_buffer_bytes_max=65_536)
    async with asyncio.timeout(60):
        await reader.readuntil(b"\r\n\r\n")
        while True:  # until the buffers between here and there are full
            before = source.yielded
            await asyncio.sleep(0.05)
            if source.yielded == before:
                break
        assert source.yielded * 65_536 < 64 << 20
        server.sweep(asyncio.get_running_loop().time() + 6)
        server.sweep(asyncio.get_running_loop().time() + 12)
        await source.closed.wait()
    writer.transport.abort()


async def test_closing_the_server_ends_streams_at_once(started: list[HttpServer]):
    source = Source()
    server, reader, writer = await begin(started, source)
    async with asyncio.timeout(60):
        await reader.readuntil(b"\r\n\r\n")
        await server.close(grace_s=600)
        assert source.closed.is_set()
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_stream_that_fails_closes_the_connection(
    started: list[HttpServer], caplog: pytest.LogCaptureFixture
):
    async def broken(request: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            yield b"one\n"
            raise RuntimeError("broken")

        return Response(stream=stream())

    _, reader, writer = await begin(started, broken)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        assert (await reader.read()).endswith(b"one\n")
    assert "a stream failed" in caplog.text
    writer.close()
    await writer.wait_closed()


async def test_head_of_a_stream_gets_the_headers_alone(started: list[HttpServer]) -> None:
    source = Source()
    for piece in (b"data: 1\n\n", None):
        source.pieces.put_nowait(piece)
    _, reader, writer = await begin(started, source, method=b"HEAD")

    said = await asyncio.wait_for(reader.read(), PATIENCE_S)

    assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"\r\n\r\n")
    assert source.yielded == 0
    writer.close()
