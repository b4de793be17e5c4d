"""SIGTERM under load: every waiting long poll is answered, every answer is kept, nothing is hidden for nobody."""

from __future__ import annotations

import asyncio
import random
import re
import time
from urllib.request import urlopen

from tests.faults.client import Client, Refused, Unknown, queue_counts
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess
from tests.waiting import PATIENCE_S, until_async

STOPS = 2
_QUEUE, _EMPTY = "stopping", "nothing-here"
_BUSY, _WAITING, _WRITERS = 6, 40, 4
_LEAVE_S_MAX = 8.0


def run_stops(cycles: int = STOPS, seed: int = 1) -> Outcome:
    """Stop and start so many times."""
    outcome = Outcome("stopping", seed)
    began_s = time.monotonic()
    rng = random.Random(seed)
    with scratch(outcome) as place:
        server = ServerProcess(place / "data", place)
        try:
            tallies = [asyncio.run(_one_stop(server, outcome, rng, number)) for number in range(cycles)]
            outcome.done = (
                f"{cycles} stops in {time.monotonic() - began_s:.0f} s, {sum(t[0] for t in tallies)} sent, "
                f"{sum(t[1] for t in tallies)} received, {cycles * _WAITING} polls waiting"
            )
        except (Refused, Unknown, ServerGone) as problem:
            outcome.add("server", repr(problem))
        finally:
            server.kill()
    return outcome


class _Seen:
    """What the clients of one stop were told."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.unknown: set[str] = set()
        self.received: set[str] = set()
        self.cut_off: list[str] = []
        self.polls_answered = 0


async def _one_stop(
    server: ServerProcess, outcome: Outcome, rng: random.Random, number: int
) -> tuple[int, int]:
    await asyncio.to_thread(server.start)
    client = Client(server.port)
    queue = f"{_QUEUE}-{number}"
    for name in (queue, _EMPTY):
        await client.call("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "600"})
    seen = _Seen()
    tasks = [asyncio.create_task(_write(server.port, queue, f"w{n}", seen)) for n in range(_WRITERS)]
    tasks += [asyncio.create_task(_receive(server.port, queue, seen)) for _ in range(_BUSY)]
    tasks += [asyncio.create_task(_wait(server.port, seen)) for _ in range(_WAITING)]
    await until_async(lambda: _all_wait(server.port), "not all long polls wait")
    await asyncio.sleep(rng.random() * 0.5)
    asked_s = time.monotonic()
    code = await asyncio.to_thread(server.terminate)
    took_s = time.monotonic() - asked_s
    await asyncio.gather(*tasks)
    client.close()
    if code != 0:
        outcome.add("exit", f"exit code {code}: {server.talk()}")
    if took_s > _LEAVE_S_MAX:
        outcome.add("late", f"it took {took_s:.1f} s to leave")
    if seen.polls_answered != _WAITING:
        outcome.add("unanswered", f"{_WAITING - seen.polls_answered} waiting long polls got no answer")
    for line in seen.cut_off:
        outcome.add("cut off", line)
    await asyncio.to_thread(server.start)
    client = Client(server.port)
    visible, in_flight, _ = await queue_counts(client, queue)
    if in_flight != len(seen.received):
        outcome.add("hidden", f"{in_flight} messages are hidden, clients were told of {len(seen.received)}")
    least = len(seen.sent)
    if not least <= visible + in_flight <= least + len(seen.unknown):
        outcome.add("lost", f"{visible + in_flight} messages are there, {least} were acknowledged")
    client.close()
    await asyncio.to_thread(server.terminate)
    return len(seen.sent), len(seen.received)


async def _all_wait(port: int) -> bool:
    """Whether the server has taken all long polls: one that is still on its way when the server leaves gets no answer."""
    page = await asyncio.to_thread(
        lambda: urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read()
    )
    found = re.search(rf'^veil_long_polls_waiting{{.*queue="{_EMPTY}".*}} (\S+)$', page.decode(), re.M)
    return found is not None and float(found[1]) == _WAITING


async def _write(port: int, queue: str, name: str, seen: _Seen) -> None:
    client, counter = Client(port), 0
    while True:
        counter += 1
        tag = f"{name}-{counter}"
        try:
            await client.call("SendMessage", QueueUrl=queue, MessageBody=tag)
        except Refused:
            return
        except Unknown as problem:
            # A connection that was idle may be closed in the instant a request is on its way; that is no answer cut off.
            seen.unknown.add(tag)
            if "IncompleteRead" in str(problem) and "0 bytes" not in str(problem):
                seen.cut_off.append(str(problem))
            return
        seen.sent.add(tag)


async def _receive(port: int, queue: str, seen: _Seen) -> None:
    client = Client(port)
    while True:
        try:
            answer = await client.call(
                "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=2, WaitTimeSeconds=20
            )
        except (Refused, Unknown):
            return
        seen.received.update(each["Body"] for each in answer.get("Messages", ()))


async def _wait(port: int, seen: _Seen) -> None:
    client = Client(port)
    await client.call("ReceiveMessage", QueueUrl=_EMPTY, WaitTimeSeconds=20)
    seen.polls_answered += 1
    client.close()
