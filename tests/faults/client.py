"""A client thin enough that what it saw is beyond doubt: one connection, one request at a time, JSON, no retries."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

Answer = dict[str, Any]


class Refused(Exception):
    """Surely not done: a 4xx, or nobody to talk to."""


class Unknown(Exception):
    """Perhaps done: the connection was lost before the answer was complete, or a 5xx came back."""


class Client:
    """Speaks to a port of this machine; opens its connection when needed, again if it was lost.

    Where there are other nodes, it goes to the first of them that takes the connection, as behind a balancer.
    """

    def __init__(self, port: int, *others: int, retry_s: float = 30.0) -> None:
        self._ports = (port, *others)
        self._patience_s = retry_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, action: str, **given: Any) -> Answer:
        """One action; raises Refused or Unknown."""
        try:
            reader, writer = await self._connect()
        except OSError as problem:
            raise Refused(f"no connection: {problem}") from None
        try:
            async with asyncio.timeout(self._patience_s):
                writer.write(request_bytes(action, given))
                await writer.drain()
                status, body = await read_answer(reader)
        except (OSError, EOFError, TimeoutError, ValueError) as problem:
            self.close()
            raise Unknown(repr(problem)) from None
        except asyncio.CancelledError:
            self.close()
            raise
        if status >= 500:
            raise Unknown(f"{status} {body[:200]!r}")
        if status != 200:
            raise Refused(f"{status} {body[:200]!r}")
        answer: Answer = json.loads(body) if body else {}
        return answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = self._streams
        # A connection that the server closed meanwhile is not used: what was never sent was never done.
        if streams is None or streams[0].at_eof() or streams[1].is_closing():
            self.close()
            streams = self._streams = await self._open()
        return streams

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for port in self._ports[:-1]:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        return await asyncio.open_connection("127.0.0.1", self._ports[-1], limit=1 << 22)

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._streams[1].transport.abort()
            self._streams = None


def request_bytes(action: str, given: Answer) -> bytes:
    """The request as it goes over the wire."""
    body = json.dumps(given).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next answer; raises EOFError or ValueError where there is none."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    if status == 100:
        return await read_answer(reader)
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, await reader.readexactly(length)


async def queue_counts(client: Client, queue: str) -> tuple[int, int, int]:
    """Visible, in flight, delayed."""
    names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
    answer = await client.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=names)
    visible, in_flight, delayed = (int(answer["Attributes"][name]) for name in names)
    return visible, in_flight, delayed


async def until_zero_in_flight(client: Client, queue: str, within_s: float) -> int:
    """Wait until nothing of the queue is hidden, for so long at most; how many still are."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while True:
        _, in_flight, _ = await queue_counts(client, queue)
        if in_flight == 0 or loop.time() > deadline_s:
            return in_flight
        await asyncio.sleep(0.02)
