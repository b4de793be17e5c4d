"""The demo's producers, its plain workers, and its consumer of videos: each runs in processes of its own.

A plain worker is as one finds it everywhere: receive, work, delete. It renews nothing, so the queue's timeout must do. The
consumer of videos is Veil's own, which renews its leases; `veil run veil.demo.workers:videos` starts it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Final

from veil import Adaptive, Consumer, Message
from veil.cli.client import Client, find_target
from veil.cli.output import say
from veil.client.api import ApiError, RawMessage
from veil.client.client import SqsClient
from veil.demo.processes import leave_with_the_demo
from veil.demo.shop import DemoQueue, queue_named

_SLOTS: Final = 200  # asleep most of the time
_WAIT_S: Final = 20
READY: Final = "ready"  # said once, before the first receive


class Worker:
    """Works on as many messages at a time as it has slots, until it is asked to stop."""

    def __init__(self, queue: DemoQueue, api: SqsClient) -> None:
        self._queue, self._api, self._url = queue, api, ""
        self._at_work: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Receive until cancelled, then finish what was begun."""
        self._url = await self._api.queue_url(self._queue.name)
        say(READY)
        try:
            while True:
                while len(self._at_work) >= _SLOTS:
                    await asyncio.wait(self._at_work, return_when=asyncio.FIRST_COMPLETED)
                for message in await self._api.receive(self._url, count=10, wait_s=_WAIT_S):
                    task = asyncio.create_task(self._handle(message))
                    self._at_work.add(task)
                    task.add_done_callback(self._at_work.discard)
        except asyncio.CancelledError:
            if self._at_work:
                await asyncio.wait(self._at_work)

    async def _handle(self, message: RawMessage) -> None:
        try:
            number = int(json.loads(message.body)["number"])
        except ValueError:  # poison: given back at once, until it has been received too often
            await self._api.extend(self._url, [(message.receipt, 0)])
            return
        await asyncio.sleep(self._queue.work_s(number, message.receive_count))
        # Perhaps the visibility has lapsed by now and somebody else is at the same work. Nothing here would notice.
        await self._api.delete(self._url, [message.receipt])


async def _work(queue: DemoQueue) -> None:
    api = SqsClient(user_agent_extra="demo-worker")
    working = asyncio.create_task(Worker(queue, api).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        await working
    finally:
        await api.close()


# ---- producers

_BATCH: Final = 10
_TELL_EVERY_S: Final = 0.5


def bodies(poison_every: int) -> Iterator[str]:
    """What is sent: numbered work, and now and then something that nobody can read."""
    for number in count(1):
        poisonous = poison_every and number % poison_every == 0
        yield f"unreadable {number}" if poisonous else json.dumps({"number": number})


def produce(queue: str, per_second: float, seconds: float, poison_every: int) -> None:
    """Send for so many seconds (0: for ever) at a steady rate, and say now and then how many were acknowledged."""
    begun_s = told_s = time.monotonic()
    messages, sent = bodies(poison_every), 0
    batch = max(1, min(_BATCH, round(per_second)))
    with Client(find_target()) as client:
        for turn in count():
            due_s = turn * batch / per_second
            if seconds and due_s >= seconds:
                break
            time.sleep(max(0.0, begun_s + due_s - time.monotonic()))
            entries = [{"Id": str(at), "MessageBody": next(messages)} for at in range(batch)]
            sent += len(client.on_queue("SendMessageBatch", queue, {"Entries": entries})["Successful"])
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                say(str(sent))
    say(str(sent))


# ---- the consumer of videos

_queue = queue_named("videos")

# Windows as short as the queue's timeout: whoever is killed is missed within three seconds, however long a video takes.
videos = Consumer(
    _queue.name,
    concurrency=60,
    prefetch=0,
    renewal=Adaptive(window_min=_queue.timeout_s, window_max=_queue.timeout_s),
)


@videos.handler
async def encode(video: dict[str, int], message: Message) -> None:
    """Take as long as encoding this video would."""
    await asyncio.sleep(_queue.work_s(video["number"], message.receive_count))


if __name__ == "__main__":
    leave_with_the_demo()
    role, name, *numbers = sys.argv[1:]
    if role == "producer":
        produce(name, float(numbers[0]), float(numbers[1]), int(numbers[2]))
    else:
        try:
            asyncio.run(_work(queue_named(name)))
        except ApiError as error:
            sys.exit(f"demo worker of {name}: {error}")
