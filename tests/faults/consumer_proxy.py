"""A proxy that spoils renewals: two tries in three are throttled, answered 503, delayed or cut. All else passes unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from types import TracebackType

from tests.ports import free_port

_FATES = ("throttled", "unavailable", "delayed", "cut before", "cut after")
_DELAYS_S = (0.1, 0.6)  # some of them beyond what the keeper waits for
_LOOK_S = 0.02


class SpoilingProxy:
    """Listens while it is entered, in a thread of its own. `tries` counts what became of each renewal."""

    def __init__(self, upstream: int, seed: int) -> None:
        self.port = free_port()
        self.tries: Counter[str] = Counter()
        self._upstream = upstream
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._done: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="spoiling proxy")

    def __enter__(self) -> SpoilingProxy:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._done is not None
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=1 << 22)
        self._listening.set()
        await self._done.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream, limit=1 << 22)
            try:
                while await self._pass_one(reader, writer, there, back):
                    pass
            finally:
                back.transport.abort()
        except (OSError, EOFError):
            pass
        finally:
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()

    async def _pass_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False when the connection is to be cut."""
        request = await _message(reader)
        fate = self._fate(request)
        if fate == "cut before":
            return False
        if fate == "delayed":
            await asyncio.sleep(self._random.uniform(*_DELAYS_S))
            fate = "unavailable"  # late, and in vain
        if fate == "throttled":
            writer.write(_problem(400, "RequestThrottled"))
        elif fate == "unavailable":
            writer.write(_problem(503, "ServiceUnavailable"))
        else:
            back.write(request)
            answer = asyncio.ensure_future(_message(there))
            # A client that leaves must not be received for any longer.
            while not answer.done() and not reader.at_eof():
                await asyncio.wait([answer], timeout=_LOOK_S)
            if not answer.done():
                answer.cancel()
                return False
            if fate == "cut after":
                answer.exception()
                return False  # done, and nobody was told
            writer.write(answer.result())
        await writer.drain()
        return True

    def _fate(self, request: bytes) -> str:
        if b"AmazonSQS.ChangeMessageVisibility" not in request:
            return "passed"
        fate = "passed" if self._random.random() < 1 / 3 else self._random.choice(_FATES)
        self.tries[fate] += 1
        return fate


async def _message(reader: asyncio.StreamReader) -> bytes:
    """The next request or answer, whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)


def _problem(status: int, code: str) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": "spoiled on the way"}).encode()
    head = (
        f"HTTP/1.1 {status} Spoiled\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
