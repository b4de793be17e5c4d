"""Malformed requests at the port that speaks SQS; none may smuggle another past the server."""

from __future__ import annotations

import contextlib
import random

from tests.faults.client import Client, Refused, Unknown
from tests.faults.fuzz_frame import PIPELINE, Fuzz, run_against_server
from tests.faults.malformed_framed import framed
from tests.faults.malformed_inputs import FIFO, QUEUE
from tests.faults.malformed_raw import SMUGGLED, raw
from tests.faults.rig import Outcome

REQUESTS = 20_000
_RAW_PER_FRAMED = 0.15


def run_fuzz(cycles: int = REQUESTS, seed: int = 1) -> Outcome:
    """Send so many malformed requests."""
    return run_against_server(_SqsFuzz, cycles, seed)


class _SqsFuzz(Fuzz):
    rig = "fuzz"
    lanes = 6
    raw_share = _RAW_PER_FRAMED * PIPELINE / (1 + _RAW_PER_FRAMED * PIPELINE)
    growth_bytes_max = 32 << 20

    async def prepare(self) -> None:
        client = Client(self.port)
        for name, attributes in ((QUEUE, {}), (FIFO, {"FifoQueue": "true"})):
            # Refused where a spoiled request has changed its settings since: then it exists, which is enough.
            with contextlib.suppress(Refused):
                await client.call("CreateQueue", QueueName=name, Attributes=attributes)
        client.close()

    def framed(self, rng: random.Random) -> bytes:
        return framed(rng)

    def raw(self, rng: random.Random) -> bytes:
        return raw(rng)

    async def check_health(self, sent: int) -> None:
        client = Client(self.port, retry_s=10.0)
        try:
            await client.call("ListQueues", MaxResults=1)
        except (Refused, Unknown) as problem:
            self.outcome.add("unhealthy", f"after request {sent}: {problem}")
        with contextlib.suppress(Refused):
            await client.call("GetQueueUrl", QueueName=SMUGGLED)
            self.outcome.add("smuggled", f"before request {sent} a request inside another was obeyed")
        client.close()
