"""Holders of leases that renew in time, and the judge of what became of their messages; whoever serves them may be in trouble.

The holders are tasks of one process, which a busy machine may hold up too. Whatever is held while that happens is not
judged, and counted: a holder that was late itself proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.faults.client import Refused, Unknown
from tests.faults.rig import Outcome
from veil.core.clock import grace_ms

HOLDERS = 100
WINDOWS_S = (2, 4, 6, 8, 10)
_HEALTHY_S = (2.0, 6.0)
_RENEWS_AT = (0.4, 0.6)  # of its window
_RETRY_S = 0.2
# That a holder rests after a request without an answer, as clients do. Whoever asks again without a rest is always first when the
# trouble is over, and needs no grace.
_BACKOFF_S = (0.2, 1.2)
# That a holder waits before it asks again. With the longest rest that is within the shortest grace.
_ANSWER_S = 0.5
_POLL_ANSWER_S = 3.0  # that a long poll is waited for
_KILLED = 4  # holders in each trouble
_LAG_MAX_S = 0.4  # of this process, within so long
_LAG_WITHIN_S = 2.0
_DRAINED_S = 120.0  # in which everything is handled once the troubles are over
SERVED_S_MAX = 5.0  # after a promotion
_BACK_S = 1.0  # in which a message is to be had again once its lease is over
_AT_ONCE_S = 0.2  # that a holder takes to ask, once it has an answer that came after its deadline


class Connection(Protocol):
    """Somebody to ask, as tests.faults.client.Client is."""

    async def call(self, action: str, **given: Any) -> dict[str, Any]:
        """One action; raises Refused or Unknown."""

    def close(self) -> None:
        """Drop the connection."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True, eq=False)
class Held:
    """One attempt: what a holder knows of it."""

    body: str
    window_s: int
    renewed_s: float  # when that was asked for: its own deadline counts from here
    answered_s: float  # and from here on the lease lasts no longer than a window
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


def judge(before: Held, now_s: float, over_s: float, lag_s: float) -> tuple[str, float]:
    """What it says of the server that somebody received the message of an earlier attempt now, and by how many seconds it came
    too late.

    `over_s` is when the last trouble was over, `lag_s` by how much this process itself was late since. Violations are
    "after delete", "late" and "doubled".
    """
    if before.is_done:
        return "after delete", 0.0
    if before.is_doubtful:
        # Told apart: many of the living would be suspicious, though none proves anything.
        return ("not judged, dead" if before.is_dead else "not judged, alive"), 0.0
    if before.is_dead:
        # What it asked for when it was killed may have been done when the trouble was over.
        last_s = before.answered_s if before.asking_s is None else max(over_s, before.asking_s)
        due_s = max(last_s + before.window_s, over_s) + grace_ms(before.window_s) / 1000
        late_s = now_s - due_s - _BACK_S - lag_s
        return ("late" if late_s > 0 else "came back"), late_s
    return ("doubled" if before.is_in_time(now_s) else "late themselves"), 0.0


@dataclass(slots=True)
class Holders:
    """The holders, and what they saw; `connect` opens a connection on which an answer is waited for so long, to any node or to
    the one of that number."""

    connect: Callable[..., Connection]
    outcome: Outcome
    rng: random.Random
    nodes: int = 1
    holders: int = HOLDERS
    windows_s: tuple[int, ...] = WINDOWS_S
    # When troubles were over that the server noted itself, by the wall clock: the machine may bring some that nobody made.
    noted: Callable[[], list[float]] = list
    latest: dict[str, Held] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    over_s: float = 0.0  # when the last trouble was over
    is_cut_off: bool = False  # whatever is sent is lost, as on the way to a machine that is paused
    # When this process was woken late, and by how much: whoever comes late by that much proves nothing.
    lags_s: list[tuple[float, float]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    stops: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: Any = field(default_factory=itertools.count)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """The holders work meanwhile; afterwards what is left is drained and judged."""
        client = self.connect(_ANSWER_S)
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
            with contextlib.suppress(TimeoutError):  # what is left then is lost
                await asyncio.wait_for(asyncio.gather(*tasks), _DRAINED_S)
        finally:
            watch.cancel()
            for task in tasks:
                task.cancel()
            client.close()
        self.outcome.done += "; " + ", ".join(f"{name} {n}" for name, n in sorted(self.counts.items()))
        for body in self.sent - self.deleted:
            self.outcome.add("lost", f"{body} was sent and never came back")

    async def _surely(self, client: Connection, action: str, **given: Any) -> dict[str, Any]:
        """The action's answer, however often it takes, and when it was asked for that."""
        while True:
            asked_s = _now_s()
            try:
                if not self.is_cut_off:
                    return {**await client.call(action, **given), "asked_s": asked_s}
                client.close()
                await asyncio.sleep(_ANSWER_S)
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
            before_s = _now_s()
            await asyncio.sleep(0.05)
            lag_s = (now_s := _now_s()) - before_s - 0.05
            if lag_s > 0.02:
                self.lags_s.append((now_s, lag_s))
            # A holder needs several turns for one request: many small delays cost it as much as one that is long.
            if sum(lag_s for at_s, lag_s in self.lags_s[-50:] if at_s > now_s - _LAG_WITHIN_S) > _LAG_MAX_S:
                self.counts["held up"] += 1
                for held in self.latest.values():
                    held.is_doubtful |= not held.is_done

    # ---- a holder

    async def _send(self, client: Connection, window_s: int) -> None:
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
        client, queue, holders = self.connect(_POLL_ANSWER_S), f"w{window_s}", set[asyncio.Task[None]]()
        while not self.stops.is_set() or any(
            body.startswith(f"{queue}-") for body in self.sent - self.deleted
        ):
            named = {"QueueUrl": queue, "WaitTimeSeconds": 1, "MaxNumberOfMessages": 10}
            received = await self._surely(client, "ReceiveMessage", **named)
            for message in received.get("Messages", ()):
                held = Held(message["Body"], window_s, received["asked_s"], _now_s())
                self._judge(self.latest.get(held.body))
                self.latest[held.body] = held
                held.task = holder = asyncio.create_task(self._handle(held, queue, message["ReceiptHandle"]))
                holders.add(holder)
                holder.add_done_callback(holders.discard)
        await asyncio.gather(*holders, return_exceptions=True)  # those that were killed
        client.close()

    async def _handle(self, held: Held, queue: str, receipt_handle: str) -> None:
        client, window_s = self.connect(_ANSWER_S), held.window_s
        ends_s = _now_s() + self.rng.uniform(0.2, 3) * window_s
        receipt = {"QueueUrl": queue, "ReceiptHandle": receipt_handle}
        try:
            while _now_s() < ends_s and not self.stops.is_set():
                rest_s = window_s * self.rng.uniform(*_RENEWS_AT)
                await asyncio.sleep(held.renewed_s + rest_s - _now_s())
                held.asking_s = _now_s()
                changed = {**receipt, "VisibilityTimeout": window_s}
                renewed = await self._surely(client, "ChangeMessageVisibility", **changed)
                if "refused" in renewed:
                    held.refused_s = _now_s()
                    return  # whoever has it now is judged
                held.renewed_s, held.answered_s, held.asking_s = renewed["asked_s"], _now_s(), None
            held.asking_s, held.is_deleting = _now_s(), True
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
        if before is None:
            return
        now_s = _now_s()
        since_s = before.answered_s + before.window_s
        lag_s = max((lag_s for at_s, lag_s in self.lags_s if at_s > since_s), default=0.0)
        verdict, late_s = judge(before, now_s, self.over_s, lag_s)
        if verdict == "late":
            noted_s = max((now_s - time.time() + at_s for at_s in self.noted()), default=-math.inf)
            if noted_s > self.over_s:
                verdict, late_s = judge(before, now_s, noted_s, lag_s)
                self.counts["late by a trouble that nobody made"] += verdict != "late"
        self.counts[verdict] += 1
        if verdict in ("after delete", "late", "doubled"):
            instants = {
                "renewed": before.renewed_s,
                "answered": before.answered_s,
                "asks": before.asking_s,
                "refused": before.refused_s,
                "trouble over": self.over_s,
                "woken late": self.lags_s[-1][0] if self.lags_s else None,
            }
            since = {what: f"{now_s - at_s:.2f} s ago" for what, at_s in instants.items() if at_s is not None}
            by = f", {late_s:.1f} s too late" if late_s else ""
            self.outcome.add(verdict, f"{before.body} at {time.time() % 3600:.2f}{by}: {since}")

    # ---- trouble

    async def pause(self) -> None:
        """Let everybody work for a while."""
        await asyncio.sleep(self.rng.uniform(*_HEALTHY_S))

    async def suffer(self, length_s: float, *, holds_up: bool = True) -> None:
        """Let a trouble last so long, and kill some holders meanwhile. Some hold up nobody: what is due comes back meanwhile."""
        if holds_up:
            self.over_s = math.inf
        ends_s = _now_s() + length_s
        for at_s in sorted(self.rng.uniform(0, length_s) for _ in range(_KILLED)):
            await asyncio.sleep(ends_s - length_s + at_s - _now_s())
            # One that deletes may have done so when the trouble is over: then there is nothing to come back.
            alive = [held for held in self.latest.values() if not (held.is_dead or held.is_deleting)]
            if alive:
                held = self.rng.choice(alive)
                held.is_dead = True
                self.counts["killed"] += 1
                if held.task is not None:
                    held.task.cancel()
        await asyncio.sleep(ends_s - _now_s())

    async def over(self) -> None:
        """The trouble is over: every node answers."""
        if self.over_s < math.inf:
            return
        for node in range(self.nodes):
            client = self.connect(_ANSWER_S, node)
            asked = {"QueueUrl": f"w{self.windows_s[0]}", "AttributeNames": ["ApproximateNumberOfMessages"]}
            await self._surely(client, "GetQueueAttributes", **asked)
            client.close()
        self.over_s = _now_s()
        for held in self.latest.values():
            if not (held.is_done or held.is_dead):
                # How much there was to be lost, and how much of it would have proved something.
                self.counts[
                    "in doubt through a trouble" if held.is_doubtful else "held through a trouble"
                ] += 1

    async def until_served(self) -> float:
        """Wait until every node takes a message again; how long that was."""
        began_s, held_up = _now_s(), self.counts["held up"]
        for node in range(self.nodes):
            client = self.connect(_ANSWER_S, node)
            await self._send(client, self.windows_s[0])
            client.close()
        took_s = _now_s() - began_s
        if took_s > SERVED_S_MAX and self.counts["held up"] > held_up:
            self.counts["not judged, away"] += 1
        elif took_s > SERVED_S_MAX:
            self.outcome.add("away", f"served {took_s:.1f} s after the promotion")
        return took_s
