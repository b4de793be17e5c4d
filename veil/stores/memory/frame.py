"""The frame around every operation: settle first, tell afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from veil.core.clock import Clock
from veil.stores.memory import settling
from veil.stores.memory.operation import Operation
from veil.stores.memory.outbox import MemoryOutbox
from veil.stores.memory.shelves import Shelves
from veil.stores.store import StoreEvents


class Frame:
    """Makes an operation of what is done within it."""

    def __init__(self, shelves: Shelves, clock: Clock, outbox: MemoryOutbox | None) -> None:
        self._shelves, self._clock, self._outbox = shelves, clock, outbox
        self._receivable: set[tuple[int, int]] = set()  # as the last operation left it

    @contextmanager
    def operation(self, events: StoreEvents) -> Iterator[Operation]:
        """Settle, let the caller work, then tell the owner what came of both, also when the work raises."""
        outbox, clock = self._outbox, self._clock
        recorder = None if outbox is None else outbox.recorder
        op = Operation(self._shelves, clock.now_ms(), clock.wall_ms(), recorder)
        settling.settle(op)
        try:
            yield op
        finally:
            if outbox is not None:
                outbox.write(op.now_ms)
            before, self._receivable = self._receivable, self._shelves.receivable()
            available = Counter(queue_id for queue_id, _ in self._receivable - before)
            for queue_id, count in available.items():
                events.messages_available(queue_id, count)
            for (event, queue_id), count in op.happened.items():
                events.counted(event, queue_id, count)
