"""Where a look at a queue may begin, so that it does not go through all that was there before.

The indexes of a queue are used up from their front. PostgreSQL clears away what was used up, but not while a transaction
anywhere is older than it: then every look would go through a heap of dead entries that grows by the second. So a node
remembers, for each queue, below which place it saw nothing, and begins there. What becomes visible below that place (a
lease that lapsed, a release, a dead letter, a message of higher priority) raises the queue's `returns` in the same
transaction, and whoever sees another number than it knows begins at the front again. So it does from time to time anyway, the
less often the longer that takes: for what was skipped because another transaction held it, which was then undone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from veil.core.priority import PRIORITY_DEFAULT
from veil.core.sequence import first_seq_of
from veil.stores.postgres.queue_state import QueueState

# Transactions take that long at most between their order keys, or their deadlines, and COMMIT.
SLACK_MS: Final = 2_000
FULL_EVERY_S: Final = 0.5
FULL_SHARE: Final = 20  # a look from the front may take one part in so many of the time
FULL_EVERY_MAX_S: Final = 30.0
_FRONT: Final = (0, 0)


@dataclass(slots=True)
class Floor:
    """What is known of one queue."""

    returns: int = -1  # nothing is known
    place: tuple[int, int] = _FRONT  # priority and seq: nothing visible stands before it
    wake_ms: int = 0  # nothing hidden wakes before it
    expiry_ms: int = 0  # no message passes its retention before it
    full_at_s: float = 0.0


class Floors:
    """The floors of a node."""

    def __init__(self) -> None:
        self._floors: dict[int, Floor] = {}

    def clear(self) -> None:
        """Queues were edited, or connections lost: begin at the front."""
        self._floors.clear()

    def place(self, queue_id: int) -> tuple[int, int]:
        """Where a claim begins."""
        floor = self._floors.get(queue_id)
        return _FRONT if floor is None else floor.place

    def wanted(self, ids: Sequence[int], now_ms: int) -> dict[str, list[Any]]:
        """From where `look_at_queues` begins."""
        now_s = time.monotonic()
        for queue_id in ids:
            floor = self._floors.get(queue_id)
            if floor is None or floor.full_at_s <= now_s:
                self._floors[queue_id] = Floor()
        return self.as_known(ids, now_ms)

    def as_known(self, ids: Sequence[int], now_ms: int) -> dict[str, list[Any]]:
        """The same for one who only passes by."""
        front = Floor()
        floors = [self._floors.get(queue_id, front) for queue_id in ids]
        return {
            "ids": list(ids),
            "wake_floors": [floor.wake_ms for floor in floors],
            "wants_oldest": [floor.expiry_ms <= now_ms for floor in floors],
        }

    def next_expiry_ms(self, queue_id: int) -> int | None:
        """Before which no message of the queue passes its retention, if that is known."""
        floor = self._floors.get(queue_id)
        return None if floor is None or floor.returns < 0 else floor.expiry_ms

    def are_stale(self, looks: Sequence[Any]) -> bool:
        """Whether something came back that this node did not know of; then everything begins at the front."""
        stale = [look[0] for look in looks if self._is_stale(look[0], look[7])]
        for queue_id in stale:
            self._floors[queue_id] = Floor()
        return bool(stale)

    def _is_stale(self, queue_id: int, returns: int) -> bool:
        floor = self._floors.get(queue_id)
        return floor is None or (floor.returns >= 0 and returns > floor.returns)

    def learn(self, state: QueueState, look: Any, asked: dict[str, list[Any]], took_s: float) -> None:
        """Take in a look that was up to date."""
        floor = self._floors.setdefault(state.id, Floor())
        at = asked["ids"].index(state.id)
        if floor.returns < 0:
            every_s = min(max(FULL_EVERY_S, took_s * FULL_SHARE), FULL_EVERY_MAX_S)
            floor.full_at_s = time.monotonic() + every_s
        floor.returns = max(floor.returns, look[7])
        if asked["wants_oldest"][at]:
            floor.expiry_ms = state.next_expiry_ms
        else:
            state.next_expiry_ms = floor.expiry_ms

    def committed(self, state: QueueState, now_ms: int) -> None:
        """What a transaction left behind."""
        floor = self._floors.get(state.id)
        if floor is None or floor.returns < 0:
            return
        floor.wake_ms = max(floor.wake_ms, min(state.next_wake_ms, now_ms) - SLACK_MS)
        floor.expiry_ms = min(floor.expiry_ms, state.next_expiry_ms)
        if state.came_back:
            floor.returns += 1
            floor.place = _FRONT

    def claimed(self, queue_id: int, first: tuple[int, int] | None, now_ms: int) -> None:
        """A claim from the floor found this as the first, or nothing."""
        floor = self._floors.get(queue_id)
        if floor is not None and floor.returns >= 0:
            # Sends that are under way have keys of a moment ago.
            newest = (PRIORITY_DEFAULT, first_seq_of(now_ms - SLACK_MS))
            floor.place = newest if first is None else min(first, newest)
