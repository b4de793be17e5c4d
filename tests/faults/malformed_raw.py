"""What is not even HTTP, or nearly: each on a connection of its own."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.faults.malformed_framed import any_good_request, http, json_headers
from tests.faults.malformed_inputs import flip

SMUGGLED = "smuggled"  # the queue that must never come to exist


def raw(rng: random.Random) -> bytes:
    """Broken, cut off, of the wrong length, with another request inside, or noise."""
    return rng.choice(_RAW)(rng)


def _flipped_whole(rng: random.Random) -> bytes:
    return flip(any_good_request(rng), rng)


def _cut_off(rng: random.Random) -> bytes:
    whole = any_good_request(rng)
    return whole[: rng.randrange(len(whole))]


def _wrong_length(rng: random.Random) -> bytes:
    head, _, body = any_good_request(rng).partition(b"\r\n\r\n")
    length = b"Content-Length: %d" % len(body)
    wrong = rng.choice(
        (
            b"%d" % (len(body) + 5), b"%d" % max(0, len(body) - 3), b"-1", b"+5", b"0x10", b"1e3", b"",
            b"5, 5", b"5, 6", b"9" * 40, b"99999999999", b" 5 5", b"5\x00", b"\xb2",
        )
    )  # fmt: skip
    return head.replace(length, b"Content-Length: " + wrong) + b"\r\n\r\n" + body


def _smuggled(rng: random.Random) -> bytes:
    inner = http(b'{"QueueName":"%s"}' % SMUGGLED.encode(), *json_headers("CreateQueue"))
    chunk = rng.choice((b"-1", b"0x5", b"F" * 18, b"5;" + b"x" * 9000, b" 5", b"5\x00", b"g"))
    start = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    return rng.choice(
        (
            start + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
            start + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n" % len(inner) + inner,
            start + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner,
            start + b"Transfer-Encoding: xchunked\r\n\r\n" + inner,
            start + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + inner,
            start + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner,
            start + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + inner,
            start + b"X: y\r\n Content-Length: 5\r\n\r\n" + inner,
            start + b"X: y\nContent-Length: 5\r\n\r\nabcde" + inner, start + b"\r\n\r\n" + inner[:20],
            start + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"\r\nabcde\r\n0\r\n\r\n",
            start + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdefg\r\n0\r\n\r\n",
            start + b"Host: evil\r\nContent-Length: 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            start + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}",
            start + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            start + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        )
    )  # fmt: skip


def _noise(rng: random.Random) -> bytes:
    return rng.choice(
        (
            rng.randbytes(rng.randint(1, 400)), b"\r\n" * 50, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(60),
            b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 150 + b"\r\n", b"GET / HTTP/1.1\r\nA: " + b"b" * 40_000,
            b"GET http://x:y:z/ HTTP/1.1\r\nHost: a\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"get / http/1.1\r\nhost: localhost\r\n\r\n",
        )
    )  # fmt: skip


_RAW: tuple[Callable[[random.Random], bytes], ...] = (
    _flipped_whole,
    _cut_off,
    _wrong_length,
    _smuggled,
    _noise,
)
