"""Malformed requests at SMQ's port: every refusal must be one that SMQ's clients can read.

The raw ones are whole requests, spoiled byte by byte.
"""

from __future__ import annotations

import asyncio
import random
from xml.etree import ElementTree

from tests.faults.client import read_answer
from tests.faults.fuzz_frame import Fuzz, run_against_server
from tests.faults.malformed_inputs import flip
from tests.faults.rig import Outcome
from tests.faults.smq_malformed import QUEUE, good_request, http, smq_framed
from tests.ports import free_port

REQUESTS = 100_000
_NAMESPACE = "{http://mns.aliyuncs.com/doc/v1}"


def run_smq_fuzz(cycles: int = REQUESTS, seed: int = 1) -> Outcome:
    """Send so many malformed requests."""
    port = free_port()
    return run_against_server(_SmqFuzz, cycles, seed, port=port, arguments=("--smq-port", str(port)))


class _SmqFuzz(Fuzz):
    rig = "smq-fuzz"
    lanes = 4
    raw_share = 0.1
    growth_bytes_max = 48 << 20

    async def prepare(self) -> None:
        await self.send_framed([http("PUT", f"/queues/{QUEUE}", b"<Queue/>")])

    def framed(self, rng: random.Random) -> bytes:
        return smq_framed(rng)

    def raw(self, rng: random.Random) -> bytes:
        return flip(good_request(rng), rng)

    async def answer(self, reader: asyncio.StreamReader, request: bytes) -> tuple[int, bytes] | None:
        # HEAD has a length and no body to go with it: what follows could not be told apart.
        if request.startswith(b"HEAD "):
            await reader.readuntil(b"\r\n\r\n")
            return None
        return await read_answer(reader)

    def check_body(self, body: bytes, request: bytes) -> None:
        if not body.startswith(b"<?xml"):
            return
        try:
            root = ElementTree.fromstring(body)
        except ElementTree.ParseError as problem:
            self.hold_against("unreadable", request, f"answered with XML that is none: {problem}")
            return
        told = {each.tag.removeprefix(_NAMESPACE) for each in root}
        if root.tag == f"{_NAMESPACE}Error" and told != {"Code", "Message", "RequestId", "HostId"}:
            self.hold_against("incomplete", request, f"an error with {told}")

    async def check_health(self, sent: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(http("GET", "/queues"))
        try:
            status, _ = await asyncio.wait_for(read_answer(reader), 60)
        except (OSError, EOFError, TimeoutError) as problem:
            status = 0
            self.outcome.add("unhealthy", f"after request {sent}: {problem!r}")
        if status not in (0, 200):
            self.outcome.add("unhealthy", f"after request {sent}: answered {status}")
        writer.transport.abort()
