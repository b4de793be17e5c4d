"""Whoever supervises a consumer can ask how it is."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.consumer.handler_kit import a_message
from veil.consumer.metrics import ConsumerMetrics, HealthPages
from veil.consumer.outcomes import Delete


class State:
    def __init__(self) -> None:
        self.ready: str | None = None
        self.metrics = ConsumerMetrics()


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
async def server(state: State) -> AsyncIterator[asyncio.Server]:
    async with await HealthPages(lambda: state.ready, state.metrics).listen("127.0.0.1", 0) as made:
        yield made


async def asked(server: asyncio.Server, request: bytes) -> tuple[int, bytes, bytes]:
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, head, body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_a_consumer_that_works_is_healthy_and_ready(server: asyncio.Server) -> None:
    for path in ("/healthz", "/readyz", "/readyz?verbose"):
        status, head, body = await asked(server, get(path))
        assert (status, body) == (200, b"ok\n")
        assert b"Content-Length: 3\r\n" in head


async def test_one_that_does_not_says_why(server: asyncio.Server, state: State) -> None:
    state.ready = "stopping"
    assert (await asked(server, get("/healthz")))[0] == 200
    assert (await asked(server, get("/readyz")))[::2] == (503, b"stopping\n")


async def test_the_metrics_are_there(server: asyncio.Server, state: State) -> None:
    state.metrics.handled(a_message(), "ship", Delete(), 0.1)
    status, head, body = await asked(server, get("/metrics"))
    assert status == 200
    assert b"Content-Type: text/plain" in head
    assert b'veil_consumer_messages_handled_total{handler="ship",outcome="delete",queue="orders"} 1.0' in body


async def test_a_page_that_fails_says_that_and_the_server_goes_on(
    server: asyncio.Server, state: State
) -> None:
    def broken() -> float:
        raise RuntimeError("secret")

    state.metrics.watch("orders", in_flight=broken, waiting=broken)
    assert (await asked(server, get("/metrics")))[::2] == (500, b"RuntimeError\n")
    assert (await asked(server, get("/healthz")))[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/elsewhere"), 404),
        (get("/healthz", "POST"), 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 0),
    ],
)
async def test_anything_else_is_refused(server: asyncio.Server, request_bytes: bytes, status: int) -> None:
    try:
        answered = (await asked(server, request_bytes))[0]
    except ConnectionError:
        answered = 0
    assert answered == status
    assert (await asked(server, get("/healthz")))[0] == 200


async def test_a_head_request_has_no_body(server: asyncio.Server) -> None:
    status, head, body = await asked(server, get("/healthz", "HEAD"))
    assert (status, body) == (200, b"")
    assert b"Content-Length: 3" in head


async def test_a_client_that_says_nothing_holds_nobody_up(server: asyncio.Server) -> None:
    silent: list[Any] = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(5)]
    assert (await asked(server, get("/healthz")))[0] == 200
    for _, writer in silent:
        writer.close()


async def test_closing_twice_is_harmless(server: asyncio.Server) -> None:
    server.close()
    server.close()
