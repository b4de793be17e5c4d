"""How many messages queues hold, looked up at most once a second for everybody who looks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from veil.console.turns import Turn, Turns
from veil.core.errors import VeilError
from veil.core.queue import Queue, QueueCounts
from veil.service.service import Service

FRESH_MS: Final = 900
# Sums over all queues are for sorting and hiding: they may be a little older.
_ALL_FRESH_MS: Final = 5_000
_LOOKS_AT_ONCE: Final = 64
_KEPT_MAX: Final = 20_000
_MADE_MAX: Final = 50

T = TypeVar("T")


class Look(NamedTuple):
    """One queue as it was a moment ago."""

    counts: QueueCounts
    oldest_sent_ms: int | None  # engine time; None: nothing is visible, or nobody asked
    at_ms: int

    @property
    def total(self) -> int:
        return sum(self.counts)


class QueueLooks:
    """Looks at queues, and remembers for a moment what it saw."""

    def __init__(self, service: Service, turns: Turns) -> None:
        self._service, self._turns = service, turns
        self._kept: dict[tuple[int, bool], Look] = {}
        self._made: dict[Hashable, tuple[int, object]] = {}
        self._looking = asyncio.Lock()

    async def at(self, queues: Sequence[Queue], *, with_oldest: bool = True) -> dict[int, Look]:
        """A look at each of the queues, by id; those deleted meanwhile are left out."""
        fresh_ms = FRESH_MS if with_oldest else _ALL_FRESH_MS
        async with self._looking:
            now_ms = self._service.clock.now_ms()
            stale = [
                queue for queue in queues if not self._is_fresh((queue.id, with_oldest), now_ms - fresh_ms)
            ]
            if len(self._kept) + len(stale) > _KEPT_MAX:
                self._kept.clear()
                stale = list(queues)
            # Side by side for a store that has to be asked, one after the other within each share: most stores know
            # the counts at once, and then a task for each of ten thousand queues would cost more than the looks.
            shares = [stale[first::_LOOKS_AT_ONCE] for first in range(min(len(stale), _LOOKS_AT_ONCE))]
            turn = Turn(self._turns)
            await asyncio.gather(*(self._look_at(share, with_oldest, now_ms, turn) for share in shares))
        return {
            queue.id: self._kept[queue.id, with_oldest]
            for queue in queues
            if (queue.id, with_oldest) in self._kept
        }

    async def kept(self, key: Hashable, make: Callable[[], Awaitable[T]], age_ms_max: int) -> T:
        """What `make` gives, or gave under that key no longer ago than that."""
        now_ms = self._service.clock.now_ms()
        made = self._made.get(key)
        if made is not None and now_ms - made[0] < age_ms_max:
            return cast(T, made[1])
        fresh = await make()
        if len(self._made) >= _MADE_MAX:
            self._made.clear()
        self._made[key] = (now_ms, fresh)
        return fresh

    def _is_fresh(self, key: tuple[int, bool], since_ms: int) -> bool:
        kept = self._kept.get(key)
        return kept is not None and kept.at_ms > since_ms

    async def _look_at(self, queues: Sequence[Queue], with_oldest: bool, now_ms: int, turn: Turn) -> None:
        for queue in queues:
            await self._look(queue, with_oldest, now_ms)
            await turn.pause()

    async def _look(self, queue: Queue, with_oldest: bool, now_ms: int) -> None:
        store = self._service.store
        try:
            counts = await store.counts(queue)
            oldest_ms = await store.oldest_sent_ms(queue) if with_oldest and counts.visible else None
        except VeilError:  # deleted since it was listed; where the store has failed, the page says so
            self._kept.pop((queue.id, with_oldest), None)
            return
        self._kept[queue.id, with_oldest] = Look(counts, oldest_ms, now_ms)
