"""When something next becomes due, as far as this node knows: a lower bound for each queue."""

from __future__ import annotations

from veil.stores.postgres.queue_state import NEVER


class Dues:
    """Never later than the truth for what this node has seen; the look every second brings what others have done."""

    __slots__ = ("_by_queue",)

    def __init__(self) -> None:
        self._by_queue: dict[int, int] = {}

    def note(self, queue_id: int, due_ms: int, now_ms: int, *, looked_ahead: bool = True) -> None:
        """A transaction at `now_ms` saw that nothing of the queue is due before `due_ms`, as far as it looked."""
        present_ms = self._by_queue.get(queue_id, NEVER)
        # What lies ahead of that transaction may have been noted by another one that it could not see.
        due_ms = due_ms if looked_ahead and present_ms <= now_ms else min(due_ms, present_ms)
        if due_ms < NEVER:
            self._by_queue[queue_id] = due_ms
        else:
            self._by_queue.pop(queue_id, None)

    def has_passed(self, queue_id: int, now_ms: int) -> bool:
        """Whether the instant that is known for the queue is over, so that the next one has to be looked for."""
        return self._by_queue.get(queue_id, NEVER) <= now_ms

    def forget(self, queue_id: int) -> None:
        """The queue is gone."""
        self._by_queue.pop(queue_id, None)

    def next_ms(self) -> int | None:
        """The earliest of all."""
        return min(self._by_queue.values(), default=None)

    def due_by(self, now_ms: int) -> list[int]:
        """The queues that may have something due."""
        return [queue_id for queue_id, due_ms in self._by_queue.items() if due_ms <= now_ms]
