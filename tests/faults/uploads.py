"""Clients that break off: large uploads that never end, and large answers that nobody reads.

What such a client has cost must be gone with it. The memory of the server is measured from outside, after a few rounds that
let the allocator find its size, and may not be more than a bound above that in the end, however many clients have come.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import ExitStack

from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess

UPLOADS = 500
UPLOAD_BYTES = 8_000_000
GROWTH_BYTES_MAX = 100 << 20
UNREAD = 100
UNREAD_BYTES_MAX = 512 << 20  # that are allowed
MAKING_BYTES_MAX = 288 << 20  # of answers that are being made, in each process
_AT_ONCE = 8
_RESET = struct.pack("ii", 1, 0)


def run_uploads(cycles: int = UPLOADS, seed: int = 1) -> Outcome:
    """Break off so many uploads of 8 MB, a few at a time, by resets and by plain closes in turn."""
    outcome = Outcome("uploads", seed)
    began_s = time.monotonic()
    with scratch(outcome) as place, ServerProcess(place / "data", place) as server:
        try:
            start_bytes = server.resident_bytes()
            most_bytes = 0
            for first in range(0, cycles, _AT_ONCE):
                _break_off(server, min(_AT_ONCE, cycles - first), reset=first // _AT_ONCE % 2 == 0)
                most_bytes = max(most_bytes, server.resident_bytes())
            _until_settled(server)
            grown_bytes = server.resident_bytes() - start_bytes
        except (OSError, ServerGone) as problem:
            outcome.add("server", repr(problem))
            return outcome
    outcome.done = (
        f"{cycles} uploads of {UPLOAD_BYTES / 1e6:g} MB in {time.monotonic() - began_s:.0f} s; memory {start_bytes / 1e6:.0f} MB "
        f"at the start, {most_bytes / 1e6:.0f} MB at most, {grown_bytes / 1e6:+.0f} MB in the end"
    )
    if grown_bytes > GROWTH_BYTES_MAX:
        outcome.add("memory", f"{grown_bytes / 1e6:.0f} MB above the start")
    return outcome


def _break_off(server: ServerProcess, count: int, *, reset: bool) -> None:
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {UPLOAD_BYTES + 1}\r\n\r\n".encode()
    piece = b"x" * UPLOAD_BYTES
    with ExitStack() as stack:
        clients = [_connected(stack, server) for _ in range(count)]
        for client in clients:
            client.sendall(head + piece)
        if reset:
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _until_settled(server: ServerProcess) -> None:
    """Wait until the server has nobody connected but us: a request on a new connection sees all that came before it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        for _ in range(200):
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if b"\nveil_connections 1.0\n" in _read(client):
                return
            time.sleep(0.05)
    raise ServerGone("connections are left over")


def _connected(stack: ExitStack, server: ServerProcess) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))


def _read(client: socket.socket) -> bytes:
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += client.recv(65_536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(1 << 20)
    return body


def run_unread(cycles: int = UNREAD, seed: int = 1) -> Outcome:
    """Ask for so many answers of ten megabytes at once, by receives and by peeks, and read none of them."""
    outcome = Outcome("unread", seed)
    with scratch(outcome) as place, ServerProcess(place / "data", place) as server:
        try:
            url = _large_messages(server)
            start_bytes = server.resident_bytes()
            given = 0
            for target, wanted in (
                ("AmazonSQS.ReceiveMessage", {"MaxNumberOfMessages": 10, "VisibilityTimeout": 0}),
                ("Veil.PeekMessages", {"MaxResults": 1_000}),
            ):
                with ExitStack() as stack:
                    clients = [_connected(stack, server) for _ in range(cycles)]
                    for client in clients:
                        client.sendall(_call(target, {"QueueUrl": url, **wanted}))
                    heads = [client.recv(12) for client in clients]
                    given += heads.count(b"HTTP/1.1 200")
                    if set(heads) != {b"HTTP/1.1 200", b"HTTP/1.1 503"}:
                        outcome.add("answers", f"{set(heads)}: expected some to be given and some refused")
                _until_settled(server)
            most_bytes, processes = server.peak_resident_bytes(), 1 + len(server.workers())
            left = _read_once(
                server, _call("AmazonSQS.GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]})
            )
            if b'"ApproximateNumberOfMessages":"20"' not in left:
                outcome.add("hidden", left.decode())
        except (OSError, ServerGone) as problem:
            outcome.add("server", repr(problem))
            return outcome
    grown_bytes = most_bytes - start_bytes
    outcome.done = f"{2 * cycles} asked for, {given} given; memory {grown_bytes / 1e6:+.0f} MB at most"
    if grown_bytes > UNREAD_BYTES_MAX + processes * MAKING_BYTES_MAX:
        outcome.add("memory", f"{grown_bytes / 1e6:.0f} MB above the start")
    return outcome


def _large_messages(server: ServerProcess) -> str:
    answer = _read_once(server, _call("AmazonSQS.CreateQueue", {"QueueName": "large"}))
    url: str = json.loads(answer)["QueueUrl"]
    for _ in range(20):
        _read_once(server, _call("AmazonSQS.SendMessage", {"QueueUrl": url, "MessageBody": "x" * 1_000_000}))
    return url


def _call(target: str, given: dict[str, object]) -> bytes:
    body = json.dumps(given).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: {target}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _read_once(server: ServerProcess, request: bytes) -> bytes:
    with ExitStack() as stack:
        client = _connected(stack, server)
        client.sendall(request)
        return _read(client)
