"""Holders that renew in time, under a server that cannot always take it: the disk stalls, the process is stopped or restarted,
the database fails over. None of them may lose its lease by that, and what holders that died had comes back in time.

The holders are tasks of one process, which a busy machine may hold up too. Whatever is held while that happens is not
judged, and counted: a holder that was late itself proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.client import Client, Refused, Unknown
from tests.faults.postgres_kit import DATABASE, create_database
from tests.faults.postgres_promotions import STANDBY_SETTINGS, dsn_of, follow
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerProcess
from tests.pgbouncer import PgBouncer
from tests.postgres_server import PostgresServer
from veil.core.clock import grace_ms

STALLS, RESTARTS, FAILOVERS = 200, 100, 50
HOLDERS = 100
WINDOWS_S = (2, 4, 6, 8, 10)
_HEALTHY_S = (2.0, 6.0)
_STOP_S = 120.0  # a stop has only to end: how long it takes is not what is tried here
_RETRY_S = 0.2
# That a holder rests after a request without an answer, as clients do. Whoever asks again without a rest is always first when the
# trouble is over, and needs no grace.
_BACKOFF_S = (0.2, 1.2)
_ANSWER_S = 1.0  # that a holder waits before it asks again
_POLL_ANSWER_S = 3.0  # that a long poll is waited for
_KILLED = 4  # holders in each trouble
_LAG_MAX_S = 0.4  # of this process, within so long
_LAG_WITHIN_S = 2.0
SERVED_S_MAX = 5.0  # after a promotion
_BACK_S = 1.0  # in which a message is to be had again once its lease is over
_AT_ONCE_S = 0.2  # that a holder takes to ask, once it has an answer that came after its deadline


@dataclass(slots=True, eq=False)
class Held:
    """One attempt: what a holder knows of it."""

    body: str
    window_s: int
    renewed_s: float  # when that was asked for: its own deadline counts from here
    # And from here on the lease lasts no longer than a window.
    answered_s: float = field(default_factory=time.monotonic)
    asking_s: float | None = None  # since when its renewal or delete waits for an answer
    refused_s: float | None = None
    is_deleting: bool = False
    is_dead: bool = False
    is_done: bool = False
    is_doubtful: bool = False  # this process was held up meanwhile
    task: asyncio.Task[None] | None = None

    def is_in_time(self, now_s: float) -> bool:
        """Whether it asked before the deadline that it knows, or at once where the answer came later than that; or need not
        have asked yet."""
        asked_s = now_s if self.asking_s is None else self.asking_s
        return asked_s < max(self.renewed_s + self.window_s, self.answered_s + _AT_ONCE_S)


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
    # When this process was woken late, and by how much: whoever comes late by that much proves nothing.
    lags_s: list[tuple[float, float]] = field(default_factory=list)
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
        """The action's answer, however often it takes, and when it was asked for that."""
        while True:
            asked_s = time.monotonic()
            try:
                return {**await client.call(action, **given), "asked_s": asked_s}
            except Unknown:
                pass
            except Refused as refusal:
                if "no connection" not in str(refusal):
                    return {"refused": str(refusal)}
            is_holder = action in ("ChangeMessageVisibility", "DeleteMessage")
            await asyncio.sleep(self.rng.uniform(*_BACKOFF_S) if is_holder else _RETRY_S)

    async def _watch(self) -> None:
        """Notice when this process was held up."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(0.05)
            lag_s = (now_s := time.monotonic()) - before_s - 0.05
            if lag_s > 0.02:
                self.lags_s.append((now_s, lag_s))
            # A holder needs several turns for one request: many small delays cost it as much as one that is long.
            if sum(lag_s for at_s, lag_s in self.lags_s[-50:] if at_s > now_s - _LAG_WITHIN_S) > _LAG_MAX_S:
                self.counts["held up"] += 1
                for held in self.latest.values():
                    held.is_doubtful |= not held.is_done

    # ---- a holder

    async def _send(self, client: Client, window_s: int) -> None:
        """One message more, surely; without an answer another is sent, since the one may be there or not."""
        while True:
            body = f"w{window_s}-{next(self.numbers)}"
            with contextlib.suppress(Unknown, Refused):
                await client.call("SendMessage", QueueUrl=f"w{window_s}", MessageBody=body)
                self.sent.add(body)
                return
            await asyncio.sleep(_RETRY_S)

    async def _receive(self, window_s: int) -> None:
        """Take whatever there is at once, each message with a holder of its own, until everything was handled."""
        client, queue, holders = (
            Client(*self.ports, retry_s=_POLL_ANSWER_S),
            f"w{window_s}",
            set[asyncio.Task[None]](),
        )
        while not self.stops.is_set() or any(
            body.startswith(f"{queue}-") for body in self.sent - self.deleted
        ):
            named = {"QueueUrl": queue, "WaitTimeSeconds": 1, "MaxNumberOfMessages": 10}
            received = await self._surely(client, "ReceiveMessage", **named)
            for message in received.get("Messages", ()):
                held = Held(message["Body"], window_s, received["asked_s"])
                self._judge(self.latest.get(held.body))
                self.latest[held.body] = held
                held.task = holder = asyncio.create_task(self._handle(held, queue, message["ReceiptHandle"]))
                holders.add(holder)
                holder.add_done_callback(holders.discard)
        await asyncio.gather(*holders, return_exceptions=True)  # those that were killed
        client.close()

    async def _handle(self, held: Held, queue: str, receipt_handle: str) -> None:
        client, window_s = self._client(), held.window_s
        ends_s = time.monotonic() + self.rng.uniform(0.2, 3) * window_s
        receipt = {"QueueUrl": queue, "ReceiptHandle": receipt_handle}
        try:
            while time.monotonic() < ends_s and not self.stops.is_set():
                await asyncio.sleep(held.renewed_s + window_s / 3 - time.monotonic())
                held.asking_s = time.monotonic()
                changed = {**receipt, "VisibilityTimeout": window_s}
                renewed = await self._surely(client, "ChangeMessageVisibility", **changed)
                if "refused" in renewed:
                    held.refused_s = time.monotonic()
                    return  # whoever has it now is judged
                held.renewed_s, held.answered_s, held.asking_s = renewed["asked_s"], time.monotonic(), None
            held.asking_s, held.is_deleting = time.monotonic(), True
            await self._surely(client, "DeleteMessage", **receipt)
            held.is_done = True
            self.deleted.add(held.body)
            self.counts["completed"] += 1
            if not self.stops.is_set() and held.body in self.sent:
                await self._send(client, window_s)
        finally:
            client.close()

    def _judge(self, before: Held | None) -> None:
        """Somebody received the message: may they have it?"""
        now_s = time.monotonic()
        if before is None:
            return
        if before.is_done:
            self.outcome.add("after delete", before.body)
        elif before.is_doubtful:
            # Told apart: many of the living would be suspicious, though none proves anything.
            self.counts["not judged, dead" if before.is_dead else "not judged, alive"] += 1
        elif before.is_dead:
            self.counts["came back"] += 1
            # What it asked for when it was killed may have been done when the trouble was over.
            last_s = before.answered_s if before.asking_s is None else max(self.over_s, before.asking_s)
            due_s = max(last_s + before.window_s, self.over_s) + grace_ms(before.window_s) / 1000
            lag_s = max((lag_s for at_s, lag_s in self.lags_s if at_s > due_s), default=0.0)
            if (late_s := now_s - due_s - _BACK_S - lag_s) > 0:
                self.outcome.add("late", f"{before.body} came back {late_s:.1f} s too late")
        elif not before.is_in_time(now_s):
            self.counts["late themselves"] += 1
        else:
            self.counts["doubled"] += 1
            since = {
                what: f"{now_s - at_s:.2f} s ago"
                for what, at_s in {
                    "renewed": before.renewed_s,
                    "answered": before.answered_s,
                    "asks": before.asking_s,
                    "refused": before.refused_s,
                    "trouble over": self.over_s,
                    "woken late": self.lags_s[-1][0] if self.lags_s else None,
                }.items()
                if at_s is not None
            }
            self.outcome.add("doubled", f"{before.body} at {time.time() % 3600:.2f}: {since}")

    # ---- trouble

    async def pause(self) -> None:
        """Let everybody work for a while."""
        await asyncio.sleep(self.rng.uniform(*_HEALTHY_S))

    async def suffer(self, length_s: float, *, holds_up: bool = True) -> None:
        """Let a trouble last so long, and kill some holders meanwhile. Some hold up nobody: what is due comes back meanwhile."""
        if holds_up:
            self.over_s = math.inf
        ends_s = time.monotonic() + length_s
        for at_s in sorted(self.rng.uniform(0, length_s) for _ in range(_KILLED)):
            await asyncio.sleep(ends_s - length_s + at_s - time.monotonic())
            # One that deletes may have done so when the trouble is over: then there is nothing to come back.
            alive = [held for held in self.latest.values() if not (held.is_dead or held.is_deleting)]
            if alive:
                held = self.rng.choice(alive)
                held.is_dead = True
                self.counts["killed"] += 1
                if held.task is not None:
                    held.task.cancel()
        await asyncio.sleep(ends_s - time.monotonic())

    async def over(self) -> None:
        """The trouble is over: every node answers."""
        if self.over_s < math.inf:
            return
        for port in self.ports:
            client = Client(port, retry_s=_ANSWER_S)
            asked = {"QueueUrl": f"w{self.windows_s[0]}", "AttributeNames": ["ApproximateNumberOfMessages"]}
            await self._surely(client, "GetQueueAttributes", **asked)
            client.close()
        self.over_s = time.monotonic()

    async def until_served(self) -> float:
        """Wait until every node takes a message again; how long that was."""
        began_s = time.monotonic()
        for port in self.ports:
            client = Client(port, retry_s=_ANSWER_S)
            await self._send(client, self.windows_s[0])
            client.close()
        took_s = time.monotonic() - began_s
        if took_s > SERVED_S_MAX:
            self.outcome.add("away", f"served {took_s:.1f} s after the promotion")
        return took_s

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
    kinds: tuple[str, ...] = ("sync", "stop", "checkpoint"),
) -> Outcome:
    """Stall the disk's sync, the whole process or the checkpoint so many times."""
    outcome, rng = Outcome("stalls", seed), random.Random(seed)

    async def work(server: ServerProcess, place: Path, troubles: Troubles) -> None:
        total_s = 0.0
        for cycle in range(cycles):
            await troubles.pause()
            length_s = rng.uniform(1.0, longest_s)
            total_s += length_s
            kind = kinds[cycle % len(kinds)]
            if kind == "stop":
                os.kill(server.pid, signal.SIGSTOP)
            else:
                (place / kind).touch()
            await troubles.suffer(length_s, holds_up=kind in ("sync", "stop"))
            if kind == "stop":
                os.kill(server.pid, signal.SIGCONT)
            else:
                (place / kind).unlink()
            await troubles.over()
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
            await asyncio.to_thread(server.kill if cycle % 2 else lambda: server.terminate(_STOP_S))
            await troubles.suffer(length_s)
            await asyncio.to_thread(server.start)
            await troubles.over()
        await troubles.pause()
        troubles.tell(f"{cycles} restarts, {total_s:.0f} s away in all")

    _run(outcome, rng, work, holders, windows_s, grace, stalls=False)
    return outcome


def run_without_grace(cycles: int = STALLS, seed: int = 1) -> Outcome:
    """The stalls again with leases that lapse as ever: a rig that finds none lost by that would find nothing else either."""
    found = run_stalls(cycles, seed, grace=False)
    found.discard()
    outcome = Outcome("stalls-no-grace", seed, found.done)
    # Here those count too that were lost while this process was late: without a grace there are far more of them.
    alive = re.search(r"not judged, alive (\d+)", found.done)
    if len(found.violations.get("doubled", ())) + (int(alive[1]) if alive else 0) < cycles:
        outcome.add("missed", f"fewer than one doubled attempt a stall: {found}")
    return outcome


def _run(
    outcome: Outcome,
    rng: random.Random,
    work: Callable[[ServerProcess, Path, Troubles], Awaitable[None]],
    holders: int,
    windows_s: tuple[int, ...],
    grace: bool,
    *,
    stalls: bool = True,
) -> None:
    arguments = ("--stop-grace-s", "1") + (() if grace else ("--no-lease-grace",))
    with scratch(outcome) as place:
        server = ServerProcess(place / "data", place, stalls=place if stalls else None, arguments=arguments)

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
    pooled: bool = False,
) -> Outcome:
    """Kill the primary of the nodes' database so many times, and promote its standby after a while.

    The nodes know both servers, or a PgBouncer that is told of the new one.
    """
    outcome, rng = Outcome("failovers-pgbouncer" if pooled else "failovers", seed), random.Random(seed)
    primary, standby = PostgresServer(settings=STANDBY_SETTINGS), PostgresServer(settings=STANDBY_SETTINGS)
    bouncer: PgBouncer | None = None
    try:
        primary.create()
        primary.start()
        create_database(primary)
        follow(standby, primary)
        bouncer = PgBouncer(primary) if pooled else None
        dsn = dsn_of(primary, standby) if bouncer is None else bouncer.dsn(DATABASE)
        arguments = ("--store", dsn) + (() if grace else ("--no-lease-grace",))
        with scratch(outcome) as place:
            nodes = []
            for number in range(2):
                (place / f"node{number}").mkdir()
                nodes.append(ServerProcess(place / "data", place / f"node{number}", arguments=arguments))

            async def run() -> None:
                nonlocal primary, standby
                away_s: list[float] = []
                ports = tuple(node.port for node in nodes)
                troubles = Troubles(ports, outcome, rng, holders, windows_s)
                async with troubles.at_work():
                    for cycle in range(cycles):
                        await troubles.pause()
                        await asyncio.to_thread(primary.stop, "kill")
                        await troubles.suffer(rng.uniform(1.0, 15.0))
                        await asyncio.to_thread(standby.promote)
                        primary, standby = standby, primary
                        if bouncer is not None:
                            await asyncio.to_thread(bouncer.lead_to, primary)
                        away_s.append(await troubles.until_served())
                        await troubles.over()
                        await troubles.pause()
                        if cycle + 1 < cycles:
                            await asyncio.to_thread(follow, standby, primary)
                    troubles.tell(f"{cycles} failovers, served {max(away_s):.1f} s after a promotion at most")

            with nodes[0], nodes[1]:
                asyncio.run(run())
    finally:
        if bouncer is not None:
            bouncer.remove()
        primary.remove()
        standby.remove()
    return outcome
