"""For the tests of the SQS client: an environment without AWS in it, and a server that behaves as badly as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S
from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.client.credentials import Credentials

KEYS = Credentials("AKIDTEST", "secret")
# Receives request after request and writes what it likes; the number says the how-manieth connection it is.
Behaviour = Callable[["Talk"], Awaitable[None]]


def forget_aws(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No AWS variable, and an empty home."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def http(status: int, body: Any, *headers: str) -> bytes:
    """An answer with its length."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(text)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + text


class Talk:
    """One connection, as the bad server sees it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number, self._reader, self.writer = number, reader, writer
        self.head = ""

    async def request(self) -> dict[str, Any]:
        """The next request's parameters; its head is kept."""
        self.head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = int(self.header("content-length"))
        found: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        return found

    def header(self, name: str) -> str:
        for line in self.head.split("\r\n")[1:]:
            if line.lower().startswith(f"{name}:"):
                return line.partition(":")[2].strip()
        return ""

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def gone(self) -> bytes:
        """Wait until the client has closed its side; what it said before that."""
        return await self._reader.read()


@contextlib.asynccontextmanager
async def bad_server(behave: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server each of whose connections does as told and is then closed."""
    numbers = iter(range(1, 1000))
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await behave(Talk(next(numbers), reader, writer))
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()
        running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        server.close()
        for task in [*running]:
            task.cancel()
        if running:
            await asyncio.wait(running)


@contextlib.asynccontextmanager
async def client_of(endpoint: str, **settings: Any) -> AsyncIterator[SqsClient]:
    """A client that is closed at the end; a machine that stands still for a while is no silence of the server's."""
    patient = {"connect_timeout_s": PATIENCE_S, "read_timeout_s": PATIENCE_S}
    client = SqsClient(endpoint=endpoint, **({"credentials": KEYS} | patient | settings))
    try:
        yield client
    finally:
        await client.close()


async def failure_of(call: Awaitable[Any]) -> tuple[Failure, str]:
    """How the call failed, and with what words."""
    with pytest.raises(ApiError) as raised:
        await call
    return raised.value.failure, str(raised.value)
