"""Clients that vanish in a long poll: whatever the moment, a message is never hidden for somebody who is gone.

Three ways to go, each judged as strictly as the wire allows:

* *reset first*: the connection is reset, then a message is sent. It must stay visible, and never have been received.
* *half-closed*: the client says goodbye around the moment at which a message arrives, and reads on. Either it got the whole
  answer, or the message must be visible and the receive uncounted.
* *reset at random*: around that same moment. An answer may be under way that no server can call back, so here the message
  must merely return with its window.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from pathlib import Path

from tests.faults.client import Client, Refused, Unknown, queue_counts, request_bytes, until_zero_in_flight
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess

POLLS = 300
_PER_ROUND = 10
_QUEUE = "vanish"
_WINDOW_S = 1
# Long enough for a stalled machine; what is hidden for nobody stays so for longer.
_PATIENCE_S = 60.0
_LONG_S = 600


def run_vanishing(cycles: int = POLLS, seed: int = 1) -> Outcome:
    """Let so many long polls vanish."""
    outcome = Outcome("vanishing", seed)
    began_s = time.monotonic()
    with scratch(outcome) as place, _server(place) as server:
        try:
            tally = asyncio.run(_run(server, outcome, cycles, random.Random(seed)))
            outcome.done = f"{cycles} long polls in {time.monotonic() - began_s:.0f} s, {tally}"
        except (Refused, Unknown, ServerGone) as problem:
            outcome.add("server", repr(problem))
    return outcome


def _server(place: Path) -> ServerProcess:
    """Without the grace that leases get after a stall: they would be hidden for a while, and rightly."""
    return ServerProcess(place / "data", place, arguments=("--no-lease-grace",))


async def _run(server: ServerProcess, outcome: Outcome, polls: int, rng: random.Random) -> str:
    client = Client(server.port)
    await client.call("CreateQueue", QueueName=_QUEUE, Attributes={"VisibilityTimeout": "30"})
    ways = (_reset_first, _half_closed, _reset_at_random)
    answered = rounds = 0
    for round_number in range(-(-polls // _PER_ROUND)):
        answered += await ways[round_number % len(ways)](server, client, outcome, rng)
        rounds += 1
        if not outcome.ok:
            break
    client.close()
    return f"{rounds} rounds, {answered} answered in time"


async def _reset_first(server: ServerProcess, client: Client, outcome: Outcome, rng: random.Random) -> int:
    polls = await _open_polls(server, window_s=_LONG_S)
    for poll in polls:
        _reset(poll)
    await _send(client, _PER_ROUND)
    await _require_untouched(client, outcome, _PER_ROUND, "reset before the send")
    return 0


async def _half_closed(server: ServerProcess, client: Client, outcome: Outcome, rng: random.Random) -> int:
    polls = await _open_polls(server, window_s=_LONG_S)
    loop = asyncio.get_running_loop()
    leaving = [loop.create_task(_say_goodbye(poll, rng.random() * 0.012)) for poll in polls]
    await _send(client, _PER_ROUND)
    receipts = [receipt for task in leaving for receipt in await task]
    for receipt in receipts:
        await client.call("DeleteMessage", QueueUrl=_QUEUE, ReceiptHandle=receipt)
    await _require_untouched(client, outcome, _PER_ROUND - len(receipts), "half-closed")
    return len(receipts)


async def _reset_at_random(
    server: ServerProcess, client: Client, outcome: Outcome, rng: random.Random
) -> int:
    polls = await _open_polls(server, window_s=_WINDOW_S)
    loop = asyncio.get_running_loop()
    for poll in polls:
        loop.call_later(rng.random() * 0.012, _reset, poll)
    await _send(client, _PER_ROUND)
    await asyncio.sleep(0.015)
    hidden = await until_zero_in_flight(client, _QUEUE, _WINDOW_S + _PATIENCE_S)
    if hidden:
        outcome.add("hidden", f"{hidden} messages are still hidden after their window")
    found = await _take_all(client)
    if len(found) != _PER_ROUND:
        outcome.add("lost", f"{len(found)} of {_PER_ROUND} messages came back")
    return sum(count > 1 for count in found)


# ---- parts


async def _open_polls(server: ServerProcess, *, window_s: int) -> list[socket.socket]:
    request = request_bytes(
        "ReceiveMessage",
        {"QueueUrl": _QUEUE, "WaitTimeSeconds": 20, "MaxNumberOfMessages": 1, "VisibilityTimeout": window_s},
    )
    polls = []
    for _ in range(_PER_ROUND):
        poll = socket.create_connection(("127.0.0.1", server.port))
        poll.setblocking(False)
        poll.send(request)
        polls.append(poll)
    await asyncio.sleep(0.02)  # time to be read and to wait; one that is not waiting yet is a fair case too
    return polls


def _reset(poll: socket.socket) -> None:
    poll.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    poll.close()


async def _say_goodbye(poll: socket.socket, after_s: float) -> list[str]:
    """Half-close after so long, read to the end, and give the receipts that arrived."""
    await asyncio.sleep(after_s)
    loop = asyncio.get_running_loop()
    answer = b""
    with contextlib.suppress(OSError):
        poll.shutdown(socket.SHUT_WR)
        while part := await asyncio.wait_for(loop.sock_recv(poll, 1 << 16), _PATIENCE_S):
            answer += part
    poll.close()
    _, _, body = answer.partition(b"\r\n\r\n")
    return [each["ReceiptHandle"] for each in json.loads(body).get("Messages", ())] if body else []


async def _send(client: Client, count: int) -> None:
    entries = [{"Id": str(n), "MessageBody": f"body {n}"} for n in range(count)]
    await client.call("SendMessageBatch", QueueUrl=_QUEUE, Entries=entries)


async def _require_untouched(client: Client, outcome: Outcome, expected: int, how: str) -> None:
    hidden = await until_zero_in_flight(client, _QUEUE, _PATIENCE_S)
    visible, _, _ = await queue_counts(client, _QUEUE)
    if hidden:
        outcome.add("hidden", f"{how}: {hidden} messages are hidden for clients that are gone")
    elif visible != expected:
        outcome.add("lost", f"{how}: {visible} messages are visible, {expected} should be")
    found = await _take_all(client)
    counted = sum(count > 1 for count in found)
    if counted and not hidden:
        outcome.add("counted", f"{how}: {counted} messages count a receive that nobody got")


async def _take_all(client: Client) -> list[int]:
    """Receive and delete everything; the receive counts."""
    counts: list[int] = []
    while True:
        answer = await client.call(
            "ReceiveMessage",
            QueueUrl=_QUEUE,
            MaxNumberOfMessages=10,
            VisibilityTimeout=30,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        messages = answer.get("Messages", [])
        if not messages:
            return counts
        counts += [int(each["Attributes"]["ApproximateReceiveCount"]) for each in messages]
        entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
        await client.call("DeleteMessageBatch", QueueUrl=_QUEUE, Entries=entries)
