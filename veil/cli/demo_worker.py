"""A worker of the demo as one finds it everywhere: receive, work, delete. It renews nothing, so the queue's timeout must do."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Final

from veil.cli.demo_child import leave_with_the_demo
from veil.cli.demo_queues import DemoQueue, queue_named
from veil.cli.output import say
from veil.consumer.message import ApiError, RawMessage
from veil.consumer.sqs.client import SqsClient

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


async def _main(queue: DemoQueue) -> None:
    api = SqsClient(user_agent_extra="demo-worker")
    working = asyncio.create_task(Worker(queue, api).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        await working
    finally:
        await api.close()


if __name__ == "__main__":
    leave_with_the_demo()
    try:
        asyncio.run(_main(queue_named(sys.argv[1])))
    except ApiError as error:
        sys.exit(f"demo worker of {sys.argv[1]}: {error}")
