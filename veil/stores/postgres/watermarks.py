"""What a node remembers of each queue between transactions: where a look may begin (its low-water marks), and when something
next becomes due.

The indexes of a queue are used up from their front. PostgreSQL clears away what was used up, but not while a transaction
anywhere is older than it: then every look would go through a heap of dead entries that grows by the second. So a node
remembers, for each queue, below which place it saw nothing, and begins there. What becomes visible below that place (a
lease that lapsed, a release, a dead letter, a message of higher priority) raises the queue's `returns` in the same
transaction, and whoever sees another number than it knows begins at the front again. So it does from time to time anyway, the
less often the longer that takes: for what was skipped because another transaction held it, which was then undone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from veil.core.message import PRIORITY_DEFAULT
from veil.core.sequence import first_seq_of
from veil.stores.postgres.transaction import NEVER, LockedQueue, QueueLook

# Transactions take that long at most between their order keys, or their deadlines, and COMMIT.
SLACK_MS: Final = 2_000
FULL_EVERY_S: Final = 0.5
FULL_SHARE: Final = 20  # a look from the front may take one part in so many of the time
FULL_EVERY_MAX_S: Final = 30.0
_FRONT: Final = (0, 0)


@dataclass(slots=True)
class Watermark:
    """What is known of one queue."""

    returns: int = -1  # nothing is known
    scan_from: tuple[int, int] = _FRONT  # priority and seq: nothing visible stands before it
    wake_ms: int = 0  # nothing hidden wakes before it
    expiry_ms: int = 0  # no message passes its retention before it
    full_at_s: float = 0.0


# By queue, the watermark that a transaction's statements were made with, and its `returns` at that moment.
SetOutFrom = Mapping[int, tuple[Watermark, int]]


class Watermarks:
    """The watermarks of a node."""

    def __init__(self) -> None:
        self._marks: dict[int, Watermark] = {}

    def clear(self) -> None:
        """Queues were edited, or connections lost: begin at the front."""
        self._marks.clear()

    def scan_from(self, queue_id: int) -> tuple[int, int]:
        """Where a claim begins."""
        mark = self._marks.get(queue_id)
        return _FRONT if mark is None else mark.scan_from

    def wanted(self, ids: Sequence[int], now_ms: int) -> dict[str, list[Any]]:
        """From where `look_at_queues` begins."""
        now_s = time.monotonic()
        for queue_id in ids:
            mark = self._marks.get(queue_id)
            if mark is None or mark.full_at_s <= now_s:
                self._marks[queue_id] = Watermark()
        return self.as_known(ids, now_ms)

    def as_known(self, ids: Sequence[int], now_ms: int) -> dict[str, list[Any]]:
        """The same for one who only passes by."""
        front = Watermark()
        marks = [self._marks.get(queue_id, front) for queue_id in ids]
        return {
            "ids": list(ids),
            "wakes_from": [mark.wake_ms for mark in marks],
            "wants_oldest": [mark.expiry_ms <= now_ms for mark in marks],
        }

    def next_expiry_ms(self, queue_id: int) -> int | None:
        """Before which no message of the queue passes its retention, if that is known."""
        mark = self._marks.get(queue_id)
        return None if mark is None or mark.returns < 0 else mark.expiry_ms

    def set_out_from(self, ids: Sequence[int]) -> SetOutFrom:
        """What statements that are made now, after `wanted`, are based on."""
        return {queue_id: (self._marks[queue_id], self._marks[queue_id].returns) for queue_id in ids}

    def are_stale(self, looks: Sequence[QueueLook], from_marks: SetOutFrom) -> bool:
        """Whether something came back that was not known when their statements were made, or all that was known is forgotten.
        Where it is not known by now either, everything begins at the front."""
        stale = [look for look in looks if self._is_stale(look, from_marks)]
        for look in stale:
            mark = self._marks.get(look.queue_id)
            if mark is None or mark.returns < look.returns:
                self._marks[look.queue_id] = Watermark()
        return bool(stale)

    def _is_stale(self, look: QueueLook, from_marks: SetOutFrom) -> bool:
        _, returns = from_marks[look.queue_id]
        return look.queue_id not in self._marks or 0 <= returns < look.returns

    def learn(self, state: LockedQueue, look: QueueLook, asked: dict[str, list[Any]], took_s: float) -> None:
        """Take in a look that was up to date."""
        mark = self._marks.setdefault(state.id, Watermark())
        at = asked["ids"].index(state.id)
        if mark.returns < 0:
            every_s = min(max(FULL_EVERY_S, took_s * FULL_SHARE), FULL_EVERY_MAX_S)
            mark.full_at_s = time.monotonic() + every_s
        mark.returns = max(mark.returns, look.returns)
        if asked["wants_oldest"][at]:
            mark.expiry_ms = state.next_expiry_ms
        else:
            state.next_expiry_ms = mark.expiry_ms

    def committed(self, state: LockedQueue, now_ms: int) -> None:
        """What a transaction left behind."""
        mark = self._marks.get(state.id)
        if mark is None or mark.returns < 0:
            return
        mark.wake_ms = max(mark.wake_ms, min(state.next_wake_ms, now_ms) - SLACK_MS)
        mark.expiry_ms = min(mark.expiry_ms, state.next_expiry_ms)
        if state.came_back:
            mark.returns = max(mark.returns, state.returns + 1)  # another look may have seen it already
            mark.scan_from = _FRONT

    def claimed(
        self, state: LockedQueue, from_marks: SetOutFrom, first: tuple[int, int] | None, now_ms: int
    ) -> None:
        """A claim from the mark on found this as the first, or nothing; of no use where something has come back since."""
        mark, _ = from_marks[state.id]
        if mark is self._marks.get(state.id) and mark.returns == state.returns and not state.came_back:
            # Sends that are under way have keys of a moment ago.
            newest = (PRIORITY_DEFAULT, first_seq_of(now_ms - SLACK_MS))
            mark.scan_from = newest if first is None else min(first, newest)


class Dues:
    """When something next becomes due, as far as this node knows: a lower bound for each queue.

    Never later than the truth for what this node has seen; the look every second brings what others have done.
    """

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
