"""Holders that renew in time, under a server that cannot always take it: the disk stalls, the process is stopped or restarted,
the database fails over. None of them may lose its lease by that, and what holders that died had comes back in time.

The holders are tasks of one process, which a busy machine may hold up too. Whatever is held while that happens is not
judged, and counted: a holder that was late itself proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.client import Client, Refused, Unknown
from tests.faults.postgres_kit import create_database
from tests.faults.postgres_promotions import _SETTINGS as STANDBY_SETTINGS
from tests.faults.postgres_promotions import _dsn as dsn_of
from tests.faults.postgres_promotions import _follow as follow
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerProcess
from tests.postgres_server import PostgresServer
from veil.core.clock import grace_ms

STALLS, RESTARTS, FAILOVERS = 200, 100, 20
HOLDERS = 100
WINDOWS_S = (2, 4, 6, 8, 10)
_HEALTHY_S = (2.0, 6.0)
_RETRY_S = 0.2
_ANSWER_S = 1.0  # that a holder waits before it asks again
_DIE = 0.05  # the share of holders that die while they work
_LAG_MAX_S = 0.4  # of this process
_BACK_S = 1.0  # in which a message is to be had again once its lease is over


@dataclass(slots=True, eq=False)
class Held:
    """One attempt: what a holder knows of it."""

    body: str
    window_s: int
    renewed_s: float  # when that was asked for: its own deadline counts from here
    answered_s: float = field(
        default_factory=time.monotonic
    )  # and from here on the lease lasts no longer than a window
    asking_s: float | None = None  # since when its renewal or delete waits for an answer
    is_dead: bool = False
    is_done: bool = False
    is_doubtful: bool = False  # this process was held up meanwhile

    def is_in_time(self) -> bool:
        """Whether it asked before the deadline that it knows, and waits for the answer."""
        return self.asking_s is not None and self.asking_s < self.renewed_s + self.window_s


@dataclass(slots=True)
class Troubles:
    """The holders, and what they saw."""

    ports: tuple[int, ...]
    outcome: Outcome
    rng: random.Random
    holders: int = HOLDERS
    windows_s: tuple[int, ...] = WINDOWS_S
    latest: dict[str, Held] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    over_s: float = 0.0  # when the last trouble was over
    deleted: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    stops: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: Any = field(default_factory=itertools.count)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """The holders work meanwhile; afterwards what is left is drained and judged."""
        client = self._client()
        for window_s in self.windows_s:
            attributes = {"VisibilityTimeout": str(window_s)}
            await self._surely(client, "CreateQueue", QueueName=f"w{window_s}", Attributes=attributes)
        watch = asyncio.create_task(self._watch())
        tasks = [asyncio.create_task(self._receive(window_s)) for window_s in self.windows_s]
        for n in range(self.holders):
            await self._send(client, self.windows_s[n % len(self.windows_s)])
        try:
            yield
            self.stops.set()
            await asyncio.wait_for(asyncio.gather(*tasks), 120)
        finally:
            watch.cancel()
            for task in tasks:
                task.cancel()
            client.close()
        for body in self.sent - self.deleted:
            self.outcome.add("lost", f"{body} was sent and never came back")

    def _client(self) -> Client:
        return Client(*self.ports, retry_s=_ANSWER_S)

    async def _surely(self, client: Client, action: str, **given: Any) -> dict[str, Any]:
        """The action's answer, however often it takes; {} where the server refuses it."""
        while True:
            try:
                return await client.call(action, **given)
            except Unknown:
                pass
            except Refused as refusal:
                if "no connection" not in str(refusal):
                    return {"refused": str(refusal)}
            await asyncio.sleep(_RETRY_S)

    async def _watch(self) -> None:
        """Notice when this process was held up."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(0.05)
            if time.monotonic() - before_s > _LAG_MAX_S:
                self.counts["held up"] += 1
                for held in self.latest.values():
                    held.is_doubtful |= not held.is_done

    # ---- a holder

    async def _send(self, client: Client, window_s: int) -> None:
        body = f"w{window_s}-{next(self.numbers)}"
        self.sent.add(body)
        await self._surely(client, "SendMessage", QueueUrl=f"w{window_s}", MessageBody=body)

    async def _receive(self, window_s: int) -> None:
        """Take whatever there is at once, each message with a holder of its own, until everything was handled."""
        client, queue, holders = Client(*self.ports, retry_s=3.0), f"w{window_s}", set[asyncio.Task[None]]()
        while not self.stops.is_set() or any(
            body.startswith(f"{queue}-") for body in self.sent - self.deleted
        ):
            asked_s = time.monotonic()
            named = {"QueueUrl": queue, "WaitTimeSeconds": 1, "MaxNumberOfMessages": 10}
            received = await self._surely(client, "ReceiveMessage", **named)
            for message in received.get("Messages", ()):
                held = Held(message["Body"], window_s, asked_s)
                self._judge(self.latest.get(held.body))
                self.latest[held.body] = held
                holder = asyncio.create_task(self._handle(held, queue, message["ReceiptHandle"]))
                holders.add(holder)
                holder.add_done_callback(holders.discard)
        await asyncio.gather(*holders)
        client.close()

    async def _handle(self, held: Held, queue: str, receipt_handle: str) -> None:
        client, window_s = self._client(), held.window_s
        dies = not self.stops.is_set() and self.rng.random() < _DIE
        ends_s = time.monotonic() + self.rng.uniform(0.2, 3) * window_s
        receipt = {"QueueUrl": queue, "ReceiptHandle": receipt_handle}
        try:
            while time.monotonic() < ends_s and not self.stops.is_set():
                await asyncio.sleep(window_s / 3)
                if dies and time.monotonic() > ends_s - window_s:
                    held.is_dead = True
                    self.counts["died"] += 1
                    return
                renewing_s = held.asking_s = time.monotonic()
                changed = {**receipt, "VisibilityTimeout": window_s}
                if "refused" in await self._surely(client, "ChangeMessageVisibility", **changed):
                    return  # whoever has it now was judged
                held.renewed_s, held.answered_s, held.asking_s = renewing_s, time.monotonic(), None
            held.asking_s = time.monotonic()
            await self._surely(client, "DeleteMessage", **receipt)
            held.is_done = True
            self.deleted.add(held.body)
            self.counts["completed"] += 1
            if not self.stops.is_set():
                await self._send(client, window_s)
        finally:
            client.close()

    def _judge(self, before: Held | None) -> None:
        """Somebody received the message: may they have it?"""
        if before is None:
            return
        if before.is_done:
            self.outcome.add("after delete", before.body)
        elif before.is_doubtful:
            self.counts["not judged"] += 1
        elif not before.is_dead and not before.is_in_time():
            self.counts["late themselves"] += 1
        elif not before.is_dead:
            self.counts["doubled"] += 1
            since_s = time.monotonic() - before.renewed_s
            self.outcome.add(
                "doubled", f"{before.body}: renewed {since_s:.1f} s before, window {before.window_s} s"
            )
        else:
            self.counts["came back"] += 1
            due_s = max(before.answered_s + before.window_s, self.over_s) + grace_ms(before.window_s) / 1000
            late_s = time.monotonic() - due_s - _ANSWER_S - _BACK_S
            if late_s > 0:
                self.outcome.add("late", f"{before.body} came back {late_s:.1f} s too late")

    # ---- trouble

    async def pause(self) -> None:
        """Let everybody work for a while."""
        await asyncio.sleep(self.rng.uniform(*_HEALTHY_S))

    def tell(self, what: str) -> None:
        """Say what was done."""
        self.outcome.done = f"{what}; " + ", ".join(f"{name} {n}" for name, n in sorted(self.counts.items()))


def run_stalls(
    cycles: int = STALLS,
    seed: int = 1,
    *,
    holders: int = HOLDERS,
    windows_s: tuple[int, ...] = WINDOWS_S,
    longest_s: float = 30.0,
    grace: bool = True,
) -> Outcome:
    """Stall the disk's sync, the checkpoint or the whole process so many times."""
    outcome, rng = Outcome("stalls", seed), random.Random(seed)

    async def work(server: ServerProcess, place: Path, troubles: Troubles) -> None:
        total_s = 0.0
        for cycle in range(cycles):
            await troubles.pause()
            length_s = rng.uniform(1.0, longest_s)
            total_s += length_s
            kind = ("sync", "stop", "checkpoint")[cycle % 3]
            if kind == "stop":
                os.kill(server.pid, signal.SIGSTOP)
            else:
                (place / kind).touch()
            await asyncio.sleep(length_s)
            if kind == "stop":
                os.kill(server.pid, signal.SIGCONT)
            else:
                (place / kind).unlink()
            troubles.over_s = time.monotonic()
        await troubles.pause()
        troubles.tell(f"{cycles} stalls, {total_s:.0f} s in all")

    _run(outcome, rng, work, holders, windows_s, grace)
    return outcome


def run_restarts(
    cycles: int = RESTARTS,
    seed: int = 1,
    *,
    holders: int = HOLDERS,
    windows_s: tuple[int, ...] = WINDOWS_S,
    longest_s: float = 60.0,
    grace: bool = True,
) -> Outcome:
    """Stop or kill the server so many times, and start it again after a while."""
    outcome, rng = Outcome("restarts", seed), random.Random(seed)

    async def work(server: ServerProcess, place: Path, troubles: Troubles) -> None:
        total_s = 0.0
        for cycle in range(cycles):
            await troubles.pause()
            length_s = rng.uniform(1.0, longest_s)
            total_s += length_s
            await asyncio.to_thread(server.kill if cycle % 2 else server.terminate)
            await asyncio.sleep(length_s)
            await asyncio.to_thread(server.start)
            troubles.over_s = time.monotonic()
        await troubles.pause()
        troubles.tell(f"{cycles} restarts, {total_s:.0f} s away in all")

    _run(outcome, rng, work, holders, windows_s, grace)
    return outcome


def _run(
    outcome: Outcome,
    rng: random.Random,
    work: Callable[[ServerProcess, Path, Troubles], Awaitable[None]],
    holders: int,
    windows_s: tuple[int, ...],
    grace: bool,
) -> None:
    arguments = ("--stop-grace-s", "1") + (() if grace else ("--no-lease-grace",))
    with scratch(outcome) as place:
        server = ServerProcess(place / "data", place, stalls=place, arguments=arguments)

        async def run() -> None:
            troubles = Troubles((server.port,), outcome, rng, holders, windows_s)
            async with troubles.at_work():
                await work(server, place, troubles)

        with server:
            try:
                asyncio.run(run())
            finally:
                for name in ("sync", "checkpoint"):
                    (place / name).unlink(missing_ok=True)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGCONT)


def run_failovers(
    cycles: int = FAILOVERS,
    seed: int = 1,
    *,
    holders: int = HOLDERS,
    windows_s: tuple[int, ...] = WINDOWS_S,
    grace: bool = True,
) -> Outcome:
    """Kill the primary of the nodes' database so many times, and promote its standby after a while."""
    outcome, rng = Outcome("failovers", seed), random.Random(seed)
    primary, standby = PostgresServer(settings=STANDBY_SETTINGS), PostgresServer(settings=STANDBY_SETTINGS)
    try:
        primary.create()
        primary.start()
        create_database(primary)
        follow(standby, primary)
        arguments = ("--store", dsn_of(primary, standby)) + (() if grace else ("--no-lease-grace",))
        with scratch(outcome) as place:
            nodes = []
            for number in range(2):
                (place / f"node{number}").mkdir()
                nodes.append(ServerProcess(place / "data", place / f"node{number}", arguments=arguments))

            async def run() -> None:
                nonlocal primary, standby
                ports = tuple(node.port for node in nodes)
                troubles = Troubles(ports, outcome, rng, holders, windows_s)
                async with troubles.at_work():
                    for cycle in range(cycles):
                        await troubles.pause()
                        await asyncio.to_thread(primary.stop, "immediate")
                        await asyncio.sleep(rng.uniform(1.0, 15.0))
                        await asyncio.to_thread(standby.promote)
                        primary, standby = standby, primary
                        troubles.over_s = (
                            time.monotonic() + 5.0
                        )  # that the nodes may take to find the new one
                        await troubles.pause()
                        if cycle + 1 < cycles:
                            await asyncio.to_thread(follow, standby, primary)
                    troubles.tell(f"{cycles} failovers")

            with nodes[0], nodes[1]:
                asyncio.run(run())
    finally:
        primary.remove()
        standby.remove()
    return outcome
