"""What a node remembers of each queue between transactions: where an index scan may start (low-water marks), and when something
next becomes due.

Messages leave the indexes of a queue at the front. PostgreSQL vacuums the dead entries, but not while any transaction is older
than they are: then every scan would read a growing number of dead entries. So a node remembers for each queue the position
before which it found nothing, and starts there. A message that becomes visible before that position (a lapsed lease, a release,
a dead letter, a higher priority) increments the queue's `returns` in the same transaction, and a node that sees a new value
starts at the front again. It also does so periodically, less often the longer it takes, to find messages that it skipped because
they were locked by a transaction that then rolled back.

A receive that looks for quiet groups starts behind the messages of noisy ones that an earlier receive has read (`NoisyRun`), for
as long as those groups are noisy and nothing comes back: otherwise every receive would read the whole backlog of a noisy group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from veil.core.message import PRIORITY_DEFAULT
from veil.core.sequence import first_seq_of
from veil.stores.postgres.transaction import NEVER, NO_RUN, LockedQueue, NoisyRun, QueueLook

# The most time between assigning order keys or deadlines and COMMIT.
SLACK_MS: Final = 2_000
FULL_EVERY_S: Final = 0.5
FULL_SHARE: Final = 20  # scans from the front may take 1/20 of the time
FULL_EVERY_MAX_S: Final = 30.0
_FRONT: Final = (0, 0)


@dataclass(slots=True)
class Watermark:
    """The low-water marks of one queue."""

    returns: int = -1  # not known yet
    scan_from: tuple[int, int] = _FRONT  # priority and seq: no visible message comes before it
    noisy_run: NoisyRun = NO_RUN
    wake_ms: int = 0  # nothing hidden wakes before it
    expiry_ms: int = 0  # no message passes its retention before it
    full_at_s: float = 0.0


# By queue: the watermark that a transaction's statements start from, and its `returns` when they were built.
ScanStarts = Mapping[int, tuple[Watermark, int]]


class Watermarks:
    """The watermarks of all queues that this node knows."""

    def __init__(self) -> None:
        self._marks: dict[int, Watermark] = {}

    def clear(self) -> None:
        """Start at the front again, after queues were edited or connections lost."""
        self._marks.clear()

    def wanted(self, ids: Sequence[int], now_ms: int) -> dict[str, list[Any]]:
        """The arguments of `look_at_queues`: where it starts. A full scan is requested when one is due."""
        now_s = time.monotonic()
        for queue_id in ids:
            mark = self._marks.get(queue_id)
            if mark is None or mark.full_at_s <= now_s:
                self._marks[queue_id] = Watermark()
        return self.as_known(ids, now_ms)

    def as_known(self, ids: Sequence[int], now_ms: int) -> dict[str, list[Any]]:
        """The same without requesting full scans."""
        front = Watermark()
        marks = [self._marks.get(queue_id, front) for queue_id in ids]
        return {
            "ids": list(ids),
            "wakes_from": [mark.wake_ms for mark in marks],
            "wants_oldest": [mark.expiry_ms <= now_ms for mark in marks],
        }

    def next_expiry_ms(self, queue_id: int) -> int | None:
        """A lower bound for the next expiry in the queue, if known."""
        mark = self._marks.get(queue_id)
        return None if mark is None or mark.returns < 0 else mark.expiry_ms

    def scan_starts(self, ids: Sequence[int]) -> ScanStarts:
        """The watermarks that statements built now, after `wanted`, start from."""
        return {queue_id: (self._marks[queue_id], self._marks[queue_id].returns) for queue_id in ids}

    def are_stale(self, looks: Sequence[QueueLook], scan_starts: ScanStarts) -> bool:
        """Whether messages came back after the statements were built, or the watermarks were cleared. Watermarks that are still
        out of date are reset to the front."""
        stale = [look for look in looks if self._is_stale(look, scan_starts)]
        for look in stale:
            mark = self._marks.get(look.queue_id)
            if mark is None or mark.returns < look.returns:
                self._marks[look.queue_id] = Watermark()
        return bool(stale)

    def _is_stale(self, look: QueueLook, scan_starts: ScanStarts) -> bool:
        _, returns = scan_starts[look.queue_id]
        return look.queue_id not in self._marks or 0 <= returns < look.returns

    def learn(self, state: LockedQueue, look: QueueLook, asked: dict[str, list[Any]], took_s: float) -> None:
        """Update the watermark from a look that was not stale."""
        mark = self._marks.setdefault(state.id, Watermark())
        at = asked["ids"].index(state.id)
        if mark.returns < 0:
            every_s = min(max(FULL_EVERY_S, took_s * FULL_SHARE), FULL_EVERY_MAX_S)
            mark.full_at_s = time.monotonic() + every_s
        if mark.returns < look.returns:
            mark.returns, mark.noisy_run = look.returns, NO_RUN
        state.noisy_run = mark.noisy_run
        if asked["wants_oldest"][at]:
            mark.expiry_ms = state.next_expiry_ms
        else:
            state.next_expiry_ms = mark.expiry_ms

    def committed(self, state: LockedQueue, now_ms: int) -> None:
        """Update the watermark after a commit."""
        mark = self._marks.get(state.id)
        if mark is None or mark.returns < 0:
            return
        mark.wake_ms = max(mark.wake_ms, min(state.next_wake_ms, now_ms) - SLACK_MS)
        mark.expiry_ms = min(mark.expiry_ms, state.next_expiry_ms)
        if state.came_back:
            mark.returns = max(
                mark.returns, state.returns + 1
            )  # another transaction may have seen it already
            mark.scan_from, mark.noisy_run = _FRONT, NO_RUN
        elif mark.returns == state.returns:
            mark.noisy_run = state.noisy_run

    def claimed(
        self, state: LockedQueue, scan_starts: ScanStarts, first: tuple[int, int] | None, now_ms: int
    ) -> None:
        """Advance the mark to the first message that a claim found, unless messages came back meanwhile."""
        mark, _ = scan_starts[state.id]
        if mark is self._marks.get(state.id) and mark.returns == state.returns and not state.came_back:
            mark.scan_from = found_from(first, now_ms)


def found_from(first: tuple[int, int] | None, now_ms: int) -> tuple[int, int]:
    """The position that nothing comes before, now and later, once a scan has found `first` there, or nothing at all."""
    # Sends in progress have slightly older keys.
    newest = (PRIORITY_DEFAULT, first_seq_of(now_ms - SLACK_MS))
    return newest if first is None else min(first, newest)


class DueTimes:
    """When something next becomes due, as far as this node knows: a lower bound for each queue.

    It is never too late for what this node has seen; a look every second adds what other nodes have done.
    """

    __slots__ = ("_by_queue",)

    def __init__(self) -> None:
        self._by_queue: dict[int, int] = {}

    def note(self, queue_id: int, due_ms: int, now_ms: int, *, looked_ahead: bool = True) -> None:
        """Note that a transaction at `now_ms` saw nothing due before `due_ms`, as far as it looked."""
        present_ms = self._by_queue.get(queue_id, NEVER)
        # A later instant may have been noted by another transaction that this one could not see.
        due_ms = due_ms if looked_ahead and present_ms <= now_ms else min(due_ms, present_ms)
        if due_ms < NEVER:
            self._by_queue[queue_id] = due_ms
        else:
            self._by_queue.pop(queue_id, None)

    def has_passed(self, queue_id: int, now_ms: int) -> bool:
        """Whether the known instant has passed, so that the next one must be searched for."""
        return self._by_queue.get(queue_id, NEVER) <= now_ms

    def forget(self, queue_id: int) -> None:
        """Forget a deleted queue."""
        self._by_queue.pop(queue_id, None)

    def next_ms(self) -> int | None:
        """The earliest instant over all queues."""
        return min(self._by_queue.values(), default=None)

    def due_by(self, now_ms: int) -> list[int]:
        """The queues that may have something due."""
        return [queue_id for queue_id, due_ms in self._by_queue.items() if due_ms <= now_ms]
