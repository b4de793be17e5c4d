"""What a page costs: a console on a store full of large things, and how long each request keeps the event loop to itself.

`python -m tests.console.page_costs` prints the table.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from veil.console.app import Console
from veil.core.clock import ManualClock
from veil.core.findings import FILE, Candidate, CurvePoint, Finding, Findings, WithPolicy, encode
from veil.core.message import ERROR_TYPE, REASON, SOURCE_QUEUE, Caller, MessageAttribute
from veil.core.message_rules import Draft, size_bytes
from veil.core.queue import Queue, QueueKey, RedrivePolicy
from veil.service.messages import extend_lease, send
from veil.service.queues import create_queue
from veil.service.receive import receive
from veil.service.service import Service
from veil.stores.sqlite import SqliteStore
from veil.wire.exchange import Response

ACCOUNT, REGION = "000000000000", "us-east-1"
MIB = 1 << 20
COOKIE = "x" * 32
CALLER = Caller(ACCOUNT, "KEY", "agent", "127.0.0.1")


@dataclass(frozen=True)
class Asked:
    """A request as the console sees it."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    peer: str = "127.0.0.1"
    content_type: str = "application/x-www-form-urlencoded"

    @property
    def headers(self) -> dict[str, str]:
        return {
            "host": "localhost",
            "origin": "http://localhost",
            "cookie": f"veil_console={COOKIE}",
            "content-type": self.content_type,
        }


@dataclass
class Cost:
    """What one request took."""

    status: int
    bytes: int
    longest_ms: float  # CPU of the longest pass of the loop
    total_ms: float  # CPU of all of them
    bytes_read: int  # of messages, from the store


class Watch:
    """The longest pass of the event loop, in CPU time of its thread: what else there is to do waits for it to end."""

    def __init__(self) -> None:
        self.longest_s = self.total_s = 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        run_once = BaseEventLoop._run_once  # type: ignore[attr-defined]

        def timed(loop: Any) -> None:
            began_s = time.thread_time()
            try:
                run_once(loop)
            finally:
                took_s = time.thread_time() - began_s
                self.longest_s = max(self.longest_s, took_s)
                self.total_s += took_s

        BaseEventLoop._run_once = timed  # type: ignore[attr-defined]
        try:
            yield
        finally:
            BaseEventLoop._run_once = run_once  # type: ignore[attr-defined]


class Crowded:
    """A console on a SQLite store that is filled by `fill`; `scale` 1 is what a test can afford."""

    def __init__(self, folder: Path, scale: float = 1) -> None:
        self.scale = scale
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.folder = folder
        self.read_bytes = 0
        self.runner.run(self._start())
        self._console_token = self.console.sessions.csrf_token(COOKIE)

    async def _start(self) -> None:
        self.store = SqliteStore(self.folder / "store", self.clock, journal=True)
        self.service = Service(self.store, self.clock)
        await self.service.start()
        self.console = Console(
            self.service, keys={}, account=ACCOUNT, region=REGION, tables=self.folder / "tables"
        )
        peek = self.store.peek

        async def counted(*args: Any, **named: Any) -> Any:
            messages = await peek(*args, **named)
            self.read_bytes += sum(size_of(each) for each in messages)
            return messages

        self.store.peek = counted  # type: ignore[method-assign]

    def close(self) -> None:
        self.runner.run(self.service.stop())
        self.runner.close()

    def many(self, count: int) -> int:
        return max(2, round(count * self.scale))

    # ---- what it holds

    def fill(self) -> None:
        self.runner.run(self._fill())

    async def _fill(self) -> None:
        await self._live()
        dead = await self._queue("dead")
        await self._queue("orders", redrive=RedrivePolicy(dead.key, 3))
        await self._send(await self._queue("big"), list(large_drafts(self.many(40))))
        await self._send(await self._queue("attributes"), list(attribute_drafts(self.many(40))))
        await self._send(dead, list(letter_drafts(self.many(60))))
        small = await self._queue("small")
        drafts = [Draft(f"order {number}") for number in range(100)]
        for _ in range(self.many(60)):
            await self._send(small, drafts)
        held = await self._queue("held")
        await self._send(held, list(large_drafts(self.many(40))))
        while await receive(self.service, held, count=10, visibility_s=43_200, wait_s=0, caller=CALLER):
            pass
        letters = await self._queue("letters")
        for first in range(0, self.many(2_000), 100):
            await self._send(letters, [_letter(f"„{first + number} " * 800, "x") for number in range(100)])
        for number in range(self.many(1_500)):
            await self._crowd(number, dead)
        for number in range(self.many(2_000)):
            caller = Caller(ACCOUNT, f"KEY{number}", "agent " * 40, f"10.0.{number >> 8}.{number & 255}")
            await receive(self.service, held, count=1, visibility_s=1, wait_s=0, caller=caller)
        self._findings()

    def fill_heavily(self, name: str, size: int) -> None:
        """A queue with so many bytes in messages of 1 MiB, in their bodies or in their attributes."""
        make = attribute_drafts if "attributes" in name else letter_drafts
        drafts = list(make(12))
        each = sum(size_bytes(draft) for draft in drafts) / len(drafts)

        async def fill() -> None:
            queue = await self._queue(name)
            await self._send(queue, [drafts[at % len(drafts)] for at in range(round(1.2 * size / each))])

        self.runner.run(fill())

    async def _queue(self, name: str, tags: dict[str, str] | None = None, **given: Any) -> Queue:
        return await create_queue(self.service, QueueKey(REGION, ACCOUNT, name), given, tags or {})

    async def _send(self, queue: Queue, drafts: list[Draft]) -> None:
        for first in range(0, len(drafts), 50):
            answers = await send(
                self.service, queue, drafts[first : first + 50], sender=ACCOUNT, caller=CALLER
            )
            assert not [each for each in answers if isinstance(each, Exception)]
            self.clock.advance(1)

    async def _crowd(self, number: int, dead: Queue) -> None:
        tags = {f"{each:02d}" + "k" * 100: "<&>" * 80 for each in range(50)}
        statement = {
            "Sid": "x" * 7_000,
            "Effect": "Allow",
            "Principal": "*",
            "Action": "sqs:SendMessage",
            "Resource": "*",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        redrive = RedrivePolicy(dead.key, 3)
        await self._queue(f"crowd-{number:05d}", tags, policy=policy, redrive=redrive)

    async def _live(self) -> None:
        """A message that was received, renewed and given back thousands of times."""
        queue = await self._queue("lived")
        await self._send(queue, [Draft("x" * MIB)])
        for number in range(self.many(1_500)):
            (message,) = await receive(self.service, queue, count=1, visibility_s=30, wait_s=0, caller=CALLER)
            receipt = self.store.receipts.write(queue.id, message.seq, message.delivery)
            self.clock.advance(seconds=1)
            await extend_lease(self.service, queue, [(receipt, 60)], caller=CALLER)
            self.clock.advance(seconds=61 if number % 2 else 300)
            await extend_lease(self.service, queue, [(receipt, 0)], caller=CALLER)
        self.lived_seq = message.seq

    def _findings(self) -> None:
        (self.folder / "tables").mkdir(exist_ok=True)
        candidates = [
            Candidate(each, [WithPolicy("none", 1 / each, 1 / each, each / 2, 0)]) for each in range(1, 60)
        ]
        curve = [CurvePoint(each, 1 / each, 1 / each, 1 / each, 9) for each in range(1, 200)]
        made = []
        for number in range(self.many(1_500)):
            for kind in (
                (None, "Placed") if number else (None, *(f"Type{each}" for each in range(self.many(500))))
            ):
                made.append(_finding(f"crowd-{number:05d}", kind, curve, candidates))
        found = Findings(1, "2026-01-01T00:00:00Z", 0.001, made)
        (self.folder / "tables" / FILE).write_bytes(encode(found))

    # ---- asking

    def ask(self, asked: Asked) -> Cost:
        """What the request costs, a stream up to its first drawing."""
        watch = Watch()
        self.read_bytes = 0
        with watch.on():
            answer, size = self.runner.run(self._ask(asked))
        self.runner.run(self._pass_time())  # what is kept for a moment is stale for the next one
        return Cost(answer.status, size, watch.longest_s * 1000, watch.total_s * 1000, self.read_bytes)

    async def _pass_time(self) -> None:
        self.clock.advance(seconds=10)
        # What the clock has set off is not the next page's cost.
        while self.console.history._sampling is not None or self.service._background:
            await asyncio.sleep(0)

    async def _ask(self, asked: Asked) -> tuple[Response, int]:
        answer = await self.console.handle(asked)
        if answer.stream is None:
            return answer, len(answer.body)
        size = 0
        async for event in answer.stream:
            size += len(event)
            if answer.content_type.startswith("text/event-stream") and event.startswith(b"event: "):
                break
        await answer.stream.aclose()  # type: ignore[attr-defined]
        return answer, size

    def consumer_mark(self) -> str:
        """The name of a consumer's page."""
        listed = self.runner.run(self._ask(self.get("/consumers")))[0].body.decode()
        return next(iter(re.findall(r'href="/console/consumers/(\w+)"', listed)), "nobody")

    def get(self, address: str) -> Asked:
        path, _, query = address.partition("?")
        return Asked("GET", f"/console{path}", query)

    def post(self, path: str, **fields: str) -> Asked:
        body = urlencode({"token": self._console_token, **fields}).encode()
        return Asked("POST", f"/console{path}", body=body)

    def requests(self) -> dict[str, Asked]:
        """Every page there is, over the worst that this store holds."""
        queues = "/queues/us-east-1"
        gets = [
            "/queues", "/queues?sort=oldest&empty=hide", "/queues?search=crowd&page=9", "/queues/live", "/queues/new",
            "/queues/new?clone=us-east-1/crowd-00000", "/queues/export", "/queues/export?format=cloudformation",
            "/queues/export?format=terraform&download=1", f"{queues}/crowd-00000/export", f"{queues}/crowd-00000/tags",
            f"{queues}/crowd-00000/policy",
            f"{queues}/crowd-00000/settings", f"{queues}/big", f"{queues}/crowd-00000/edit", f"{queues}/dead/settings",
            f"{queues}/dead/delete", f"{queues}/big/purge", f"{queues}/big/activity", f"{queues}/big/activity/live",
            f"{queues}/big/live", f"{queues}/big/send", f"{queues}/big/pause", f"{queues}/big/resume",
            "/overview", "/overview/live", "/overview?over=week",
            *(f"{queues}/{name}/messages{rest}" for name in ("big", "attributes", "dead", "small")
              for rest in ("", "/live", "?text=zzz", "?attribute=zzz", "?receives=9", "?state=delayed")),
            f"{queues}/held/in-flight", f"{queues}/held/in-flight/live", f"{queues}/small/in-flight",
            "/dead-letters", "/dead-letters/live", "/dead-letters?empty=hide",
            *(f"/dead-letters/us-east-1/{name}{rest}" for name in ("dead", "big", "attributes", "letters", "small")
              for rest in ("", "/live", "?text=zzz&rows=50000", "?source=zzz", "?redriven=yes&rows=50000")),
            "/messages", "/messages?id=zzz", "/messages?id=zzz&queue=us-east-1/big",
            "/messages?text=zzz", "/messages?attribute=zzz", "/messages?state=delayed",
            f"{queues}/lived/messages/{self.lived_seq}", f"{queues}/lived/messages/{self.lived_seq}/live",
            f"{queues}/lived/messages/{self.lived_seq}?further=64",
            *(f"{queues}/{name}/messages/{seq}{rest}" for name, seqs in self.seqs().items()
              for seq in seqs for rest in ("", "/live")),
            *(f"/dead-letters/us-east-1/dead/{seq}/edit" for seq in self.seqs()["dead"]),
            "/timeouts", "/timeouts/us-east-1/crowd-00000", "/consumers", "/consumers?search=9", "/consumers/live",
            f"/consumers/{self.consumer_mark()}",
            "/audit", "/audit?search=zzz", "/login", "/nowhere",
        ]  # fmt: skip
        found = {f"GET {address}": self.get(address) for address in gets}
        return found | self._posts()

    def _posts(self) -> dict[str, Asked]:
        queues, lines = "/queues/us-east-1", "\n".join('{"body": {"number": 1}}' for _ in range(1_000))
        seq = self.seqs()["dead"][0]
        found = {
            "send 1 MiB": self.post(f"{queues}/big/send", body="<" * MIB),
            "send JSON": self.post(f"{queues}/big/send", body="[" + "1," * 400_000 + "1]"),
            "send, 500,000 attribute lines": self.post(f"{queues}/big/send", body="x", attributes="a=b\n" * 500_000),
            "send, 1 MiB of blank lines": self.post(f"{queues}/big/send", body="x", attributes="\n" * MIB),
            "send 1,000 lines": self.post(f"{queues}/big/send", messages=lines),
            "send a large line": self.post(f"{queues}/big/send", messages='{"body": [' + "1," * 900_000 + "1]}"),
            "send blank lines": self.post(f"{queues}/big/send", messages="\n" * (2 << 20)),
            "send deep": self.post(f"{queues}/big/send", messages='{"body": ' + "[" * MIB + "]" * MIB + "}"),
            "tags, 2 MiB": self.post(f"{queues}/orders/tags", tags="k=v\n" * 500_000),
            "tags, blanks": self.post(f"{queues}/orders/tags", tags="k=v\n" + " " * MIB + "a"),
            "policy, 2 MiB": self.post(f"{queues}/orders/policy", policy="[" * (2 << 20)),
            "edit, sources": self.post(
                f"{queues}/orders/edit", allow_permission="byQueue", allow_sources="a " * MIB
            ),
            "new, everything long": self.post(
                "/queues/new", name="x" * MIB, tags="k" * MIB, policy="{" * MIB, kms_key="y" * MIB
            ),
            "edit and resend": self.post(f"/dead-letters/us-east-1/dead/{seq}/edit", body="<" * MIB, to="orders"),
            "redrive all": self.post("/dead-letters/us-east-1/dead/redrive", what="all", text="zzz"),
            "redrive small": self.post("/dead-letters/us-east-1/letters/redrive", what="all", text="zzz"),
            "form of escapes": Asked("POST", f"/console{queues}/big/send", body=b"body=" + b"%41" * (8 * MIB // 3 - 9)),
            "form of two bytes": Asked("POST", f"/console{queues}/big/send", body=b"body=" + b"a%41" * (2 * MIB - 9)),
            "form of plus": Asked("POST", f"/console{queues}/big/send", body=b"body=" + b"+" * (8 * MIB - 9)),
            "form of ampersands": Asked("POST", f"/console{queues}/big/send", body=b"&" * (8 * MIB)),
        }  # fmt: skip
        ticked = [("letter", f"{each}:x") for each in range(1, 1_900)]
        body = urlencode([("token", self._console_token), ("what", "ticked"), ("step", "make"), *ticked])
        found["redrive 1,900 ticked"] = Asked(
            "POST", "/console/dead-letters/us-east-1/dead/redrive", body=body.encode()
        )
        for name, head in (("parts", b'name="body"'), ("heads", b'name="' * 1_000_000)):
            part = b"--X\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (head, b"y" * MIB)
            found[f"multipart, {name}"] = Asked(
                "POST",
                f"/console{queues}/big/send",
                body=part + b"--X--\r\n",
                content_type="multipart/form-data; boundary=X" + " " * 20_000,
            )
        return {f"POST {name}": asked for name, asked in found.items()}

    def seqs(self) -> dict[str, list[int]]:
        """Keys of the largest messages of each queue."""

        async def first(name: str) -> list[int]:
            queue = await self.store.find_queue(QueueKey(REGION, ACCOUNT, name))
            assert queue is not None
            return [
                each.seq for each in await self.store.peek(queue, limit=len(BODIES) if name != "dead" else 3)
            ]

        return {name: self.runner.run(first(name)) for name in ("big", "attributes", "dead")}


def size_of(message: Any) -> int:
    """The bytes of a message: its body and its attributes."""
    attributes = message.attributes or {}
    return int(message.body_bytes) + sum(len(name) + len(each.value) for name, each in attributes.items())


# Each of about 1 MiB in UTF-8: what a body can be at its worst for somebody who shows it.
BODIES: dict[str, Callable[[], str]] = {
    "plain": lambda: "x" * MIB,
    "markup": lambda: "<&>'\"" * (MIB // 5),
    "numbers": lambda: "[" + "1," * (MIB // 2 - 2) + "1]",
    "numbers of 99,000": lambda: "[" + "1," * 49_000 + "1]",
    "deep and wide": lambda: "[" * 480 + "1," * 49_000 + "1" + "]" * 480,
    "nested": lambda: "[" * 40_000 + "]" * 40_000,
    "objects": lambda: "[" + ",".join('{"a":1}' for _ in range(12_000)) + "]",
    "another script": lambda: "İ" * (MIB // 2),
    "blanks": lambda: " " * MIB,
    "lines": lambda: "\n" * MIB,
}


def large_drafts(count: int) -> Iterator[Draft]:
    made = [make() for make in BODIES.values()]
    for number in range(max(count, len(made))):
        yield Draft(made[number % len(made)])


def attribute_drafts(count: int) -> Iterator[Draft]:
    values = ["<&>" * 34_000, "İ" * 50_000, "9 " * 50_000]
    for number in range(max(count, 6)):
        text = values[number % len(values)]
        yield Draft(
            "x",
            {
                **{f"{each}" + "n" * 200: MessageAttribute("String", text) for each in range(9)},
                "bytes": MessageAttribute("Binary", b"\x00" * 90_000),
            },
        )


def letter_drafts(count: int) -> Iterator[Draft]:
    for number in range(count):
        yield _letter(f"{number} „" * 40_000, ("<&>İ" * 100_000)[: 400_000 + number])


def _letter(reason: str, body: str) -> Draft:
    texts = {REASON: reason, ERROR_TYPE: "E" * 1_000, SOURCE_QUEUE: "orders", "MessageType": reason[:200]}
    return Draft(body, {name: MessageAttribute("String", text) for name, text in texts.items()})


def _finding(queue: str, kind: str | None, curve: Any, candidates: Any) -> Finding:
    filled: dict[str, Any] = dict.fromkeys(Finding.__struct_fields__, 1)
    filled |= {
        "region": REGION,
        "account": ACCOUNT,
        "queue": queue,
        "message_type": kind,
        "since": None,
        "until": None,
    }
    filled |= {"policy": "none", "certainty": "clear", "reason": "x", "missing": None, "replay": None}
    filled |= {
        "curve": curve,
        "candidates": candidates,
        "present_timeout_s": 30.0,
        "recommended_timeout_s": 20,
    }
    return msgspec.convert(filled, Finding)


def main() -> None:
    """Print what every page costs, the worst first."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder:
        crowded = Crowded(Path(folder), scale)
        crowded.fill()
        costs = {}
        for name, asked in crowded.requests().items():
            if only in name:
                costs[name] = crowded.ask(asked)
        crowded.close()
    print(f"{'request':76} status  answer    read  longest    total")
    for name, cost in sorted(costs.items(), key=lambda each: -each[1].longest_ms):
        print(
            f"{name[:76]:76} {cost.status:6} {cost.bytes >> 10:6}K {cost.bytes_read >> 20:6}M "
            f"{cost.longest_ms:6.1f} ms {cost.total_ms:7.0f} ms"
        )


if __name__ == "__main__":
    main()
