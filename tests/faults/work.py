"""Requests of every size against a server with a meter on its event loop: none may keep it for longer than the bound.

First the largest that are allowed, each in turn, over queues that were filled for them; then many of all sizes, at random.
The table that is printed tells the longest stretch for each action.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.faults.client import Client, Refused, Unknown, read_answer
from tests.faults.growing_documents import (
    HEAD_BYTES_MAX,
    console_makers,
    head_makers,
    page_makers,
    smq_head_makers,
    smq_makers,
)
from tests.faults.growing_requests import BODY_BYTES_MAX, QUEUE, Made, Maker, form_makers, json_makers
from tests.faults.growth import run_growth
from tests.faults.malformed_framed import framed
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess
from tests.faults.smq_malformed import smq_framed
from tests.ports import free_port

REQUESTS = 100_000
BOUND_S = 0.050
_MIB = 1 << 20
_LARGE = "large"  # the queue with the largest messages
_LONG = "long"  # the queue with the most
_LANES = 4
_ANSWER_TIMEOUT_S = 60.0
_KEYS = "AKIDEXAMPLE:secretsecretsecret:111111111111"


def run_work(
    cycles: int = REQUESTS,
    seed: int = 1,
    *,
    largest: bool = True,
    growth_bytes: int = BODY_BYTES_MAX,
    bound_s: float = BOUND_S,
) -> Outcome:
    """Grow every input, then send the largest requests and so many of all sizes."""
    outcome = Outcome("work", seed)
    if growth_bytes:
        ways, problems = run_growth(growth_bytes)
        for problem in problems:
            outcome.add("growth", problem)
        outcome.done = f"{ways} ways of growing; "
    rows: dict[str, dict[str, Any]] = {}
    for keys in ("", _KEYS):
        share = cycles - cycles // 5 if not keys else cycles // 5
        with scratch(outcome) as place:
            found = _run_server(place, outcome, share, seed, keys, largest)
        for label, row in found.items():
            rows[label + (", with keys" if keys else "")] = row
    _judge(outcome, rows, bound_s)
    return outcome


def _run_server(
    place: Path, outcome: Outcome, requests: int, seed: int, keys: str, largest: bool
) -> dict[str, dict[str, Any]]:
    table, smq_port = place / "table.json", free_port()
    arguments = ["--smq-port", str(smq_port), "--bulk"]
    if keys:
        keys_file = place / "keys"
        keys_file.touch(0o600)
        keys_file.write_text(keys)
        arguments += ["--keys-file", str(keys_file)]
    server = ServerProcess(place / "data", place, meter=table, arguments=tuple(arguments))
    try:
        server.start()
        asyncio.run(_Load(server.port, smq_port, outcome, seed, bool(keys)).run(requests, largest))
        server.terminate(60)
    except ServerGone as problem:
        outcome.add("server", str(problem))
        return {}
    finally:
        server.kill()
    if "Traceback" in server.log_path.read_text(errors="replace"):
        outcome.add("traceback", server.talk())
    found: dict[str, dict[str, Any]] = json.loads(table.read_text())
    return found


def _judge(outcome: Outcome, rows: dict[str, dict[str, Any]], bound_s: float) -> None:
    lines = [f"{'longest stretch, ms':<52}{'requests':>9}{'loop':>8}{'thread':>8}"]
    for label, row in sorted(rows.items()):
        lines.append(
            f"{label:<52}{row['requests']:>9}{row['loop_s'] * 1000:>8.1f}{row['thread_s'] * 1000:>8.1f}"
        )
        for where in ("loop", "thread"):
            if row[f"{where}_s"] > bound_s:
                outcome.add(
                    where,
                    f"{label}: {row[f'{where}_s'] * 1000:.0f} ms for {row.get(f'{where}_sample', '')[:400]}",
                )
    total = sum(row["requests"] for row in rows.values())
    longest = max((row["loop_s"] for row in rows.values()), default=0.0)
    lines += [f"  {kind}: {text}" for kind, found in outcome.violations.items() for text in found]
    print("\n".join(lines), flush=True)
    outcome.done += f"{total} requests, longest stretch {longest * 1000:.1f} ms"


class _Load:
    """Everything that is sent to one server."""

    def __init__(self, port: int, smq_port: int, outcome: Outcome, seed: int, signed: bool) -> None:
        self._port, self._smq_port, self._outcome = port, smq_port, outcome
        self._seed, self._signed = seed, signed
        self._connections: dict[tuple[int, int], tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def run(self, requests: int, largest: bool) -> None:
        if not self._signed:
            await self._call("CreateQueue", QueueName=QUEUE)
            if largest:
                await self._fill()
                await self._send_largest()
        await self._fuzz(requests)
        for _, writer in self._connections.values():
            writer.transport.abort()

    # ---- the largest

    async def _fill(self) -> None:
        """Queues with the largest messages, with the most, and many queues."""
        for name in (_LARGE, _LONG):
            await self._call("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "0"})
        for text in ('"', "&", "a", "\n", "é€") * 8:
            await self._call(
                "SendMessage", QueueUrl=_LARGE, MessageBody=(text * _MIB)[: _MIB // len(text.encode())]
            )
        attributes = {f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(10)}
        entries = [
            {"Id": str(n), "MessageBody": f"body {n}", "MessageAttributes": attributes} for n in range(10)
        ]
        await self._many(500, "SendMessageBatch", lambda number: {"QueueUrl": _LONG, "Entries": entries})
        await self._many(1_500, "CreateQueue", lambda number: {"QueueName": f"many-{number}"})

    async def _many(self, count: int, action: str, given: Any) -> None:
        async def lane(first: int) -> None:
            client = Client(self._port)
            for number in range(first, count, 8):
                await client.call(action, **given(number))
            client.close()

        await asyncio.gather(*(lane(first) for first in range(8)))

    async def _send_largest(self) -> None:
        for made in self._largest():
            await self._ask(self._port, 0, made.wire())
        rng = random.Random(self._seed)
        for port, makers, count in (
            (self._port, list(json_makers()), 150),
            (self._port, list(form_makers()), 50),
            (self._smq_port, list(smq_makers()), 78),
            (self._port, await self._console_makers(), 60),
        ):
            for _, make in rng.sample(makers, min(count, len(makers))):
                await self._ask(port, 0, make(BODY_BYTES_MAX - 1_000).wire())
        for make_one in (_sqs("PurgeQueue", QueueUrl=_LONG), _sqs("DeleteQueue", QueueUrl=_LARGE)):
            await self._ask(self._port, 0, make_one.wire())
        await asyncio.sleep(1)  # what a deleted queue held goes away behind the answer

    def _largest(self) -> Iterable[Made]:
        everything = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        host = {"Host": f"127.0.0.1:{self._port}"}
        for queue in (_LARGE, _LONG):
            for count in (10, 1_000):
                given = {"QueueUrl": queue, "MaxNumberOfMessages": count, "VisibilityTimeout": 0}
                yield _sqs("ReceiveMessage", **given, **everything)
                yield _sqs(
                    "ReceiveMessage", **given, MessageAttributeNames=[f"n{n}.*" for n in range(10_000)]
                )
                form = "&".join(f"{name}={value}" for name, value in given.items())
                text = f"Action=ReceiveMessage&{form}&AttributeName.1=All&MessageAttributeName.1=All"
                yield Made(
                    "POST", "/", host | {"Content-Type": "application/x-www-form-urlencoded"}, text.encode()
                )
                name = {"Stream": f"s{count}", "Batch": 1, "Part": 1}
                yield _sqs("Veil.ReceiveHold", **given | {"VisibilityTimeout": 1}, **name)
            yield _sqs("Veil.PeekMessages", QueueUrl=queue, MaxResults=1_000)
            yield _sqs("Veil.PeekMessages", QueueUrl=queue, MaxResults=1_000, SentAfter=1)
            for page in (
                "",
                "/messages",
                "/in-flight",
                "/activity",
                "/settings",
                "/export",
                "/send",
                "/purge",
                "/delete",
            ):
                for search in ("", "?text=zzz&rows=50000", "?attribute=a1", "?text=a"):
                    yield Made("GET", f"/console/queues/us-east-1/{queue}{page}{search}", host)
            for search in ("", "?text=zzz&rows=50000"):
                yield Made("GET", f"/console/dead-letters/us-east-1/{queue}{search}", host)
        for page in (
            "queues",
            "queues?text=many",
            "queues/export",
            "consumers",
            "dead-letters",
            "audit",
            "timeouts",
            "messages?id=x",
        ):
            yield Made("GET", f"/console/{page}", host)
        for _ in range(2):
            yield Made("GET", "/metrics", host)
        yield _sqs("ListQueues", MaxResults=1_000)
        yield _sqs("GetQueueAttributes", QueueUrl=QUEUE, AttributeNames=["All"] * 10_000)
        bulk = [{"Id": str(n), "ReceiptHandle": "AQ" * 22, "VisibilityTimeout": 1} for n in range(1_000)]
        for action in ("DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
            yield _sqs(action, QueueUrl=_LONG, Entries=bulk)
        redriven = [
            {"Id": str(n), "MessageId": "m", "SequenceNumber": str(n + 1), "MessageBody": "b" * 8_000}
            for n in range(1_000)
        ]
        yield _sqs("Veil.RedriveMessages", QueueUrl=_LONG, Entries=redriven)

    async def _console_makers(self) -> list[tuple[str, Maker]]:
        path = f"/console/queues/us-east-1/{QUEUE}/send"
        made = Made("GET", path, {"Host": f"127.0.0.1:{self._port}"})
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(made.wire())
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        page = await reader.readexactly(int(length[1])) if length else b""
        writer.transport.abort()
        cookie = re.search(rb"Set-Cookie: ([^;]+)", head)
        token = re.search(rb'name="token" value="([0-9a-f]+)"', page)
        if cookie is None or token is None:
            return []
        return list(console_makers(token[1].decode(), cookie[1].decode(), self._port))

    # ---- of all sizes

    async def _fuzz(self, requests: int) -> None:
        bodies = [(self._port, make) for _, make in (*json_makers(), *form_makers())]
        bodies += [(self._smq_port, make) for _, make in smq_makers()]
        if not self._signed:
            bodies += [(self._port, make) for _, make in await self._console_makers()]
        heads = [(self._port, make) for _, make in (*head_makers(), *page_makers())]
        heads += [(self._smq_port, make) for _, make in smq_head_makers()]

        async def lane(number: int) -> None:
            rng = random.Random(f"{self._seed} {number}")
            for _ in range(requests // _LANES):
                chance = rng.random()
                if chance < 0.5:
                    port, data = self._port, framed(rng)
                elif chance < 0.7:
                    port, data = self._smq_port, smq_framed(rng)
                elif chance < 0.8:
                    port, make = rng.choice(heads)
                    data = make(_size(rng, HEAD_BYTES_MAX)).wire()
                else:
                    port, make = rng.choice(bodies)
                    data = make(_size(rng, BODY_BYTES_MAX - 1_000)).wire()
                await self._ask(port, number, data)

        await asyncio.gather(*(lane(number) for number in range(_LANES)))

    # ---- the wire

    async def _call(self, action: str, **given: Any) -> None:
        client = Client(self._port)
        try:
            await client.call(action, **given)
        except (Refused, Unknown) as problem:
            self._outcome.add("prepare", f"{action}: {problem}")
        client.close()

    async def _ask(self, port: int, lane: int, data: bytes) -> None:
        """Over a kept connection; a new one where the server has closed it."""
        streams = self._connections.pop((port, lane), None)
        if streams is None or streams[0].at_eof() or streams[1].is_closing():
            streams = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        reader, writer = streams
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                writer.write(data)
                if data.startswith(b"HEAD "):
                    await reader.readuntil(b"\r\n\r\n")
                    status = 200
                else:
                    status, _ = await read_answer(reader)
        except TimeoutError:
            self._outcome.add("late", f"no answer within {_ANSWER_TIMEOUT_S:g} s: {data[:200]!r}")
        except (OSError, EOFError):
            pass  # refused before it was sent whole, and closed
        else:
            if status in (500, 503):
                self._outcome.add(str(status), repr(data[:300]))
            if not data.startswith(b"HEAD "):
                self._connections[port, lane] = streams
                return
        writer.transport.abort()


def _size(rng: random.Random, largest: int) -> int:
    """Small ones mostly, by powers; the largest now and then."""
    return largest if rng.random() < 0.01 else int(largest ** rng.uniform(0.3, 0.95))


def _sqs(action: str, **given: Any) -> Made:
    target = action if "." in action else f"AmazonSQS.{action}"
    headers = {"Host": "localhost", "X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
    return Made("POST", "/", headers, json.dumps(given).encode())
