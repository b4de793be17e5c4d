"""What the sentences about the service leave out: a desk at one queue, and ways to wait for a named event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.stores.kit import a_key
from veil.core.clock import ManualClock
from veil.core.errors import VeilError
from veil.core.message import Sent, StoredMessage
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueCounts
from veil.service.messages import delete, extend_lease, send
from veil.service.queues import change_settings, create_queue
from veil.service.receive import receipt_text, receive
from veil.service.service import Service


class Desk:
    """One queue and everything a sender or consumer does at it."""

    def __init__(self, service: Service, queue: Queue) -> None:
        self.service, self.queue = service, queue
        self.clock = service.clock
        assert isinstance(self.clock, ManualClock)

    async def send(self, body: str = "hello", **given: Any) -> Sent:
        (answer,) = await send(self.service, self.queue, [Draft(body, **given)], sender="tester")
        if isinstance(answer, VeilError):
            raise answer
        return answer

    async def send_all(self, *bodies: str, group: str) -> None:
        for body in bodies:
            await self.send(body, group=group, deduplication_id=f"d-{group}-{body}")

    async def receive(
        self, count: int = 10, *, visibility_s: int | None = None, wait_s: int | None = 0, **given: Any
    ) -> list[StoredMessage]:
        return await receive(
            self.service, self.queue, count=count, visibility_s=visibility_s, wait_s=wait_s, **given
        )

    async def receive_one(self, **given: Any) -> StoredMessage:
        (message,) = await self.receive(1, **given)
        return message

    async def bodies(self, **given: Any) -> list[str]:
        return [message.body for message in await self.receive(**given)]

    def receipt(self, message: StoredMessage) -> str:
        return receipt_text(self.service, self.queue, message)

    async def delete(self, receipt: str) -> VeilError | None:
        (answer,) = await delete(self.service, self.queue, [receipt])
        return answer

    async def extend(self, receipt: str, visibility_s: int) -> VeilError | None:
        (answer,) = await extend_lease(self.service, self.queue, [(receipt, visibility_s)])
        return answer

    async def release(self, receipt: str) -> VeilError | None:
        return await self.extend(receipt, 0)

    async def change(self, **given: Any) -> None:
        self.queue = await change_settings(self.service, self.queue, given)

    async def counts(self) -> QueueCounts:
        return await self.service.store.counts(self.queue)

    def tally(self, event: str) -> int:
        return self.service.tallies.of(event, self.queue.id)

    async def poll(self, *, wait_s: int = 20, **given: Any) -> asyncio.Task[list[StoredMessage]]:
        """A receiver that is already waiting in line."""
        waiting = self.service.waiting.waiting(self.queue.id)
        poll = asyncio.create_task(self.receive(wait_s=wait_s, **given))
        await until(lambda: self.service.waiting.waiting(self.queue.id) == waiting + 1)
        return poll


async def open_desk(service: Service, name: str = "orders", **given: Any) -> Desk:
    """A desk at a new queue; one whose name ends in .fifo is FIFO."""
    if name.endswith(".fifo"):
        given.setdefault("fifo", True)
    return Desk(service, await create_queue(service, a_key(name), given, {}))


async def until(happened: Callable[[], bool]) -> None:
    """Let the loop turn until it has happened."""
    async with asyncio.timeout(100):
        while not happened():
            await asyncio.sleep(0)


async def quiet(service: Service) -> None:
    """Return when whatever was under way has had its effect, what runs in the background included."""
    for _ in range(3):
        if service._background:
            await asyncio.wait(service._background)
        await service.store.settle()
        for _ in range(5):
            await asyncio.sleep(0)


async def tick_done(service: Service) -> None:
    """Return when the tick under way is over: a store elsewhere may announce what happened before it is."""
    await until(lambda: service.ticker._settling is None)


class HeldAnswers:
    """Lets the next receive claim its messages, and keeps the answer back until told."""

    def __init__(self, service: Service) -> None:
        self._service, self._receive = service, service.store.receive
        self._let_go = asyncio.Event()
        self.claimed: list[StoredMessage] | None = None
        service.store.receive = self._held  # type: ignore[method-assign]

    async def _held(self, *args: Any, **given: Any) -> list[StoredMessage]:
        self._service.store.receive = self._receive  # type: ignore[method-assign]
        self.claimed = await self._receive(*args, **given)
        await self._let_go.wait()
        return self.claimed

    def let_go(self) -> None:
        self._let_go.set()


class Looks:
    """Counts how often the store is looked at."""

    def __init__(self, service: Service) -> None:
        self._receive = service.store.receive
        self.count = 0
        service.store.receive = self._counted  # type: ignore[method-assign]

    async def _counted(self, *args: Any, **given: Any) -> list[StoredMessage]:
        self.count += 1
        return await self._receive(*args, **given)
