"""The HTTP server over real sockets: requests, limits, deadlines, clients that go away, and stopping."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ClassVar

import pytest

from tests.tls_kit import Authority
from tests.waiting import PATIENCE_S, until_async
from veil.server.http import HttpServer, listening
from veil.server.http_limits import HttpLimits
from veil.server.settings import Settings
from veil.server.tls import Tls
from veil.wire.exchange import Handler, Request, Response

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

Start = Callable[..., Awaitable[HttpServer]]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's, and that of clients who trust it."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = authority.issue()
    server = Tls(Settings(tls_cert=pair.cert, tls_key=pair.key)).context
    return server, ssl.create_default_context(cafile=authority.ca)


@pytest.fixture(params=["plain", "tls"])
async def start(
    request: pytest.FixtureRequest, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> AsyncIterator[Start]:
    servers: list[HttpServer] = []
    own, Client.tls = contexts if request.param == "tls" else (None, None)

    async def start_one(handler: Handler, host: str = "127.0.0.1", **limits: float) -> HttpServer:
        server = HttpServer(handler, HttpLimits(**limits))
        await server.start(host, 0, tls=None if own is None else lambda: own)
        servers.append(server)
        return server

    yield start_one
    for client in Client.opened:
        client.vanish()
        with contextlib.suppress(OSError):
            await client.writer.wait_closed()
    Client.opened.clear()
    for server in servers:
        await server.close(grace_s=0)
        assert server.connection_count == 0


class Client:
    """A raw socket with an end to every wait."""

    opened: ClassVar[list[Client]] = []
    tls: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opened.append(self)

    @classmethod
    async def of(cls, server: HttpServer) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, limit=2**24, ssl=cls.tls))

    @classmethod
    async def socket_to(cls, server: HttpServer) -> socket.socket:
        """A socket that the test reads and writes itself."""

        def connect() -> socket.socket:
            plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            return plain if cls.tls is None else cls.tls.wrap_socket(plain, server_hostname="127.0.0.1")

        return await asyncio.to_thread(connect)

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0] or "0")
            return int(head.split(" ")[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.read()

    def half_close(self) -> None:
        if self.tls is None:
            self.writer.write_eof()
        else:
            self.writer.close()  # says that nothing more will come, and waits to hear the same

    def vanish(self) -> None:
        self.writer.transport.abort()


def common_client(server: HttpServer) -> http.client.HTTPConnection:
    if Client.tls is None:
        return http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=Client.tls)


async def ok(request: Request) -> Response:
    return Response(body=b"ok")


async def show(request: Request) -> Response:
    return Response(body=f"{request.method} {request.path} {request.query} ".encode() + request.body)


class Gate:
    """A handler that waits to be let through and notes how it ended."""

    def __init__(self, response: Response | None = None) -> None:
        self.entered, self.opened, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.response = response or Response(body=b"through")
        self.paths: list[str] = []

    async def __call__(self, request: Request) -> Response:
        self.paths.append(request.path)
        self.entered.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self.response


def now_s() -> float:
    return asyncio.get_running_loop().time()


# ---- requests and answers


async def test_a_common_client_gets_answers_on_one_kept_connection(start):
    server = await start(show)

    def talk() -> list[tuple[int, bytes]]:
        connection = common_client(server)
        answers = []
        for method, body in (
            ("POST", b"x" * 300_000),
            ("GET", None),
            ("HEAD", None),
            ("PUT", iter([b"a", b"b"])),
        ):
            connection.request(method, "/p?q=1", body=body)
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
        connection.close()
        return answers

    assert await asyncio.to_thread(talk) == [
        (200, b"POST /p q=1 " + b"x" * 300_000),
        (200, b"GET /p q=1 "),
        (200, b""),
        (200, b"PUT /p q=1 ab"),
    ]


async def test_headers_are_lower_case_and_repeated_ones_joined(start):
    seen: list[Request] = []

    async def remember(request: Request) -> Response:
        seen.append(request)
        return Response()

    client = await Client.of(await start(remember))
    client.send(
        b"GET /%41 HTTP/1.1\r\nHOST: a\r\nX-Amz-Target: t \r\nx-odd: 1\r\nX-Odd:  2\t\r\nX-E:\r\n\r\n"
    )
    await client.answer()

    assert seen[0].headers == {"host": "a", "x-amz-target": "t", "x-odd": "1, 2", "x-e": ""}
    assert (seen[0].path, seen[0].peer) == ("/%41", "127.0.0.1")


async def test_an_absolute_target_overrides_the_host(start):
    async def host(request: Request) -> Response:
        return Response(body=request.headers["host"].encode())

    client = await Client.of(await start(host))
    client.send(b"GET http://other:1/ HTTP/1.1\r\nHost: a\r\n\r\n")

    assert await client.answer() == (200, b"other:1")


async def test_http_1_0_closes_unless_asked_to_stay(start):
    server = await start(ok)
    client = await Client.of(server)
    client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    async with asyncio.timeout(60):
        assert b"Connection: keep-alive\r\n" in await client.reader.readuntil(b"ok")
    client.send(b"GET / HTTP/1.0\r\n\r\n")

    assert b"Connection: close\r\n" in await client.rest()


async def test_pipelined_requests_run_one_after_the_other_and_in_order(start):
    gate = Gate()
    client = await Client.of(await start(gate))
    client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(2_000)))
    await gate.entered.wait()
    client.send(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert gate.paths == ["/0"]
    gate.opened.set()

    assert (await client.rest()).count(b"through") == 2_001
    assert gate.paths == [f"/{n}" for n in range(2_000)] + ["/last"]


async def test_a_client_that_pipelines_without_end_is_no_longer_read(start):
    gate = Gate()
    server = await start(gate)
    with await Client.socket_to(server) as flood:
        flood.setblocking(False)
        sent = 0

        def stuck() -> bool:
            nonlocal sent
            try:
                sent += flood.send(GET * 10_000)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return True
            return False

        # Twice with turns of the loop between: what was read is bounded, the rest fills the kernel's buffers.
        for _ in range(20):
            await until_async(stuck)
        assert sent < 32 * 2**20
        assert gate.paths == ["/"]


async def test_the_body_is_asked_for_when_the_client_waits_to_send_it(start):
    client = await Client.of(await start(show))
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    async with asyncio.timeout(60):
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"ab")

    assert await client.answer() == (200, b"POST /  ab")


async def test_a_body_is_asked_for_only_after_the_answers_before_it(start):
    gate = Gate()
    client = await Client.of(await start(gate))
    client.send(GET + b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    await gate.entered.wait()
    gate.opened.set()

    assert await client.answer() == (200, b"through")
    assert await client.answer() == (100, b"")
    client.send(b"ab")
    assert await client.answer() == (200, b"through")


async def test_a_body_that_would_be_refused_is_not_asked_for(start):
    client = await Client.of(await start(ok, body_bytes_max=10))
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n")

    assert (await client.answer())[0] == 413


async def test_ipv6_is_served(start):
    try:
        server = await start(ok, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    reader, writer = await asyncio.open_connection("::1", server.port, ssl=Client.tls)
    writer.write(LAST)

    async with asyncio.timeout(60):
        assert (await reader.read()).endswith(b"ok")
    writer.close()


# ---- limits


@pytest.mark.parametrize("one_by_one", [False, True])
async def test_a_head_of_exactly_the_limit_passes_and_one_byte_more_does_not(start, one_by_one):
    server = await start(ok, header_bytes_max=300)
    for size_bytes, status in ((300, 200), (301, 431)):
        client = await Client.of(server)
        raw = GET[:-2] + b"X: " + b"p" * (size_bytes - len(GET) - 5) + b"\r\n\r\n"
        assert len(raw) == size_bytes
        for piece in [raw[at : at + 1] for at in range(len(raw))] if one_by_one else [raw]:
            client.send(piece)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == status


async def test_pipelined_requests_that_each_keep_the_limit_are_all_answered(start):
    client = await Client.of(await start(ok, header_bytes_max=64))
    client.send(20 * GET)
    assert [(await client.answer())[0] for _ in range(20)] == [200] * 20


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 2000, 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 2000, 431),
        (b"\r\n" * 1000, 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1389\r\n" + b"a" * 5001, 413),
    ],
)
async def test_what_is_too_large_is_refused(start, raw, status):
    server = await start(ok, header_bytes_max=1000, header_count_max=20, body_bytes_max=5000)
    client = await Client.of(server)
    client.send(raw)

    assert (await client.answer())[0] == status
    assert await client.rest() == b""


async def test_the_refusal_reaches_a_client_that_is_still_sending(start):
    server = await start(ok, body_bytes_max=1000)

    def talk() -> int:
        connection = common_client(server)
        connection.request("POST", "/", body=b"x" * 4_000_000)
        with connection.getresponse() as answer:
            status = answer.status
        connection.close()
        return status

    assert await asyncio.to_thread(talk) == 413


async def test_large_bodies_are_bounded_in_total_and_counted_off_when_done(start):
    server = await start(show, body_bytes_total_max=300_000)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
    first, second, third = [await Client.of(server) for _ in range(3)]
    first.send(head + b"x" * 190_000)
    await until_async(lambda: server._state.capacity.held_bytes == 190_000)
    second.send(head + b"x" * 190_000)
    assert (await second.answer())[0] == 503
    first.send(b"x" * 10_000)
    assert (await first.answer())[0] == 200
    third.send(head + b"x" * 200_000)

    assert (await third.answer())[0] == 200
    assert server._state.capacity.held_bytes == 0


async def test_answers_that_nobody_reads_are_counted_with_the_bodies_and_bounded(start):
    taken_back = []

    async def large(request: Request) -> Response:
        return Response(body=b"x" * 40_000_000, undelivered=lambda: taken_back.append(request.path))

    server = await start(large, body_bytes_total_max=125_000_000)
    capacity = server._state.capacity
    with contextlib.ExitStack() as stack:
        for count in (1, 2, 3):
            stack.enter_context(await Client.socket_to(server)).sendall(GET)
            # The kernel takes up to ten megabytes of each; the rest is ours.
            await until_async(lambda count=count: capacity.held_bytes > count * 29_000_000)
        assert not taken_back
        late = await Client.of(server)
        late.send(GET.replace(b"/", b"/late", 1))
        said = await late.rest()
        assert b"HTTP/1.1 503 " in said and b"too many unread answers" in said
        assert taken_back == ["/late"]
    await until_async(lambda: capacity.held_bytes == 0)
    again = await Client.of(server)
    again.send(GET)
    assert (await again.answer())[0] == 200


async def test_an_answer_counts_from_when_it_is_made_of_what_was_read_for_it(start):
    told: list[bool] = []
    gate = asyncio.Event()

    async def making(request: Request) -> Response:
        told.append(request.has_room(40_000))
        await gate.wait()
        if request.path == "/fails":
            raise RuntimeError
        return Response(body=b"x" * 40_000)

    server = await start(making, body_bytes_total_max=100_000)
    capacity = server._state.capacity
    clients = [await Client.of(server) for _ in range(3)]
    for client in clients:
        client.send(LAST)
    await until_async(lambda: len(told) == 3)
    assert sorted(told) == [False, True, True]
    assert capacity.held_bytes == 80_000
    clients[told.index(True)].vanish()
    await until_async(lambda: capacity.held_bytes == 40_000)
    gate.set()
    await until_async(lambda: capacity.held_bytes == 0)
    failing = await Client.of(server)
    failing.send(GET.replace(b"/", b"/fails", 1))
    assert (await failing.answer())[0] == 500
    assert told[3] and capacity.held_bytes == 0


def still_held() -> Counter[str]:
    """What of new connections is in memory; with the collector off, whatever refers to itself stays here."""
    kinds = ("HttpConnection", "RequestReader", "Request", "Response")
    return Counter(name for each in gc.get_objects(generation=0) if (name := type(each).__name__) in kinds)


@pytest.mark.parametrize(
    "way", ["reset", "half-close", "late", "refused", "in the handler", "answered", "malformed"]
)
async def test_what_a_connection_held_is_let_go_with_it_and_not_by_the_collector(start, way):
    gate = Gate()
    gate.opened.set()
    server = await start(gate, body_bytes_max=500_000)
    if way == "in the handler":
        gate.opened.clear()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n"
    gc.disable()
    try:
        before = still_held()
        for _ in range(3):
            client = await Client.of(server)
            gate.entered.clear()
            if way in ("in the handler", "answered"):
                client.send(head + b"x" * 400_000)
                await gate.entered.wait()
            elif way == "refused":
                client.send(head.replace(b"Content-Length: 400000", b"Transfer-Encoding: chunked"))
                client.send(b"7a120\r\n" + b"x" * 500_000 + b"\r\n10\r\n" + b"x" * 16)
                assert (await client.answer())[0] == 413
            elif way == "malformed":
                client.send(GET.replace(b"/ HTTP", b"/ NONE"))
                assert (await client.answer())[0] == 400
            else:
                client.send(head + b"x" * 300_000)
                await until_async(lambda: server._state.capacity.held_bytes == 300_000)
            if way == "half-close":
                client.half_close()
            elif way == "late":
                server.sweep(now_s() + 1_000)
                assert (await client.answer())[0] == 408
                assert server._state.capacity.held_bytes == 0
            if way != "half-close":
                client.vanish()
            await until_async(lambda: server.connection_count == 0)
            await asyncio.sleep(0)
        # Fewer is no leak: a connection of an earlier test may have been on its way out when counting began.
        assert not still_held() - before
        assert server._state.capacity.held_bytes == 0
    finally:
        gc.enable()


# ---- deadlines


async def test_a_slow_head_is_closed_with_408(start):
    server = await start(ok)
    client = await Client.of(server)
    client.send(b"GET / HTTP/1.1\r\nHo")
    (connection,) = await connections_in(server, 1)
    await until_async(lambda: connection._reader.target_seen)
    deadline_s = connection.deadline_s
    server.sweep(deadline_s - 1)
    begun_s = now_s()
    await until_async(lambda: now_s() > begun_s + 0.005)
    client.send(b"st: a\r\nX:")
    await until_async(lambda: connection._reader._head_bytes > 20)
    server.sweep(deadline_s)  # a byte now and then does not put it off

    assert (await client.answer())[0] == 408
    assert await client.rest() == b""


async def test_a_slow_body_is_closed_with_408(start):
    server = await start(ok)
    client = await Client.of(server)
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")
    (connection,) = await connections_in(server, 1)
    await until_async(lambda: connection._reader.body_bytes == 2)
    server.sweep(now_s() + 29)
    assert server._state.capacity.seats_taken == 1 and connection._state == 0
    server.sweep(now_s() + 30)

    assert (await client.answer())[0] == 408


async def test_an_idle_connection_is_closed_without_a_word(start):
    server = await start(ok)
    client = await Client.of(server)
    client.send(GET)
    await client.answer()
    server.sweep(now_s() + 74)
    client.send(GET)
    assert (await client.answer())[0] == 200
    server.sweep(now_s() + 75)

    assert await client.rest() == b""


async def test_empty_lines_do_not_keep_a_connection(start):
    server = await start(ok)
    client = await Client.of(server)
    client.send(b"\r\n")
    (connection,) = await connections_in(server, 1)
    await until_async(lambda: connection._reader.phase != 0)
    server.sweep(now_s() + 10)

    assert await client.rest() == b""


async def test_a_running_request_has_no_deadline(start):
    gate = Gate()
    server = await start(gate)
    client = await Client.of(server)
    client.send(GET)
    await gate.entered.wait()
    server.sweep(now_s() + 1_000_000)
    gate.opened.set()

    assert await client.answer() == (200, b"through")


async def test_a_client_that_does_not_take_its_answer_is_cut(start):
    async def large(request: Request) -> Response:
        return Response(body=b"x" * 32_000_000)

    server = await start(large, write_buffer_bytes_max=1000)
    with await Client.socket_to(server) as idler:
        idler.sendall(GET * 3)
        (connection,) = await connections_in(server, 1)
        await until_async(lambda: connection._write_paused)
        assert connection._worker is None  # the next request waits until this answer is taken
        size_bytes = connection._transport.get_write_buffer_size()
        server.sweep(now_s() + 31)
        if connection._transport.get_write_buffer_size() < size_bytes:  # the kernel took some more meanwhile
            server.sweep(now_s() + 62)
        await until_async(lambda: server.connection_count == 0)


async def test_an_answer_larger_than_the_write_buffer_arrives_and_the_connection_goes_on(start):
    async def large(request: Request) -> Response:
        return Response(body=b"@" * 8_000_000)

    client = await Client.of(await start(large, write_buffer_bytes_max=1000))
    client.send(GET * 2 + LAST)

    assert (await client.rest()).count(b"@") == 24_000_000


# ---- clients that go away


@pytest.mark.parametrize("way", ["close", "reset", "half-close", "close behind a pipelined request"])
async def test_a_request_ends_when_its_client_has_gone(start, way):
    gate = Gate()
    server = await start(gate)
    client = await Client.of(server)
    client.send(GET * (2 if "pipelined" in way else 1))
    await gate.entered.wait()
    if way == "half-close":
        client.half_close()
    elif way == "reset":
        raw = client.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.vanish()
    else:
        client.vanish()

    async with asyncio.timeout(60):
        await gate.cancelled.wait()
    await until_async(lambda: server.connection_count == 0)
    assert gate.paths == ["/"]
    client.vanish()


async def test_an_answer_that_nobody_can_take_is_taken_back(start):
    taken_back: list[bool] = []
    entered, finish = asyncio.Event(), asyncio.Event()

    async def stubborn(request: Request) -> Response:
        entered.set()
        with contextlib.suppress(asyncio.CancelledError):
            await finish.wait()  # the store had committed: there is an answer all the same
        return Response(undelivered=lambda: taken_back.append(True))

    server = await start(stubborn)
    client = await Client.of(server)
    client.send(GET)
    await entered.wait()
    client.vanish()

    await until_async(lambda: server.connection_count == 0)
    assert taken_back == [True]


async def test_an_answer_is_written_when_it_may_be_delivered_and_not_before(start):
    asked, may = asyncio.Event(), asyncio.Event()
    taken_back: list[bool] = []

    async def delivering() -> None:
        asked.set()
        await may.wait()

    async def handler(request: Request) -> Response:
        return Response(undelivered=lambda: taken_back.append(True), delivering=delivering)

    server = await start(handler)
    client = await Client.of(server)
    client.send(LAST)
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.05)
    may.set()
    assert (await client.rest()).startswith(b"HTTP/1.1 200 ")
    assert taken_back == []

    asked.clear()
    may.clear()
    gone = await Client.of(server)
    gone.send(GET)
    await asked.wait()
    gone.vanish()
    await until_async(lambda: server.connection_count == 0)
    assert taken_back == [True]


async def test_an_answer_that_was_written_is_not_taken_back(start):
    taken_back: list[bool] = []

    async def handler(request: Request) -> Response:
        return Response(undelivered=lambda: taken_back.append(True))

    client = await Client.of(await start(handler))
    client.send(LAST)
    await client.rest()

    assert taken_back == []


async def test_a_failing_handler_gives_500_is_logged_once_and_closes(start, caplog):
    async def fail(request: Request) -> Response:
        raise LookupError("secret detail")

    client = await Client.of(await start(fail))
    with caplog.at_level(logging.INFO, "veil.server"):
        client.send(GET * 2)
        said = await client.rest()

    assert said.startswith(b"HTTP/1.1 500 ") and said.endswith(b"\r\n\r\ninternal error\n")
    assert b"secret" not in said
    (record,) = [each for each in caplog.records if each.name == "veil.server.http_connection"]
    assert "LookupError" in str(record.exc_text or record.exc_info)


async def test_an_answer_that_cannot_be_written_gives_500_and_is_taken_back(start, caplog):
    taken_back: list[bool] = []

    async def split(request: Request) -> Response:
        return Response(headers=(("X", "a\r\nY: b"),), undelivered=lambda: taken_back.append(True))

    client = await Client.of(await start(split))
    client.send(GET)

    assert (await client.rest()).startswith(b"HTTP/1.1 500 ")
    assert taken_back == [True]


async def test_a_handler_that_cancels_itself_does_not_leave_its_client_waiting(start):
    async def give_up(request: Request) -> Response:
        raise asyncio.CancelledError

    client = await Client.of(await start(give_up))
    client.send(GET)

    with contextlib.suppress(ConnectionResetError):
        assert await client.rest() == b""


# ---- many clients


async def connections_in(server: HttpServer, count: int) -> list[object]:
    await until_async(lambda: server.connection_count == count)
    return list(server._state.connections)


async def test_a_burst_beyond_the_limit_is_told_so_and_those_inside_are_served(start):
    server = await start(ok, connections_max=20, idle_spared_s=60, linger_s=600)
    clients = [await Client.of(server) for _ in range(200)]
    if Client.tls is None:  # over TLS a client's own side ends when it hears that ours has
        await until_async(lambda: server.connection_count == 200)
    assert server._state.capacity.seats_taken == 20
    statuses = []
    for client in clients:
        client.send(GET)
        statuses.append((await client.answer())[0])

    assert statuses == [200] * 20 + [503] * 180
    for client in clients:
        client.vanish()
    await until_async(lambda: server.connection_count == 0)
    late = await Client.of(server)
    late.send(LAST)
    assert (await late.rest()).startswith(b"HTTP/1.1 200 ")


async def test_a_thousand_connections_at_once_leave_the_server_sound(start):
    server = await start(ok, connections_max=50)

    async def one() -> bytes:
        try:
            client = await Client.of(server)
        except ConnectionError:
            return b"reset"  # in the middle of its handshake
        client.send(LAST)
        try:
            return (await client.rest())[:12]
        except ConnectionResetError:
            return b"reset"
        finally:
            client.vanish()

    outcomes = await asyncio.gather(*(one() for _ in range(1000)))

    assert set(outcomes) <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b"", b"reset"}
    assert outcomes.count(b"HTTP/1.1 200") >= 50
    await until_async(lambda: server.connection_count == 0)
    assert server._state.capacity.seats_taken == 0
    assert await one() == b"HTTP/1.1 200"


async def test_the_longest_idle_connection_makes_room_for_a_newcomer(start):
    server = await start(ok, connections_max=2, idle_spared_s=0)
    first, second = await Client.of(server), await Client.of(server)
    for client in (first, second, first):  # the second is now idle for longer
        client.send(GET)
        await client.answer()
    third = await Client.of(server)
    third.send(GET)

    assert (await third.answer())[0] == 200
    with contextlib.suppress(ConnectionResetError):
        assert await second.rest() == b""
    first.send(GET)
    assert (await first.answer())[0] == 200


async def test_a_busy_connection_makes_no_room(start):
    gate = Gate()
    server = await start(gate, connections_max=1, idle_spared_s=0)
    busy = await Client.of(server)
    busy.send(GET)
    await gate.entered.wait()
    newcomer = await Client.of(server)
    assert (await newcomer.answer())[0] == 503
    gate.opened.set()

    assert await busy.answer() == (200, b"through")


# ---- stopping


async def test_stopping_closes_the_idle_and_lets_the_busy_finish(start):
    gate = Gate()
    server = await start(gate)
    idle, busy = await Client.of(server), await Client.of(server)
    busy.send(GET * 2)
    await gate.entered.wait()
    await until_async(lambda: server.connection_count == 2)
    port = server.port
    closing = asyncio.create_task(server.close(grace_s=600))

    assert await idle.rest() == b""
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    assert not closing.done()
    gate.opened.set()
    said = await busy.rest()
    assert b"Connection: close\r\n" in said and said.endswith(b"through")
    assert gate.paths == ["/"]  # the one behind it was not begun: its client may send it elsewhere
    async with asyncio.timeout(60):
        await closing


async def test_stopping_cuts_what_is_not_done_in_time(start):
    gate = Gate()
    server = await start(gate)
    client = await Client.of(server)
    client.send(GET)
    await gate.entered.wait()
    await server.close(grace_s=0)

    assert gate.cancelled.is_set()
    assert server.connection_count == 0
    client.vanish()


async def test_a_request_that_is_still_arriving_when_stopping_is_answered(start):
    server = await start(show)
    client = await Client.of(server)
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
    (connection,) = await connections_in(server, 1)
    await until_async(lambda: connection._reader.body_bytes == 1)
    closing = asyncio.create_task(server.close(grace_s=600))
    await asyncio.sleep(0)
    client.send(b"b")

    said = await client.rest()
    assert b"Connection: close\r\n" in said and said.endswith(b"POST /  ab")
    await closing


async def test_a_request_that_comes_together_with_the_end_of_its_connection_takes_no_seat_for_good(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
):
    # Over TLS the request and the end of the connection can be in one segment: the loop has no turn between them.
    server = HttpServer(ok, HttpLimits())
    await server.start("127.0.0.1", 0, tls=lambda: contexts[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts[1].wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65536))
    client.write(GET)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.unwrap()
    writer.write(outgoing.read())
    await reader.read()
    writer.close()
    await until_async(lambda: server.connection_count == 0)
    await server.close(grace_s=0)


async def test_of_a_hosts_addresses_it_listens_on_those_that_the_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`localhost` is ::1 too in many containers that have no IPv6."""
    own = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)
    elsewhere = socket.getaddrinfo("203.0.113.1", 0, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: elsewhere + own)
    (listener,) = await listening("localhost", 0)
    with listener, socket.create_connection(listener.getsockname(), timeout=PATIENCE_S):
        assert listener.getsockname()[0] == "127.0.0.1"

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: elsewhere)
    with pytest.raises(OSError, match="Cannot assign requested address"):
        await listening("localhost", 0)
