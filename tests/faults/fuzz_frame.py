"""Malformed requests against a real server: none may be answered as the server's own fault, none may end it or fatten it.

Framed requests go in pipelines over kept connections, raw ones over connections of their own. After each batch a healthy
request must still be answered. 501 and 505 count as refusals: they are what HTTP gives for an unknown method, transfer
coding or version. What the requests are, and what else must be true of their answers, each protocol says for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

from tests.faults.client import read_answer
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess

BATCH = 1_000
PIPELINE = 16  # framed requests at a time
_REFUSALS_5XX = (501, 505)
_WARM_UP = 4_000  # allocator, caches and tables have their size after so many
_ANSWER_TIMEOUT_S = 30.0


class Fuzz:
    """One run against a server that is up, at one of its ports."""

    rig: str
    lanes: int  # connections at once
    raw_share: float  # how often it is a raw request's turn rather than a pipeline's
    growth_bytes_max: int

    def __init__(self, server: ServerProcess, port: int, outcome: Outcome, place: Path, seed: int) -> None:
        self.server, self.port, self.outcome = server, port, outcome
        self._place, self._seed = place, seed
        self._statuses: dict[int, int] = {}
        self._silent = 0

    # ---- what a protocol has of its own

    async def prepare(self) -> None:
        """Before each batch: make sure that there are queues to send to."""
        raise NotImplementedError

    def framed(self, rng: random.Random) -> bytes:
        """A request that ends where it says."""
        raise NotImplementedError

    def raw(self, rng: random.Random) -> bytes:
        """Bytes that may be anything."""
        raise NotImplementedError

    async def answer(self, reader: asyncio.StreamReader, request: bytes) -> tuple[int, bytes] | None:
        """Status and body of the answer to a framed request; None where there is nothing to note of it."""
        return await read_answer(reader)

    def check_body(self, body: bytes, request: bytes) -> None:
        """Hold against the server what its clients could not read."""

    async def check_health(self, sent: int) -> None:
        """After each batch: a healthy request must be answered."""
        raise NotImplementedError

    # ---- what is the same for all

    async def run(self, requests: int) -> None:
        """Send so many, or fewer if something is found before."""
        began_s = time.monotonic()
        before_bytes = self.server.resident_bytes()
        for start in range(0, requests, BATCH):
            await self.prepare()
            count = min(BATCH, requests - start)
            share = -(-count // self.lanes)
            async with asyncio.TaskGroup() as group:
                for lane in range(self.lanes):
                    rng = random.Random(f"{self._seed} {start} {lane}")
                    group.create_task(self._lane(rng, min(share, count - lane * share)))
            self.server.require_alive()
            await self.check_health(start + BATCH)
            if start <= _WARM_UP:
                before_bytes = self.server.resident_bytes()
            if not self.outcome.ok:
                break
        grown = self.server.resident_bytes() - before_bytes
        if grown > self.growth_bytes_max:
            self.outcome.add("memory", f"the server grew by {grown >> 20} MiB")
        statuses = " ".join(f"{status}:{count}" for status, count in sorted(self._statuses.items()))
        self.outcome.done = (
            f"{requests} requests in {time.monotonic() - began_s:.0f} s, {statuses} unanswered:{self._silent}, "
            f"memory {grown / (1 << 20):+.1f} MiB"
        )

    async def _lane(self, rng: random.Random, count: int) -> None:
        while count > 0:
            if rng.random() < self.raw_share:
                await self._send_raw(self.raw(rng))
                count -= 1
            else:
                batch = [self.framed(rng) for _ in range(min(PIPELINE, count))]
                await self.send_framed(batch)
                count -= len(batch)

    async def send_framed(self, batch: list[bytes]) -> None:
        """In one go; where the server closes the connection after a refusal, the rest goes over a new one."""
        while batch:
            reader, writer = await self._connect()
            writer.write(b"".join(batch))
            answered = 0
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    for request in batch:
                        answer = await self.answer(reader, request)
                        answered += 1
                        if answer is not None:
                            self._note(*answer, request)
            except TimeoutError:  # an OSError too, so it stands first
                self.hold_against("late", batch[answered], f"no answer within {_ANSWER_TIMEOUT_S:g} s")
                answered += 1
            except (OSError, EOFError) as problem:
                if answered == 0:
                    self.hold_against("unanswered", batch[0], repr(problem))
                    answered = 1
            finally:
                writer.transport.abort()
            batch = batch[answered:]

    async def _send_raw(self, request: bytes) -> None:
        """Then say that no more will come, and take whatever comes back until the server closes."""
        reader, writer = await self._connect()
        answers = b""
        with contextlib.suppress(OSError):
            writer.write(request)
            writer.write_eof()
            try:
                answers = await asyncio.wait_for(reader.read(1 << 20), _ANSWER_TIMEOUT_S)
            except TimeoutError:
                self.hold_against("late", request, f"the connection stayed open for {_ANSWER_TIMEOUT_S:g} s")
        writer.transport.abort()
        if answers.startswith(b"HTTP/1."):
            self._note(int(answers[9:12]), b"", request)
        elif answers:
            self.hold_against("garbled", request, repr(answers[:100]))
        else:
            self._silent += 1

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 23)

    def _note(self, status: int, body: bytes, request: bytes) -> None:
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if status >= 500 and status not in _REFUSALS_5XX:
            self.hold_against(str(status), request, f"answered {status}")
        self.check_body(body, request)

    def hold_against(self, kind: str, request: bytes, what: str) -> None:
        """A violation, with the request that led to it kept whole."""
        number = sum(len(found) for found in self.outcome.violations.values())
        path = self._place / f"offending-{number}.bin"
        path.write_bytes(request)
        self.outcome.add(kind, f"{what}: {request[:120]!r} (whole: {path})")


def run_against_server(
    fuzz: type[Fuzz], requests: int, seed: int, *, port: int | None = None, arguments: tuple[str, ...] = ()
) -> Outcome:
    """Start a server and send it so many, at that port or else at its first one."""
    outcome = Outcome(fuzz.rig, seed)
    with scratch(outcome) as place:
        server = ServerProcess(place / "data", place, arguments=arguments)
        try:
            server.start()
            asyncio.run(fuzz(server, port or server.port, outcome, place, seed).run(requests))
        except ServerGone as problem:
            outcome.add("server", str(problem))
        finally:
            server.kill()
        if "Traceback" in server.log_path.read_text(errors="replace"):
            outcome.add("traceback", server.talk())
    return outcome
