"""Where long polls wait: in line, one message waking one receiver, and no wake-up ever lost.

Each queue that somebody polls has its waiters. A receiver enters before its first look at the store and leaves
with its answer; in between it looks, and while there is nothing it is idle in the line. When messages
become available, as many idle receivers as messages are woken, the longest waiting first, and each looks
once more. Why that is enough:

* A message that arrives while a receiver is looking, and before it waits, would be missed by both. So
  an arrival that finds nobody idle raises `missed`, and a receiver that saw it rise during its look looks
  again instead.
* A woken receiver owes a look. If it cannot have one (cancelled, or the store failed), it hands the wake-up
  on.
* A woken receiver that finds nothing was overtaken by somebody who took the message; it waits at the
  front again.

So at every instant each receivable message is either owed a look, or nobody is idle. Waking all of them
instead would also be right, and would cost a thousand vain looks for each message sent to a queue with a
thousand receivers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from veil.core.clock import Clock
from veil.core.errors import QueueMissing
from veil.core.queue import Queue


class QueueWaiters:
    __slots__ = ("clock", "closed", "idle", "missed", "present")

    def __init__(self, clock: Clock, *, closed: bool) -> None:
        self.clock = clock
        self.closed = closed
        self.idle: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        self.present = 0
        self.missed = 0  # arrivals that found nobody idle

    def wake(self, count: int) -> None:
        while count > 0 and self.idle:
            waiter, _ = self.idle.popitem(last=False)
            if not waiter.done():  # a cancelled one has not yet run to take itself out of the line
                waiter.set_result(True)
                count -= 1
        if count > 0:
            self.missed += 1

    def end(self, how: Callable[[asyncio.Future[bool]], None]) -> None:
        while self.idle:
            waiter, _ = self.idle.popitem(last=False)
            if not waiter.done():
                how(waiter)

    async def wait(self, until_ms: int, *, at_front: bool) -> bool:
        """Be idle until woken (True: the caller owes a look at the store) or until time is up (False)."""
        if self.closed:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.idle[waiter] = None
        if at_front:
            self.idle.move_to_end(waiter, last=False)
        timer = self.clock.call_at(until_ms, lambda: None if waiter.done() else waiter.set_result(False))
        try:
            return await waiter
        except asyncio.CancelledError:
            # Woken and cancelled in the same turn: the message that woke it is still there, and others may
            # be idle.
            if not waiter.cancelled() and waiter.exception() is None and waiter.result():
                self.wake(1)
            raise
        finally:
            timer.cancel()
            self.idle.pop(waiter, None)


class WaitingReceives:
    """The waiters of all queues; a queue that nobody polls has none."""

    __slots__ = ("_clock", "_closed", "_waiters")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[int, QueueWaiters] = {}
        self._closed = False

    def enter(self, queue_id: int) -> QueueWaiters:
        """The queue's waiters, with one more receiver among them; each one that enters must leave."""
        waiters = self._waiters.get(queue_id)
        if waiters is None:
            waiters = self._waiters[queue_id] = QueueWaiters(self._clock, closed=self._closed)
        waiters.present += 1
        return waiters

    def leave(self, queue_id: int, waiters: QueueWaiters) -> None:
        waiters.present -= 1
        if waiters.present == 0 and self._waiters.get(queue_id) is waiters:
            del self._waiters[queue_id]

    def messages_available(self, queue_id: int, count: int) -> None:
        """So many messages may have become receivable: wake as many receivers."""
        waiters = self._waiters.get(queue_id)
        if waiters is not None:
            waiters.wake(count)

    def queue_deleted(self, queue: Queue) -> None:
        """End every wait on the queue with QueueMissing."""
        waiters = self._waiters.get(queue.id)
        if waiters is None:
            return
        waiters.missed += 1  # those who are looking look again, and the store tells them
        waiters.end(lambda waiter: waiter.set_exception(QueueMissing(queue.name)))

    def waiting(self, queue_id: int) -> int:
        waiters = self._waiters.get(queue_id)
        return 0 if waiters is None else len(waiters.idle)

    def close(self) -> None:
        """End every wait, now and from now on, as if its time were up."""
        self._closed = True
        for waiters in self._waiters.values():
            waiters.closed = True
            waiters.end(lambda waiter: waiter.set_result(False))
