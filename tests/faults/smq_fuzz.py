"""Malformed requests at SMQ's port of a real server: none may be answered as the server's own fault, none may end it.

Framed requests go in pipelines over kept connections; some whole requests are spoiled byte by byte and sent on connections
of their own. Every refusal must be one that SMQ's clients can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.client import read_answer
from tests.faults.malformed_inputs import flip
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess, free_port
from tests.faults.smq_malformed import QUEUE, good_request, http, smq_framed

REQUESTS = 100_000
_LANES = 4
_PIPELINE = 16
_BATCH = 1_000
_RAW_SHARE = 0.1
_REFUSALS_5XX = (501, 505)
_GROWTH_BYTES_MAX = 48 << 20
_WARM_UP = 4_000
_ANSWER_TIMEOUT_S = 30.0
_NAMESPACE = "{http://mns.aliyuncs.com/doc/v1/}"


def run_smq_fuzz(cycles: int = REQUESTS, seed: int = 1) -> Outcome:
    """Send so many malformed requests."""
    outcome = Outcome("smq-fuzz", seed)
    with scratch(outcome) as place:
        port = free_port()
        server = ServerProcess(place / "data", place, arguments=("--smq-port", str(port)))
        try:
            server.start()
            asyncio.run(_Fuzz(server, port, outcome, place, seed).run(cycles))
        except ServerGone as problem:
            outcome.add("server", str(problem))
        finally:
            server.kill()
        if "Traceback" in server.log_path.read_text(errors="replace"):
            outcome.add("traceback", server.talk())
    return outcome


class _Fuzz:
    def __init__(self, server: ServerProcess, port: int, outcome: Outcome, place: Path, seed: int) -> None:
        self._server, self._port, self._outcome, self._place, self._seed = server, port, outcome, place, seed
        self._statuses: dict[int, int] = {}
        self._silent = 0

    async def run(self, requests: int) -> None:
        began_s = time.monotonic()
        before_bytes = self._server.resident_bytes()
        for start in range(0, requests, _BATCH):
            await self._send_framed([http("PUT", f"/queues/{QUEUE}", b"<Queue/>")])
            count = min(_BATCH, requests - start)
            share = -(-count // _LANES)
            async with asyncio.TaskGroup() as group:
                for lane in range(_LANES):
                    rng = random.Random(f"{self._seed} {start} {lane}")
                    group.create_task(self._lane(rng, min(share, count - lane * share)))
            await self._check_health(start)
            if start <= _WARM_UP:
                before_bytes = self._server.resident_bytes()
            if not self._outcome.ok:
                break
        grown = self._server.resident_bytes() - before_bytes
        if grown > _GROWTH_BYTES_MAX:
            self._outcome.add("memory", f"the server grew by {grown >> 20} MiB")
        statuses = " ".join(f"{status}:{count}" for status, count in sorted(self._statuses.items()))
        self._outcome.done = (
            f"{requests} requests in {time.monotonic() - began_s:.0f} s, {statuses} unanswered:{self._silent}, "
            f"memory {grown / (1 << 20):+.1f} MiB"
        )

    async def _lane(self, rng: random.Random, count: int) -> None:
        while count > 0:
            if rng.random() < _RAW_SHARE:
                await self._send_raw(flip(good_request(rng), rng))
                count -= 1
            else:
                batch = [smq_framed(rng) for _ in range(min(_PIPELINE, count))]
                await self._send_framed(batch)
                count -= len(batch)

    async def _send_framed(self, batch: list[bytes]) -> None:
        """In one go; where the server closes the connection after a refusal, the rest goes over a new one."""
        while batch:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 23)
            writer.write(b"".join(batch))
            answered = 0
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    for request in batch:
                        # HEAD has a length and no body to go with it: what follows could not be told apart.
                        if request.startswith(b"HEAD "):
                            await reader.readuntil(b"\r\n\r\n")
                            answered += 1
                            continue
                        status, body = await read_answer(reader)
                        answered += 1
                        self._note(status, body, request)
            except (OSError, EOFError) as problem:
                if answered == 0:
                    self._hold_against("unanswered", batch[0], repr(problem))
                    answered = 1
            except TimeoutError:
                self._hold_against("late", batch[answered], f"no answer within {_ANSWER_TIMEOUT_S:g} s")
                answered += 1
            finally:
                writer.transport.abort()
            batch = batch[answered:]

    async def _send_raw(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 23)
        answers = b""
        with contextlib.suppress(OSError):
            writer.write(request)
            writer.write_eof()
            try:
                answers = await asyncio.wait_for(reader.read(1 << 20), _ANSWER_TIMEOUT_S)
            except TimeoutError:
                self._hold_against("late", request, f"the connection stayed open for {_ANSWER_TIMEOUT_S:g} s")
        writer.transport.abort()
        if answers.startswith(b"HTTP/1."):
            self._note(int(answers[9:12]), b"", request)
        elif answers:
            self._hold_against("garbled", request, repr(answers[:100]))
        else:
            self._silent += 1

    def _note(self, status: int, body: bytes, request: bytes) -> None:
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if status >= 500 and status not in _REFUSALS_5XX:
            self._hold_against(str(status), request, f"answered {status}")
        if body.startswith(b"<?xml"):
            try:
                root = ElementTree.fromstring(body)
            except ElementTree.ParseError as problem:
                self._hold_against("unreadable", request, f"answered with XML that is none: {problem}")
                return
            told = {each.tag.removeprefix(_NAMESPACE) for each in root}
            if root.tag == f"{_NAMESPACE}Error" and told != {"Code", "Message", "RequestId", "HostId"}:
                self._hold_against("incomplete", request, f"an error with {told}")

    def _hold_against(self, kind: str, request: bytes, what: str) -> None:
        number = sum(len(found) for found in self._outcome.violations.values())
        path = self._place / f"offending-{number}.bin"
        path.write_bytes(request)
        self._outcome.add(kind, f"{what}: {request[:120]!r} (whole: {path})")

    async def _check_health(self, start: int) -> None:
        self._server.require_alive()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(http("GET", "/queues"))
        try:
            status, _ = await asyncio.wait_for(read_answer(reader), 10)
        except (OSError, EOFError, TimeoutError) as problem:
            status = 0
            self._outcome.add("unhealthy", f"after request {start + _BATCH}: {problem!r}")
        if status not in (0, 200):
            self._outcome.add("unhealthy", f"after request {start + _BATCH}: answered {status}")
        writer.transport.abort()
