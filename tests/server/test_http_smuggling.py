"""No request can be read in two ways: what is ambiguous is refused, and the connection closed."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from veil.server.http import HttpServer
from veil.server.http_limits import HttpLimits
from veil.server.http_reader import RequestReader
from veil.wire.exchange import Request, Response

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "length and coding": (400, POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "coding and length": (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc"),
    "length list": (400, POST + b"Content-Length: 2, 2\r\n\r\nab"),
    "length with sign": (400, POST + b"Content-Length: +2\r\n\r\nab"),
    "negative length": (400, POST + b"Content-Length: -2\r\n\r\nab"),
    "hex length": (400, POST + b"Content-Length: 0x2\r\n\r\nab"),
    "underscored length": (400, POST + b"Content-Length: 1_0\r\n\r\n0123456789"),
    "empty length": (400, POST + b"Content-Length: \r\n\r\nab"),
    "length past 64 bits": (413, POST + b"Content-Length: 99999999999999999999999\r\n\r\n"),
    "length past the limit": (413, POST + b"Content-Length: 9999999999\r\n\r\n"),
    "folded header": (400, GET + b"X: a\r\n b\r\n\r\n"),
    "folded header, tab": (400, GET + b"X: a\r\n\tb\r\n\r\n"),
    "folded coding": (400, POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    "space before first header": (400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    "bare LF everywhere": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "bare LF after a header": (400, GET + b"X: a\nY: b\r\n\r\n"),
    "bare LF at the end": (400, GET + b"X: a\r\n\n"),
    "bare CR in a value": (400, GET + b"X: a\rY: b\r\n\r\n"),
    "two CRs": (400, GET + b"X: a\r\r\n\r\n"),
    "NUL in a value": (400, GET + b"X: a\0b\r\n\r\n"),
    "NUL in a name": (400, GET + b"X\0: a\r\n\r\n"),
    "control character": (400, GET + b"X: a\x0bb\r\n\r\n"),
    "space before colon": (400, GET + b"X : a\r\n\r\n"),
    "space before colon of coding": (400, POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "tab before colon": (400, GET + b"X\t: a\r\n\r\n"),
    "no colon": (400, GET + b"X\r\n\r\n"),
    "no name": (400, GET + b": a\r\n\r\n"),
    "name beyond ASCII": (400, GET + b"X\xff: a\r\n\r\n"),
    "coding before chunked": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "identity coding": (501, POST + b"Transfer-Encoding: identity\r\n\r\n"),
    "unknown coding": (501, POST + b"Transfer-Encoding: xchunked\r\n\r\n"),
    "quoted coding": (501, POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n'),
    "coding twice": (
        400,
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    "chunked twice": (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "chunks in 1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "negative chunk": (400, CHUNKED + b"-2\r\nab\r\n0\r\n\r\n"),
    "chunk with prefix": (400, CHUNKED + b"0x2\r\nab\r\n0\r\n\r\n"),
    "chunk size then space": (400, CHUNKED + b"2 \r\nab\r\n0\r\n\r\n"),
    "chunk size not hex": (400, CHUNKED + b"zz\r\n"),
    "chunk size empty": (400, CHUNKED + b"\r\nab"),
    "chunk size past 64 bits": (400, CHUNKED + b"fffffffffffffffff\r\n"),
    "chunk size with bare LF": (400, CHUNKED + b"2\nab\r\n0\r\n\r\n"),
    "chunk data with bare LF": (400, CHUNKED + b"2\r\nab\n0\r\n\r\n"),
    "chunk longer than said": (400, CHUNKED + b"2\r\nabXX0\r\n\r\n"),
    "LF in a chunk extension": (400, CHUNKED + b"2;a\nb\r\nab\r\n0\r\n\r\n"),
    "length in the trailer": (400, CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n"),
    "endless chunk extension": (400, CHUNKED + b"2;" + b"a" * 40_000),
    "endless trailer": (431, CHUNKED + b"0\r\n" + b"X: y\r\n" * 8_000),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, GET + b"Host: b\r\n\r\n"),
    "version 0.9": (505, b"GET / HTTP/0.9\r\n\r\n"),
    "version 1.2": (505, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    "version 2.0": (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    "HTTP/2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "lower-case version": (400, b"GET / http/1.1\r\nHost: a\r\n\r\n"),
    "CONNECT": (501, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "Icecast": (501, b"SOURCE / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "unknown method": (400, b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "compressed body": (415, POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab"),
    "unknown expectation": (417, POST + b"Expect: miracles\r\nContent-Length: 2\r\n\r\nab"),
    "target with a space": (400, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target with NUL": (400, b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target beyond ASCII": (400, b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target with a fragment": (400, b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target with a login": (400, b"GET http://u@h/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target of another scheme": (400, b"GET ftp://h/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "relative target": (400, b"GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
}

ACCEPTED = {
    "length": (POST + b"Content-Length: 2\r\n\r\nab", "POST / ab"),
    "space around the length": (POST + b"Content-Length: \t 2 \t\r\n\r\nab", "POST / ab"),
    "chunks": (CHUNKED + b"2\r\nab\r\n1;name=value\r\nc\r\n0\r\n\r\n", "POST / abc"),
    "trailer": (CHUNKED + b"1\r\na\r\n0\r\nX-Late: 1\r\nHost: evil\r\n\r\n", "POST / a"),
    "empty lines before": (b"\r\n\r\n" + GET + b"\r\n", "GET / "),
    "absolute target": (b"GET http://h:1/p?q HTTP/1.1\r\nHost: a\r\n\r\n", "GET /p?q "),
    "absolute target without path": (b"GET http://h?q HTTP/1.1\r\nHost: a\r\n\r\n", "GET /?q "),
    "upgrade": (GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "GET / "),
    "upgrade with body": (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab",
        "POST / ab",
    ),
    "upgrade with chunks": (
        POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n0\r\nX: y\r\n\r\n",
        "POST / ab",
    ),
}


async def echo(request: Request) -> Response:
    query = f"?{request.query}" if request.query else ""
    return Response(body=f"{request.method} {request.path}{query} ".encode() + request.body)


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer(echo, HttpLimits(header_bytes_max=4096, body_bytes_max=100_000))
    await server.start("127.0.0.1", 0)
    yield server
    await server.close(grace_s=0)


async def answers(server: HttpServer, *pieces: bytes) -> bytes:
    """Everything the server says to these pieces, sent one by one, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with asyncio.timeout(60):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                if len(pieces) > 1:
                    await asyncio.sleep(0)
            return await reader.read()
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def undated(said: bytes) -> bytes:
    return re.sub(rb"\r\nDate: [^\r]+", b"", said)


def one_by_one(raw: bytes) -> list[bytes]:
    return [raw[at : at + 1] for at in range(len(raw))]


@pytest.mark.parametrize(("status", "raw"), REFUSED.values(), ids=REFUSED)
async def test_an_ambiguous_request_is_refused_and_nothing_behind_it_is_served(server, status, raw):
    said = await answers(server, raw + GET + b"\r\n")

    assert said.startswith(b"HTTP/1.1 %d " % status), said
    assert b"Connection: close\r\n" in said
    assert said.count(b"\r\nContent-Length: ") == 1


@pytest.mark.parametrize(
    ("status", "raw"), [each for each in REFUSED.values() if len(each[1]) < 500], ids=lambda _: ""
)
async def test_a_refusal_does_not_depend_on_how_the_bytes_arrive(server, status, raw):
    said = await answers(server, *one_by_one(raw))

    assert said.startswith(b"HTTP/1.1 %d " % status), said


@pytest.mark.parametrize(("raw", "echoed"), ACCEPTED.values(), ids=ACCEPTED)
async def test_a_sound_request_is_served_and_so_is_the_one_behind_it(server, raw, echoed):
    behind = b"GET /behind HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    at_once = await answers(server, raw + behind)

    first, second = at_once.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert first.endswith(b"\r\n\r\n" + echoed.encode())
    assert second.endswith(b"\r\n\r\nGET /behind ")
    assert undated(await answers(server, *one_by_one(raw + behind))) == undated(at_once)


def read(*pieces: bytes) -> tuple[list[tuple[Request, bytes]], int | None]:
    """What the reader makes of exactly these pieces, which a socket might have run together."""
    reader = RequestReader(HttpLimits(header_bytes_max=4096, body_bytes_max=100_000), peer="")
    for piece in pieces:
        rest: bytes | bytearray = piece
        while rest and reader.refusal is None:
            rest = reader.feed(rest)
    return reader.ready, reader.refusal and reader.refusal.status


@pytest.mark.parametrize(
    "raw", [each[0] for each in ACCEPTED.values()] + [each[1] for each in REFUSED.values()], ids=lambda _: ""
)
def test_single_bytes_are_read_as_the_whole_is(raw):
    requests, refused = read(*one_by_one(raw))

    assert (requests, refused) == read(raw)
    assert requests or refused


async def test_a_trailer_never_becomes_a_header():
    seen: list[Request] = []

    async def remember(request: Request) -> Response:
        seen.append(request)
        return Response()

    server = HttpServer(remember)
    await server.start("127.0.0.1", 0)
    await answers(server, ACCEPTED["trailer"][0] + GET + b"Connection: close\r\n\r\n")
    await server.close(grace_s=0)

    assert seen[0].headers == {"host": "a", "transfer-encoding": "chunked"}


async def test_a_good_request_before_a_bad_one_is_answered_first(server):
    said = await answers(server, GET + b"\r\n" + GET + b"X : y\r\n\r\n")

    assert said.index(b"HTTP/1.1 200 OK") < said.index(b"HTTP/1.1 400 Bad Request")


async def test_bytes_behind_a_closing_request_are_ignored(server):
    said = await answers(server, GET + b"Connection: close\r\n\r\n" + GET + b"\r\n")

    assert said.count(b"\r\nContent-Length: ") == 1
    assert said.startswith(b"HTTP/1.1 200 ")
