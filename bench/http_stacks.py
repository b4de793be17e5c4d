"""Requests per second of an empty handler on Veil's own HTTP layer, plain and over TLS, and on granian, one process each.

    python -m bench.http_stacks [--seconds 3] [--connections 64] [--rounds 3]

The load runs in a process of its own. Its CPU time stands beside the server's: a server that is not near a
full core was held back by something else, and its figure means nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.load import LoadResult, process_cpu_s, run_load
from tests.tls_kit import Authority

# As large and as many-headed as what boto3 sends for one message.
BODY = b'{"QueueUrl":"http://127.0.0.1:9324/000000000000/orders","MessageBody":"' + b"x" * 100 + b'"}'
REQUEST = (
    b"POST / HTTP/1.1\r\n"
    b"Host: 127.0.0.1:9324\r\n"
    b"Accept-Encoding: identity\r\n"
    b"X-Amz-Target: AmazonSQS.SendMessage\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\n"
    b"User-Agent: Boto3/1.44.0 md/Botocore#1.44.0 lang/python#3.11\r\n"
    b"X-Amz-Date: 20260101T000000Z\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=" + b"0" * 64 + b"\r\n"
    b"amz-sdk-invocation-id: 6f1e0b1e-7c1e-4a52-9d9f-9d3c3f0a5b11\r\n"
    b"amz-sdk-request: attempt=1\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
) + BODY
ANSWER = b'{"MD5OfMessageBody":"' + b"0" * 32 + b'","MessageId":"219f8380-5770-4cc2-8c3e-5c715e145f5e"}'
JSON = "application/x-amz-json-1.0"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of one stack."""

    load: LoadResult
    server_cpu_s: float


def serve_veil(port: int, kind: str, folder: Path) -> None:
    """Run the empty handler on Veil's HTTP layer until killed."""
    import uvloop

    from tests.tls_kit import Pair
    from veil.server.http import HttpServer
    from veil.server.settings import Settings
    from veil.server.tls import Tls
    from veil.wire.exchange import Request, Response

    async def handler(request: Request) -> Response:
        return Response(200, ANSWER, JSON)

    async def main() -> None:
        tls = None
        if kind == "tls":
            pair = Pair(folder / "server.pem", folder / "server.key")
            tls = Tls(Settings(tls_cert=pair.cert, tls_key=pair.key)).current
        await HttpServer(handler).start("127.0.0.1", port, tls=tls)
        await asyncio.Event().wait()

    if kind == "asyncio":
        asyncio.run(main())
    else:
        uvloop.run(main())


def serve_granian(port: int) -> None:
    """Run the same on granian's RSGI, one worker, until killed."""
    from granian import Granian
    from granian.constants import Interfaces, Loops

    Granian(
        "bench.http_stacks:rsgi",
        address="127.0.0.1",
        port=port,
        interface=Interfaces.RSGI,
        workers=1,
        loop=Loops.uvloop,
        log_enabled=False,
    ).serve()


async def rsgi(scope: object, protocol: object) -> None:
    """The empty handler for granian: it reads the body, as a queue must."""
    await protocol()  # type: ignore[operator]
    protocol.response_bytes(200, [("content-type", JSON)], ANSWER)  # type: ignore[attr-defined]


STACKS = ("veil-uvloop", "veil-tls", "veil-asyncio", "granian-rsgi")


def _serve(stack: str, port: int, folder: Path) -> None:
    if stack == "granian-rsgi":
        serve_granian(port)
    else:
        serve_veil(port, stack.removeprefix("veil-"), folder)


def _await_listening(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port} after 10 s")


def _family(pid: int) -> list[int]:
    """The process and its children: granian works in one of them."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [pid, *(int(child) for child in listed.stdout.split())]


def next_request(connection: int) -> bytes:
    """Always the same."""
    return REQUEST


def measure(stack: str, seconds: float, connections: int, authority: Authority) -> Figure:
    """Start the stack, warm it up, load it and stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "bench.http_stacks", "--serve", stack, "--port", str(port)]
    command += ["--folder", str(authority.ca.parent)]
    tls = ssl.create_default_context(cafile=authority.ca) if stack == "veil-tls" else None
    with subprocess.Popen(command) as server:
        try:
            _await_listening(port)
            run_load("127.0.0.1", port, connections, next_request, seconds=0.5, tls=tls)
            pids = _family(server.pid)
            before_s = sum(map(process_cpu_s, pids))
            result = run_load("127.0.0.1", port, connections, next_request, seconds=seconds, tls=tls)
            return Figure(result, sum(map(process_cpu_s, pids)) - before_s)
        finally:
            server.terminate()


def main() -> None:
    """Measure every stack in turn, several rounds, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=STACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve, given.port, given.folder)
        return
    figures: dict[str, list[Figure]] = {stack: [] for stack in STACKS}
    with TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        authority.issue()
        for _ in range(given.rounds):  # in turn: a machine that slows down slows them all
            for stack in STACKS:
                figures[stack].append(measure(stack, given.seconds, given.connections, authority))
    print(f"{os.cpu_count()} cores, {given.connections} connections, {given.rounds} × {given.seconds} s")
    print(
        f"{'stack':14} {'req/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'errors':>6} {'server µs':>9} {'load µs':>8}"
    )
    for stack, rounds in figures.items():
        print(
            f"{stack:14} {median(f.load.per_second for f in rounds):8.0f}"
            f" {median(f.load.p50_ms for f in rounds):7.2f} {median(f.load.p99_ms for f in rounds):7.2f}"
            f" {sum(f.load.errors for f in rounds):6}"
            f" {median(f.server_cpu_s / f.load.requests * 1e6 for f in rounds):9.1f}"
            f" {median(f.load.cpu_us_per_request for f in rounds):8.1f}"
        )


if __name__ == "__main__":
    main()
