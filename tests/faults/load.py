"""Writers and consumers with every habit that a queue must survive, all of it noted in a history.

Writers tag bodies `writer-counter` and never send a tag twice after an unknown end; FIFO writers own their groups, and send
some messages over two connections at once, as an impatient client does. Consumers delete, delete twice at once, extend
first, let lapse, release, or come back late with a receipt that may be stale by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.faults.client import Client, Refused, Unknown, queue_counts
from tests.faults.history import History

STANDARD = "jobs"
FIFO = "orders.fifo"
_PAUSE_WHEN_DOWN_S = 0.02
_BACKLOG_MAX = 2_000  # bounds the drain


@dataclass(slots=True)
class Load:
    """A running set of clients against one port, or spread over the ports of several nodes."""

    port: int
    seed: int
    history: History
    writers: int = 4
    consumers: int = 8
    other_ports: tuple[int, ...] = ()
    _clients: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _senders: list[asyncio.Task[None]] = field(default_factory=list)
    _backlog: int = 0

    async def create_queues(self) -> None:
        """Make the two queues; harmless when they exist."""
        client = self._client()
        await client.call("CreateQueue", QueueName=STANDARD, Attributes={"VisibilityTimeout": "2"})
        await client.call(
            "CreateQueue", QueueName=FIFO, Attributes={"VisibilityTimeout": "2", "FifoQueue": "true"}
        )
        client.close()

    def start(self) -> None:
        """Begin; the clients go on through any number of server lives."""
        for number in range(self.writers):
            rng = random.Random(f"{self.seed} writer {number}")
            work = self._write_fifo if number % 2 else self._write_standard
            self._senders.append(asyncio.create_task(work(f"w{number}", rng)))
        for number in range(self.consumers):
            rng = random.Random(f"{self.seed} consumer {number}")
            queue = FIFO if number % 4 == 3 else STANDARD
            self._tasks.append(asyncio.create_task(self._consume(f"c{number}", queue, rng)))

    async def stop(self) -> None:
        """End the clients, each at its next pause, and raise what went wrong in one."""
        for task in self._senders + self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._senders, *self._tasks, return_exceptions=True)
        self._senders, self._tasks = [], []
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    async def drain(self, within_s: float) -> int:
        """Receive and delete until both queues are empty; how many messages are left after so long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        drainers = [
            asyncio.create_task(self._drain_one(f"d{number}", queue, deadline_s))
            for number, queue in enumerate((STANDARD, STANDARD, FIFO, FIFO))
        ]
        await asyncio.gather(*drainers)
        left = 0
        with contextlib.closing(self._client()) as client:
            for queue in (STANDARD, FIFO):
                with contextlib.suppress(Refused):
                    left += sum(await queue_counts(client, queue))
        return left

    def _client(self) -> Client:
        # Each client prefers another node, and knows them all.
        ports = (self.port, *self.other_ports)
        first = self._clients % len(ports)
        self._clients += 1
        return Client(*ports[first:], *ports[:first])

    # ---- writers

    async def _write_standard(self, name: str, rng: random.Random) -> None:
        client, counter = self._client(), 0
        with contextlib.closing(client):
            while True:
                count = rng.choice((1, 1, 1, 3, 10))
                tags = [f"{name}-{counter + each}" for each in range(count)]
                counter += count
                if count == 1:
                    await self._send_one(client, name, STANDARD, tags[0], {})
                else:
                    await self._send_batch(client, name, tags)
                await self._breathe(rng)

    async def _write_fifo(self, name: str, rng: random.Random) -> None:
        client, second, counter = self._client(), self._client(), 0
        with contextlib.closing(client), contextlib.closing(second):
            while True:
                counter += 1
                tag = f"{name}-{counter}"
                facts = {"group": f"{name}-g{rng.randrange(4)}", "place": counter}
                sends = [self._send_one(client, name, FIFO, tag, facts)]
                if rng.random() < 0.3:
                    sends.append(self._send_one(second, name, FIFO, tag, facts))
                await _together(sends)
                await self._breathe(rng)

    async def _breathe(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.random() * 0.01)
        while self._backlog > _BACKLOG_MAX:
            await asyncio.sleep(0.05)

    async def _send_one(self, client: Client, name: str, queue: str, tag: str, facts: dict[str, Any]) -> None:
        call = self.history.invoke(name, "send", queue, tag=tag, **facts)
        given = {"QueueUrl": queue, "MessageBody": tag}
        if queue == FIFO:
            given |= {"MessageGroupId": facts["group"], "MessageDeduplicationId": tag}
        try:
            await client.call("SendMessage", **given)
        except (Refused, Unknown) as problem:
            await self._note(call, problem)
        except asyncio.CancelledError:
            self.history.end(call, "info")
            raise
        else:
            self._backlog += 1
            self.history.end(call, "ok")

    async def _send_batch(self, client: Client, name: str, tags: list[str]) -> None:
        calls = {tag: self.history.invoke(name, "send", STANDARD, tag=tag) for tag in tags}
        entries = [{"Id": str(place), "MessageBody": tag} for place, tag in enumerate(tags)]
        try:
            answer = await client.call("SendMessageBatch", QueueUrl=STANDARD, Entries=entries)
        except (Refused, Unknown) as problem:
            for call in calls.values():
                await self._note(call, problem, pause=False)
            await asyncio.sleep(_PAUSE_WHEN_DOWN_S)
        except asyncio.CancelledError:
            for call in calls.values():
                self.history.end(call, "info")
            raise
        else:
            done = {tags[int(each["Id"])] for each in answer.get("Successful", ())}
            self._backlog += len(done)
            for tag, call in calls.items():
                self.history.end(call, "ok" if tag in done else "info")

    async def _note(self, call: int, problem: Exception, *, pause: bool = True) -> None:
        self.history.end(call, "fail" if isinstance(problem, Refused) else "info", why=str(problem))
        if pause:
            await asyncio.sleep(_PAUSE_WHEN_DOWN_S)

    # ---- consumers

    async def _consume(self, name: str, queue: str, rng: random.Random) -> None:
        client, second = self._client(), self._client()
        late: deque[tuple[float, str, str]] = deque()
        now_s = asyncio.get_running_loop().time
        with contextlib.closing(client), contextlib.closing(second):
            while True:
                window_s, wait_s = rng.choice((1, 1, 2, 3)), rng.choice((0, 1))
                messages = await self._receive(client, name, queue, rng.randint(1, 10), window_s, wait_s)
                for tag, receipt in messages:
                    habit = rng.random()
                    if habit < 0.60:
                        await self._delete(client, name, queue, tag, receipt)
                    elif habit < 0.66:
                        deletes = [self._delete(each, name, queue, tag, receipt) for each in (client, second)]
                        await _together(deletes)
                    elif habit < 0.76:
                        await self._extend(client, name, queue, tag, receipt, rng.choice((1, 2)))
                        if rng.random() < 0.5:
                            await self._delete(client, name, queue, tag, receipt)
                    elif habit < 0.82:
                        await self._extend(client, name, queue, tag, receipt, 0)
                    elif habit < 0.92:
                        late.append((now_s() + window_s + rng.random() * 0.8, tag, receipt))
                    # else: it lapses
                while late and late[0][0] <= now_s():
                    _, tag, receipt = late.popleft()
                    await self._delete(client, name, queue, tag, receipt)
                if not messages:
                    await asyncio.sleep(0.01)

    async def _receive(
        self, client: Client, name: str, queue: str, count: int, window_s: int, wait_s: int
    ) -> list[tuple[str, str]]:
        call = self.history.invoke(name, "receive", queue, window_s=window_s, wait_s=wait_s)
        try:
            answer = await client.call(
                "ReceiveMessage",
                QueueUrl=queue,
                MaxNumberOfMessages=count,
                VisibilityTimeout=window_s,
                WaitTimeSeconds=wait_s,
            )
        except (Refused, Unknown) as problem:
            await self._note(call, problem)
            return []
        except asyncio.CancelledError:
            self.history.end(call, "info")
            raise
        messages = [(each["Body"], each["ReceiptHandle"]) for each in answer.get("Messages", ())]
        self.history.end(call, "ok", messages=[{"tag": tag, "receipt": receipt} for tag, receipt in messages])
        return messages

    async def _delete(self, client: Client, name: str, queue: str, tag: str, receipt: str) -> None:
        call = self.history.invoke(name, "delete", queue, tag=tag, receipt=receipt)
        if await self._settle(call, client.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=receipt)):
            self._backlog = max(0, self._backlog - 1)

    async def _extend(
        self, client: Client, name: str, queue: str, tag: str, receipt: str, window_s: int
    ) -> None:
        call = self.history.invoke(name, "extend", queue, tag=tag, receipt=receipt, window_s=window_s)
        change = client.call(
            "ChangeMessageVisibility", QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=window_s
        )
        await self._settle(call, change)

    async def _settle(self, call: int, doing: Coroutine[Any, Any, Any]) -> bool:
        try:
            await doing
        except (Refused, Unknown) as problem:
            self.history.end(call, "fail" if isinstance(problem, Refused) else "info", why=str(problem))
            return False
        except asyncio.CancelledError:
            self.history.end(call, "info")
            raise
        self.history.end(call, "ok")
        return True

    # ---- the end

    async def _drain_one(self, name: str, queue: str, deadline_s: float) -> None:
        client = self._client()
        now_s = asyncio.get_running_loop().time
        # A broken build has forgotten the queue: then what was in it is lost, and told as that.
        with contextlib.closing(client), contextlib.suppress(Refused):
            while now_s() < deadline_s and await self._drain_some(client, name, queue):
                pass

    async def _drain_some(self, client: Client, name: str, queue: str) -> bool:
        """Receive and delete once; False where nothing is left."""
        messages = await self._receive(client, name, queue, 10, 5, 1)
        calls = [
            self.history.invoke(name, "delete", queue, tag=tag, receipt=receipt) for tag, receipt in messages
        ]
        if not messages:
            return any(await queue_counts(client, queue))
        entries = [{"Id": str(n), "ReceiptHandle": r} for n, (_, r) in enumerate(messages)]
        answer = await client.call("DeleteMessageBatch", QueueUrl=queue, Entries=entries)
        done = {int(each["Id"]) for each in answer.get("Successful", ())}
        for place, call in enumerate(calls):
            self.history.end(call, "ok" if place in done else "fail")
        return True


async def _together(calls: list[Coroutine[Any, Any, None]]) -> None:
    # Not a task group: its members would be cancelled one after the other, and each must note its own end.
    await asyncio.gather(*calls)
