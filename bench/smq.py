"""SMQ's protocol beside SQS's JSON on one server: send, receive and delete, the same messages, in turns.

    python -m bench.smq [--rounds 5] [--seconds 2] [--connections 32] [--out FILE]

Each round has a queue of its own for each protocol: a send for so many seconds, then a receive of what was sent, then a
delete of what was received. The table shows medians, and how many times as long SMQ takes for a request.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench import wire_requests as wire
from bench.contenders import running, scratch, veil_command
from bench.generator import DELETE, RECEIVE, SEND, generator
from bench.load import LoadResult, process_cpu_s, run_load
from bench.processes import HOST, await_listening, await_rest, free_port

SQS, SMQ = "sqs", "smq"
PARTS: Final = (SEND, RECEIVE, DELETE)
FACTOR_MAX: Final = 1.2
_IN_FLIGHT_MAX: Final = 110_000

_XML: Final = (
    b'<?xml version="1.0" encoding="utf-8"?><Message xmlns="http://mns.aliyuncs.com/doc/v1/">'
    b"<MessageBody>" + wire.BODY.encode() + b"</MessageBody></Message>"
)
_MD5: Final = base64.b64encode(hashlib.md5(_XML, usedforsecurity=False).hexdigest().encode())
# As large and as many-headed as what the Python SDK sends.
_HEAD: Final = (
    b"%b %b HTTP/1.1\r\n"
    b"Accept-Encoding: identity\r\n"
    b"Connection: Keep-Alive\r\n"
    b"%b"
    b"x-mns-version: 2015-06-06\r\n"
    b"host: 127.0.0.1:9326\r\n"
    b"date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    b"user-agent: aliyun-sdk-python/1.3.0(Linux/6.1/x86_64;3.11)\r\n"
    b"Authorization: MNS AKIDEXAMPLE:WBiEe7X9ZDPj5nQx0Ri+GD90kIA=\r\n\r\n%b"
)
_BODY_HEADERS: Final = b"Content-Length: %d\r\ncontent-md5: %b\r\ncontent-type: text/xml;charset=UTF-8\r\n"
_HANDLE: Final = re.compile(rb"<ReceiptHandle>([^<]+)</ReceiptHandle>")


@dataclass(frozen=True, slots=True)
class Lap:
    """One round of one protocol."""

    protocol: str
    port: int
    sqs_port: int
    pid: int
    connections: int
    seconds: float
    queue: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One timed part of a lap."""

    protocol: str
    part: str
    requests: int
    seconds: float
    errors: int
    p50_ms: float
    p99_ms: float
    server_us: float  # of CPU for each request


@dataclass(frozen=True, slots=True)
class Requests:
    """A protocol's requests as bytes, each for one message."""

    send: Callable[[], bytes]
    receive: bytes
    delete: Callable[[bytes], bytes]
    receipts_in: Callable[[bytes], list[bytes]]


def requests_of(protocol: str, queue: str) -> Requests:
    """What is sent to that queue over that protocol."""
    if protocol == SQS:
        sqs_send = wire.send(queue, 1)
        return Requests(
            lambda: wire.afresh(sqs_send),
            wire.receive(queue, 1),
            lambda receipt: wire.delete(queue, [receipt]),
            wire.receipts_in,
        )
    target = b"/queues/%b/messages" % queue.encode()
    smq_send = _HEAD % (b"POST", target, _BODY_HEADERS % (len(_XML), _MD5), _XML)
    return Requests(
        lambda: smq_send,
        _HEAD % (b"GET", target, b"", b""),
        lambda receipt: _HEAD % (b"DELETE", target + b"?ReceiptHandle=" + receipt, b"", b""),
        _HANDLE.findall,
    )


def run_lap(lap: Lap) -> list[Figure]:
    """Measure the parts one after the other on a queue of their own, and leave the server empty and at rest."""
    _ask(lap, wire.create_queue(lap.queue))
    requests = requests_of(lap.protocol, lap.queue)
    sent = _timed(lap, SEND, lambda _: requests.send(), None)
    left = min(sent.requests, _IN_FLIGHT_MAX)
    bodies: list[bytes] = []

    def next_receive(_: int) -> bytes | None:
        nonlocal left
        left -= 1
        return requests.receive if left >= 0 else None

    received = _timed(lap, RECEIVE, next_receive, lambda _, status, body: bodies.append(body))
    deletes = [requests.delete(receipt) for body in bodies for receipt in requests.receipts_in(body)]
    deleted = _timed(lap, DELETE, lambda _: deletes.pop() if deletes else None, None)
    _ask(lap, wire.delete_queue(lap.queue))
    await_rest(lap.pid)
    return [sent, received, deleted]


def _timed(
    lap: Lap,
    part: str,
    next_request: Callable[[int], bytes | None],
    on_response: Callable[[int, int, bytes], None] | None,
) -> Figure:
    cpu_s = process_cpu_s(lap.pid)
    load: LoadResult = run_load(
        HOST, lap.port, lap.connections, next_request, on_response, seconds=lap.seconds
    )
    cpu_s = process_cpu_s(lap.pid) - cpu_s
    server_us = cpu_s / load.requests * 1e6 if load.requests else 0.0
    return Figure(
        lap.protocol, part, load.requests, load.seconds, load.errors, load.p50_ms, load.p99_ms, server_us
    )


def _ask(lap: Lap, request: bytes) -> None:
    run_load(HOST, lap.sqs_port, 1, lambda _: request, None, seconds=20.0, requests=1)


@contextlib.contextmanager
def _server(build: Path) -> Iterator[tuple[int, int, int]]:
    """Both ports of a server, and its process."""
    sqs_port, smq_port = free_port(), free_port()
    with (
        scratch(build) as data,
        running(veil_command(data, sqs_port, "--smq-port", str(smq_port)), sqs_port) as pid,
    ):
        await_listening(smq_port)
        yield sqs_port, smq_port, pid


def measure(rounds: int, seconds: float, connections: int, build: Path) -> list[Figure]:
    """All rounds, the protocols in turns, so that whatever else slows the machine down slows both of them down."""
    figures: list[Figure] = []
    with _server(build) as (sqs_port, smq_port, pid), generator() as load:
        for number in range(-1, rounds):
            order = (SQS, SMQ) if number % 2 else (SMQ, SQS)
            for protocol in order:
                port = sqs_port if protocol == SQS else smq_port
                length_s = seconds if number >= 0 else min(seconds, 0.5)
                lap = Lap(
                    protocol, port, sqs_port, pid, connections, length_s, f"lap-{protocol}-{number + 1}"
                )
                measured = load.submit(run_lap, lap).result()
                if number >= 0:  # the first round is for warming up
                    figures += measured
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return figures


def table(figures: list[Figure]) -> tuple[list[str], float]:
    """Lines to print, and the worst factor."""
    lines = [
        f"{'part':<9}{'SQS JSON/s':>12}{'SMQ/s':>10}{'factor':>8}{'SQS µs':>9}{'SMQ µs':>9}{'SMQ p99 ms':>12}{'errors':>8}"
    ]
    worst = 0.0
    for part in PARTS:
        sqs, smq = ([f for f in figures if (f.protocol, f.part) == (name, part)] for name in (SQS, SMQ))
        per_s = [median(f.requests / f.seconds for f in each) for each in (sqs, smq)]
        factor = per_s[0] / per_s[1] if per_s[1] else float("inf")
        worst = max(worst, factor)
        server_us = [median(f.server_us for f in each) for each in (sqs, smq)]
        errors = sum(f.errors for f in (*sqs, *smq))
        lines.append(
            f"{part:<9}{per_s[0]:>12,.0f}{per_s[1]:>10,.0f}{factor:>8.2f}{server_us[0]:>9.0f}{server_us[1]:>9.0f}"
            f"{median(f.p99_ms for f in smq):>12.1f}{errors:>8}"
        )
    return lines, worst


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for; 1 if SMQ takes more than 1.2 times as long as SQS."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.smq", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timed part")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("build/smq.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    figures = measure(given.rounds, given.seconds, given.connections, Path("build"))
    lines, worst = table(figures)
    print("\n".join(lines))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return 0 if worst <= FACTOR_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
