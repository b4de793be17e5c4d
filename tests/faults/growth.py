"""Inputs that grow: no decoder, validator, matcher, encoder or page may take more than about n log n of CPU time.

Every way of growing is doubled until it has its largest size, or until it has shown that it grows too fast; what is
compared is CPU time of this process, with a margin that leaves a slow or busy machine its freedom and no square.
"""

from __future__ import annotations

import asyncio
import gc
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

from tests.faults.growing_documents import (
    HEAD_BYTES_MAX,
    console_makers,
    head_makers,
    page_makers,
    smq_head_makers,
    smq_makers,
)
from tests.faults.growing_requests import BODY_BYTES_MAX, QUEUE, Maker, form_makers, json_makers
from tests.wire.kit import Wire
from veil.console.app import Console
from veil.console.queue_form import read_tags, write_tags
from veil.core.policy import evaluate, parse_policy
from veil.core.policy_conditions import Wildcards
from veil.core.text import xml_text
from veil.server.http_limits import HttpLimits
from veil.server.http_reader import RequestReader
from veil.wire import aws_json, aws_query
from veil.wire.call import read_page_token
from veil.wire.exchange import Request, Response
from veil.wire.request_errors import ParameterRefused
from veil.wire.shapes import AttributeValue, ReceivedMessage, ReceiveMessageOutput
from veil.wire.sigv4 import AccessKey, Verifier
from veil.wire.smq.call import SmqVerifier
from veil.wire.smq.front_end import SmqFrontEnd

_FIRST = 256
# Where a time begins to tell: below it is the cost of a call.
_TOLD_S = 0.0005
_BEARABLE_S = 0.005
# Caches, page faults and a busy neighbour make the same work several times dearer; a square passes this in three doublings.
_MARGIN = 6.0

Job = Callable[[], Awaitable[object]]
Subject = tuple[str, Callable[[int], Job], int]  # name, size -> what is measured, largest size


async def too_fast(subject: Subject, size_max: int) -> str | None:
    """What is wrong with the subject's growth, or None."""
    name, make, own_max = subject
    largest = min(size_max, own_max)
    size, told = min(_FIRST, largest), None
    while True:
        job = make(size)
        took_s = await _cpu_s(job)
        if told is None:
            told = (size, took_s) if took_s >= _TOLD_S else None
        elif took_s > _BEARABLE_S:
            grown = size / told[0]
            allowed_s = _MARGIN * told[1] * grown * math.log2(size) / math.log2(told[0])
            for _ in range(3):
                if took_s <= allowed_s:
                    break
                took_s = min(took_s, await _cpu_s(job))
            else:
                return f"{name}: {told[1] * 1000:.1f} ms for {told[0]}, {took_s * 1000:.0f} ms for {size}"
        if size == largest:
            return None
        size = min(2 * size, largest)


async def _cpu_s(job: Job) -> float:
    gc.disable()  # a collection of everything else is not this input's work
    try:
        began_s = time.process_time()
        await job()
        took_s = time.process_time() - began_s
        if took_s < _BEARABLE_S:  # cheap to do again, and the better of two is nearer to the truth
            began_s = time.process_time()
            await job()
            took_s = min(took_s, time.process_time() - began_s)
        return took_s
    finally:
        gc.enable()


# ---- requests


class Servers:
    """Front ends over a store in memory, with keys and without, and a console."""

    def __init__(self) -> None:
        keys = {"known": AccessKey("known", "secret", "000000000000")}
        self._wire = Wire(bulk=True)
        self.service = self._wire.service
        self.sqs = self._wire.front_end
        self.signed = Wire(verifier=Verifier(keys)).front_end
        self.smq = SmqFrontEnd(self.service, verifier=None)
        self.smq_signed = SmqFrontEnd(self.service, verifier=SmqVerifier(keys))
        self.console = Console(self.service, keys={}, account="000000000000", region="us-east-1")
        self.cookie = self.token = ""

    async def __aenter__(self) -> Servers:
        await self._wire.__aenter__()
        await self._wire.call("CreateQueue", QueueName=QUEUE)
        page = await self.console.handle(
            Request(
                "GET",
                f"/console/queues/us-east-1/{QUEUE}/send",
                "",
                {"host": "127.0.0.1:1"},
                b"",
                "127.0.0.1",
            )
        )
        self.cookie = next(value.partition(";")[0] for name, value in page.headers if name == "Set-Cookie")
        found = re.search(rb'name="token" value="([0-9a-f]+)"', page.body)
        assert found is not None
        self.token = found[1].decode()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._wire.__aexit__()

    def subjects(self) -> Iterator[Subject]:
        """Every way in which a request can grow."""
        yield from _asked(self.sqs.handle, (*json_makers(), *form_makers()), BODY_BYTES_MAX)
        yield from _asked(self.sqs.handle, head_makers(), HEAD_BYTES_MAX)
        yield from _asked(
            self.signed.handle, _named("with keys", (*form_makers(), *head_makers())), HEAD_BYTES_MAX
        )
        yield from _asked(self.smq.handle, smq_makers(), BODY_BYTES_MAX)
        yield from _asked(self.smq_signed.handle, _named("with keys", smq_head_makers()), HEAD_BYTES_MAX)
        yield from _asked(self.smq.handle, smq_head_makers(), HEAD_BYTES_MAX)
        forms = console_makers(self.token, self.cookie, 1)
        yield from _asked(self.console.handle, forms, BODY_BYTES_MAX)
        yield from _asked(self.console.handle, page_makers(), HEAD_BYTES_MAX)


def _named(note: str, makers: Iterable[tuple[str, Maker]]) -> Iterator[tuple[str, Maker]]:
    for name, make in makers:
        yield f"{name}, {note}", make


def _asked(
    handle: Callable[[Request], Awaitable[object]], makers: Iterable[tuple[str, Maker]], largest: int
) -> Iterator[Subject]:
    for name, make in makers:

        def job(size: int, make: Maker = make) -> Job:
            request = make(size).request()

            async def ask() -> None:
                answer = await handle(request)
                assert answer.status not in (500, 503), answer
                if isinstance(answer, Response) and answer.undelivered is not None:
                    answer.undelivered()

            return ask

        yield name, job, largest


# ---- what no request reaches alone


def functions() -> Iterator[Subject]:
    """Parts whose input is stored first, or comes in pieces."""

    def of(name: str, make: Callable[[int], Callable[[], object]], largest: int) -> Subject:
        def job(size: int) -> Job:
            run = make(size)

            async def once() -> None:
                run()

            return once

        return name, job, largest

    yield of("wildcard: one star", lambda n: lambda: _matches("*" + "a" * (n // 2) + "b", "a" * n), 8_192)
    yield of("wildcard: many stars", lambda n: lambda: _matches("*a" * (n // 2) + "b", "a" * n), 8_192)
    yield of("wildcard: questions", lambda n: lambda: _matches("*" + "?" * (n // 2) + "b", "a" * n), 8_192)
    yield of("wildcard: stars alone", lambda n: lambda: _matches("*" * n, "a" * n), 8_192)
    for way, pattern in (
        ("one star", "*" + "a" * 3_000 + "b"),
        ("stars", "*a" * 1_500 + "b"),
        ("marks", "*?" * 1_500 + "b"),
    ):
        yield of(
            f"policy: user agent against {way}",
            lambda n, pattern=pattern: _evaluation(pattern, "a" * n),
            HEAD_BYTES_MAX,
        )  # type: ignore[misc]
    yield of("page token", lambda n: lambda: _refused(read_page_token, "A" * n), BODY_BYTES_MAX)
    yield of(
        "tag lines: blanks", lambda n: lambda: _refused(read_tags, "k=v\n" + " " * n + "a"), BODY_BYTES_MAX
    )
    yield of("tag lines: quotes", lambda n: lambda: _refused(read_tags, '"\\' * (n // 2)), BODY_BYTES_MAX)
    yield of("tag lines: written", lambda n: lambda: write_tags({"a" + " " * n: '"' * n}), BODY_BYTES_MAX)
    for way, text in (
        ("letters", "a"),
        ("references", "&"),
        ("quotes", '"'),
        ("returns", "\r"),
        ("scripts", "é€"),
        ("marks", "\ufffe"),
    ):
        yield of(f"XML answer: body of {way}", lambda n, text=text: _xml(text * n, 1), 1 << 20)  # type: ignore[misc]
        yield of(f"SMQ text of {way}", lambda n, text=text: lambda: xml_text(text * n), 1 << 20)  # type: ignore[misc]
        yield of(f"JSON answer: body of {way}", lambda n, text=text: _json(text * n, 1), 1 << 20)  # type: ignore[misc]
    yield of("XML answer: messages", lambda n: _xml("a", n), 1_000)
    yield of("JSON answer: messages", lambda n: _json("a", n), 1_000)
    for way, pieces in _streams():
        yield of(f"HTTP: {way}", lambda n, pieces=pieces: lambda: _read(pieces(n)), BODY_BYTES_MAX)  # type: ignore[misc]


def _matches(pattern: str, text: str) -> bool:
    return Wildcards([pattern]).match(text)


def _evaluation(pattern: str, agent: str) -> Callable[[], object]:
    policy = parse_policy(
        '{"Version":"2012-10-17","Statement":{"Effect":"Deny","Principal":"*","Action":"*","Resource":"*",'
        '"Condition":{"StringLike":{"aws:UserAgent":"' + pattern + '"}}}}'
    )
    return lambda: evaluate(
        policy,
        caller_account="1" * 12,
        owner_account="1" * 12,
        action="SendMessage",
        resource_arn="arn:aws:sqs:us-east-1:111111111111:q",
        context={"aws:useragent": agent},
    )


def _refused(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except Exception as refusal:
        assert isinstance(refusal, ParameterRefused) or "expected" in str(refusal), refusal


def _messages(body: str, count: int) -> ReceiveMessageOutput:
    attributes = {f"a{number}": AttributeValue("String", "v") for number in range(10)}
    return ReceiveMessageOutput(
        [ReceivedMessage("i", "r", "m", body, {"SenderId": "s"}, "m", attributes)] * count
    )


def _xml(body: str, count: int) -> Callable[[], object]:
    output = _messages(body, count)
    return lambda: aws_query.answer("ReceiveMessage", output, "r")


def _json(body: str, count: int) -> Callable[[], object]:
    output = _messages(body, count)
    return lambda: aws_json.answer(output, "r")


def _streams() -> Iterator[tuple[str, Callable[[int], Iterable[bytes]]]]:
    head = b"POST / HTTP/1.1\r\nHost: a\r\n"
    length = head + b"Content-Length: %d\r\n\r\n"
    yield "body in pieces", lambda n: [length % n, *([b"a" * 256] * (n // 256))]
    yield "body byte by byte", lambda n: [length % (n // 64), *([b"a"] * (n // 64))]
    yield (
        "chunks",
        lambda n: [
            head + b"Transfer-Encoding: chunked\r\n\r\n",
            *([b"10\r\n" + b"a" * 16 + b"\r\n"] * (n // 22)),
        ],
    )
    yield "small chunks", lambda n: [head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * (n // 6)]
    yield (
        "head byte by byte",
        lambda n: [bytes([each]) for each in head + b"a: " + b"b" * min(n, HEAD_BYTES_MAX)],
    )
    yield "head of headers", lambda n: [head + b"a: b\r\n" * min(n // 6, HEAD_BYTES_MAX // 6)]
    yield "pipelined requests", lambda n: [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * (n // 27)]


def _read(pieces: Iterable[bytes]) -> None:
    reader = RequestReader(HttpLimits(), "")
    for piece in pieces:
        rest: bytes | bytearray = piece
        while rest and reader.refusal is None:
            rest = reader.feed(rest)
            reader.ready.clear()


async def all_too_fast(
    size_max: int, chosen: Callable[[int], bool] = lambda place: True
) -> tuple[int, list[str]]:
    """How many ways of growing were tried, and what is wrong with those that grow too fast."""
    async with Servers() as servers:
        subjects = [each for place, each in enumerate((*functions(), *servers.subjects())) if chosen(place)]
        problems = [problem for each in subjects if (problem := await too_fast(each, size_max)) is not None]
    return len(subjects), problems


def run_growth(size_max: int, chosen: Callable[[int], bool] = lambda place: True) -> tuple[int, list[str]]:
    """The same, with a loop of its own."""
    return asyncio.run(all_too_fast(size_max, chosen))
