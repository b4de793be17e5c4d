"""How much of what happens: the counters of every queue, and the second's beat in which others read them.

Adding to a counter costs next to nothing; everything that can wait is done when somebody looks, or once a second. Who does it is
told by `attempts`, when it was by `history`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from veil.core.clock import Clock, Timer, Trouble
from veil.service.attempts import LiveAttempts
from veil.service.history import QueueHistory

# ---- counters


class Tallies(defaultdict[tuple[str, int], int]):
    """Counters by event and queue id; `tallies["sent", queue_id] += 1` costs next to nothing.

    The service counts `sent`, `received`, `empty_receive`, `deleted`, `extended`, `released`, `undone`, `purged`, and the
    outcomes of attempts (`core.attempt.Outcome`) as they are judged; the store, through `counted`, what only it sees: `lapsed`,
    `dead_lettered`, `arrived`, `expired`, `stale_receipt`, `duplicate`, `repeated_send`. What stands in the dictionary itself is
    what is new since `take_fresh`; `of` and `totals` tell of all.
    """

    def __init__(self) -> None:
        super().__init__(int)
        self._taken: defaultdict[tuple[str, int], int] = defaultdict(int)

    def take_fresh(self) -> Mapping[tuple[str, int], int]:
        """What was counted since this was last asked."""
        fresh = dict(self)
        self.clear()
        for key, count in fresh.items():
            self._taken[key] += count
        return fresh

    def of(self, event: str, queue_id: int) -> int:
        key = (event, queue_id)
        return self._taken.get(key, 0) + self.get(key, 0)

    def totals(self) -> list[tuple[str, int, int]]:
        """Every counter as event, queue id and count since the server started."""
        return [(*key, self._taken.get(key, 0) + self.get(key, 0)) for key in self._taken | self]

    def forget(self, queue_id: int) -> None:
        for counts in (self._taken, self):
            for key in [key for key in counts if key[1] == queue_id]:
                del counts[key]


TICK_MS: Final = 1_000


class Activity:
    """Who works on what (`attempts`), and how queues fared (`history`, where somebody may look); all of it bounded."""

    def __init__(
        self,
        clock: Clock,
        tallies: Tallies,
        history: QueueHistory | None = None,
        each_second: Callable[[], None] = lambda: None,
        trouble_at: Callable[[int], Trouble | None] = lambda now_ms: None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._clock = clock
        self._tallies = tallies
        self._each_second = each_second
        self.history = history
        handled = None if history is None else history.handled
        self.attempts = LiveAttempts(clock, tallies, handled, trouble_at, is_shared=is_shared)
        self._timer: Timer | None = None

    def forget(self, queue_id: int) -> None:
        self.attempts.emptied(queue_id)
        if self.history is not None:
            self.history.forget(queue_id)

    # ---- once a second

    async def start(self) -> None:
        """Note from now on how much happens when; what was kept before is known again."""
        if self.history is not None:
            await self.history.start()
        self._wait()

    async def stop(self) -> None:
        """Note what happened last, and no more."""
        self.tick()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.history is not None:
            await self.history.stop()

    def tick(self) -> None:
        fresh = self._tallies.take_fresh()
        if self.history is not None:
            self.history.count(fresh)

    def _wait(self) -> None:
        self._timer = self._clock.call_at(self._clock.now_ms() + TICK_MS, self._again)

    def _again(self) -> None:
        self.tick()
        self._each_second()
        if self.history is not None:
            self.history.tick()
        self._wait()
