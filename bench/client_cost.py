"""What one call costs the client in CPU: boto3, aiobotocore if it is installed, and the consumer's own client.

    python -m bench.client_cost [--calls 300] [--rounds 5]

All of them receive ten messages of 300 bytes and delete ten in one call, one call at a time, on the same server and in the
same run, taking turns. The last two rows say what the choice of the HTTP layer is worth: the same signed bytes, with
nothing decoded, over the client's own connections and over asyncio's streams. Below the table: the parts of a call.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol
from urllib.parse import urlsplit

import uvloop

from bench import wire_requests as wire
from tests.signing import sign
from veil.client import answers
from veil.client.client import SqsClient
from veil.client.connection import HttpAnswer, HttpPool, RequestHead
from veil.client.credentials import DUMMY
from veil.client.endpoint import parse_endpoint
from veil.testing import VeilServer

BATCH = 10
REGION = "us-east-1"
_KEYS = {"aws_access_key_id": "veil", "aws_secret_access_key": "veil", "region_name": REGION}


def now_ms() -> int:
    """Wall time, for signatures."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one call."""

    receive_cpu_us: float
    delete_cpu_us: float
    receive_wall_us: float
    delete_wall_us: float


class Caller(Protocol):
    """A client under measurement."""

    async def receive(self) -> list[str]:
        """The receipts of ten messages."""

    async def delete(self, receipts: list[str]) -> None:
        """Delete them in one call."""

    async def close(self) -> None:
        """Let go of the connections."""


class Boto3:
    """boto3, as most consumers use it; it blocks, and nothing else is there to be blocked."""

    def __init__(self, endpoint: str, url: str) -> None:
        import boto3

        self._client = boto3.client("sqs", endpoint_url=endpoint, **_KEYS)
        self._url = url

    async def receive(self) -> list[str]:
        answer = self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=BATCH,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return [each["ReceiptHandle"] for each in answer.get("Messages", ())]

    async def delete(self, receipts: list[str]) -> None:
        entries = [{"Id": str(at), "ReceiptHandle": receipt} for at, receipt in enumerate(receipts)]
        self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)

    async def close(self) -> None:
        self._client.close()


class AioBotocore:
    """The same botocore on aiohttp."""

    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url

    async def receive(self) -> list[str]:
        answer = await self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=BATCH,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return [each["ReceiptHandle"] for each in answer.get("Messages", ())]

    async def delete(self, receipts: list[str]) -> None:
        entries = [{"Id": str(at), "ReceiptHandle": receipt} for at, receipt in enumerate(receipts)]
        await self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)

    async def close(self) -> None:
        await self._client.close()


class Own:
    """The consumer's client."""

    def __init__(self, endpoint: str, url: str) -> None:
        self._client, self._url = SqsClient(endpoint=endpoint, region=REGION, credentials=DUMMY), url

    async def receive(self) -> list[str]:
        return [each.receipt for each in await self._client.receive(self._url, count=BATCH, wait_s=0)]

    async def delete(self, receipts: list[str]) -> None:
        assert not any(await self._client.delete(self._url, receipts))

    async def close(self) -> None:
        await self._client.close()


class Bytes:
    """Requests made by the client's own hand and answers left as they are, over some way to exchange them."""

    def __init__(self, endpoint: str, url: str, exchange: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._head = RequestHead(parse_endpoint(endpoint), REGION, "bench", now_ms)
        self._name, self._exchange = url.rpartition("/")[2], exchange

    async def receive(self) -> list[str]:
        answer = await self.ask(wire.receive(self._name, BATCH), "ReceiveMessage")
        return [each.decode() for each in wire.receipts_in(answer)]

    async def delete(self, receipts: list[str]) -> None:
        given = wire.delete(self._name, [each.encode() for each in receipts])
        await self.ask(given, "DeleteMessageBatch")

    async def close(self) -> None:
        pass

    async def ask(self, whole: bytes, action: str) -> bytes:
        """The answer to the body of that request, under a head of the client's own."""
        body = whole.partition(b"\r\n\r\n")[2]
        return await self._exchange(self._head.request(f"AmazonSQS.{action}", body, DUMMY, "0", 1))


def over_own_connections(endpoint: str) -> Callable[[bytes], Awaitable[bytes]]:
    """The client's HTTP layer alone."""
    pool = HttpPool(parse_endpoint(endpoint), connections=1, connect_timeout_s=5, ssl_context=None)

    async def exchange(request: bytes) -> bytes:
        return (await pool.exchange(request, timeout_s=30, answer_bytes_max=1 << 20)).body

    return exchange


async def over_streams(endpoint: str) -> Callable[[bytes], Awaitable[bytes]]:
    """As little as asyncio's streams need: the head up to its blank line, then as much as it announces."""
    parts = urlsplit(endpoint)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)

    async def exchange(request: bytes) -> bytes:
        async with asyncio.timeout(30):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            at = head.index(b"content-length: ") + 16
            return await reader.readexactly(int(head[at : head.index(b"\r", at)]))

    return exchange


Make = Callable[[str, str], Awaitable[Caller]]


async def _boto3(endpoint: str, url: str) -> Caller:
    return Boto3(endpoint, url)


async def _aiobotocore(endpoint: str, url: str) -> Caller:
    from aiobotocore.session import get_session  # type: ignore[import-not-found,unused-ignore]

    context = get_session().create_client("sqs", endpoint_url=endpoint, **_KEYS)
    return AioBotocore(await context.__aenter__(), url)


async def _own(endpoint: str, url: str) -> Caller:
    return Own(endpoint, url)


async def _own_bytes(endpoint: str, url: str) -> Caller:
    return Bytes(endpoint, url, over_own_connections(endpoint))


async def _streams(endpoint: str, url: str) -> Caller:
    return Bytes(endpoint, url, await over_streams(endpoint))


# Name, how it is made, whether on uvloop.
CONTENDERS: tuple[tuple[str, Make, bool], ...] = (
    ("boto3", _boto3, False),
    ("aiobotocore", _aiobotocore, False),
    ("aiobotocore, uvloop", _aiobotocore, True),
    ("veil", _own, False),
    ("veil, uvloop", _own, True),
    ("bytes, own connections", _own_bytes, False),
    ("bytes, asyncio streams", _streams, False),
)


async def measure(make: Make, endpoint: str, url: str, calls: int) -> Cost:
    """The mean cost of so many calls of each kind, after a few that are not counted."""
    caller = await make(endpoint, url)
    for _ in range(5):
        await caller.delete(await caller.receive())
    held: list[list[str]] = []
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for _ in range(calls):
        held.append(await caller.receive())
    receive_cpu_s, receive_wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    if any(len(receipts) != BATCH for receipts in held):
        raise RuntimeError("a receive found less than ten messages: the figures would mean nothing")
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for receipts in held:
        await caller.delete(receipts)
    delete_cpu_s, delete_wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    await caller.close()
    each_us = 1e6 / calls
    return Cost(
        receive_cpu_s * each_us, delete_cpu_s * each_us, receive_wall_s * each_us, delete_wall_s * each_us
    )


def parts_us(answer: HttpAnswer, url: str, rounds: int = 2000) -> dict[str, float]:
    """CPU microseconds of the single steps of a call."""
    endpoint = parse_endpoint("http://127.0.0.1:9324")
    head = RequestHead(endpoint, REGION, "bench", now_ms)
    body = wire.delete(url.rpartition("/")[2], [b"A" * 44] * BATCH).partition(b"\r\n\r\n")[2]
    plain = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.DeleteMessageBatch"}

    def general() -> None:
        sign(
            method="POST", host="127.0.0.1:9324", path="/", headers=plain, body=body,
            key_id="veil", secret="veil", region=REGION, now_ms=now_ms(),
        )  # fmt: skip

    steps: dict[str, Callable[[], object]] = {
        "sign a delete of ten, in general": general,
        "write and sign its whole head": lambda: head.request(
            "AmazonSQS.DeleteMessageBatch", body, DUMMY, "0", 1
        ),
        "decode ten messages, checksums too": lambda: answers.messages_in(answer, 0.0),
    }
    costs = {}
    for name, step in steps.items():
        begun_s = time.process_time()
        for _ in range(rounds):
            step()
        costs[name] = (time.process_time() - begun_s) / rounds * 1e6
    return costs


def _run(on_uvloop: bool, work: Any) -> Any:
    return uvloop.run(work) if on_uvloop else asyncio.run(work)


async def _one_answer(endpoint: str, url: str) -> HttpAnswer:
    given = {"QueueUrl": url, "MaxNumberOfMessages": BATCH, "MessageSystemAttributeNames": ["All"]}
    caller = Bytes(endpoint, url, over_own_connections(endpoint))
    return HttpAnswer(200, [], await caller.ask(wire.request("ReceiveMessage", given), "ReceiveMessage"))


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.client_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=300, help="of each kind and round (300)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="the table shows the least of each: on a busy machine, noise only adds (5)",
    )
    given = parser.parse_args(arguments)
    costs: dict[str, list[Cost]] = {}
    missing: list[str] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        VeilServer("--store", "sqlite", "--data", f"{directory}/data") as server,
    ):
        boto = server.client()
        url = boto.create_queue(QueueName="cost", Attributes={"VisibilityTimeout": "3600"})["QueueUrl"]

        def fill(messages: int) -> None:
            entries = [{"Id": str(at), "MessageBody": wire.BODY} for at in range(BATCH)]
            for _ in range(messages // BATCH + 1):
                boto.send_message_batch(QueueUrl=url, Entries=entries)

        for turn in range(given.rounds):
            for name, make, on_uvloop in CONTENDERS:
                if name in missing:
                    continue
                print(f"round {turn + 1}: {name}", file=sys.stderr)
                fill((given.calls + 5) * BATCH)
                try:
                    cost = _run(on_uvloop, measure(make, server.endpoint_url, url, given.calls))
                except ImportError:
                    missing.append(name)
                    continue
                costs.setdefault(name, []).append(cost)
        fill(BATCH)
        steps = parts_us(asyncio.run(_one_answer(server.endpoint_url, url)), url)
    boto.close()
    print(
        f"boto3 {version('boto3')}, Python {sys.version.split()[0]}, the least of {given.rounds} × {given.calls} calls, µs\n"
    )
    print(f"{'client':<24} {'receive 10: CPU':>15} {'wall':>8} {'delete 10: CPU':>15} {'wall':>8}")
    for name, rows in costs.items():
        print(
            f"{name:<24} {min(row.receive_cpu_us for row in rows):15,.0f} {min(row.receive_wall_us for row in rows):8,.0f}"
            f" {min(row.delete_cpu_us for row in rows):15,.0f} {min(row.delete_wall_us for row in rows):8,.0f}"
        )
    for name in missing:
        print(f"{name:<24} not installed")
    print()
    for name, cost_us in steps.items():
        print(f"{name:<40} {cost_us:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
