"""Time is handed in: the two readings every layer may take, the time that counts for leases, and the clock that tests own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from veil.core.limits import SECOND_MS


class ClockMark(NamedTuple):
    """One reading of every clock, kept with the data so that engine time can go on after a restart."""

    engine_ms: int
    wall_ms: int
    boot_ms: int  # time since boot, suspend included
    boot_id: str


def resumed_engine_ms(saved: ClockMark, present: ClockMark) -> int:
    """Engine time at the present readings, going on from a saved mark; `present.engine_ms` is not looked at.

    Within one boot the time since boot says exactly how long the server was away, whatever happened to the wall clock.
    After a reboot only the wall clock can tell; if it lies behind the mark, time goes on from the mark: windows then
    last longer than promised, never shorter.
    """
    if present.boot_id == saved.boot_id and present.boot_ms >= saved.boot_ms:
        return saved.engine_ms + present.boot_ms - saved.boot_ms
    return saved.engine_ms + max(0, present.wall_ms - saved.wall_ms)


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has already run."""


class Clock(Protocol):
    """Engine time runs every deadline and never steps; wall time is only shown to people and checked in signatures."""

    def now_ms(self) -> int:
        """Engine time: monotone over restarts, moved by nothing but elapsed time."""

    def wall_ms(self) -> int:
        """Wall time, UTC, milliseconds since 1970; may step."""

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        """Run the call once engine time has reached `due_ms`; never in the middle of the caller."""

    def mark(self) -> ClockMark:
        """All readings now, for `resume` after a restart."""

    def resume(self, saved: ClockMark) -> None:
        """Go on from a mark that was kept with the data; called once, before any reading is used."""


# ---- the time that counts for leases
#
# A lease lapses because its holder did not renew it, so only time in which the holder could have done so counts. While Veil
# cannot take renewals no lease lapses; afterwards each that was open has a grace. Delays, retention and deduplication know
# nothing of this: they go by engine time.

TROUBLE_MIN_MS: Final = 500  # shorter waits are everyday life
# A wait that has lasted this long may become trouble, and what came before a deadline may be waiting too: no lease lapses before
# all that waited has had its turn.
DOUBT_MIN_MS: Final = 50
LET_IN_MS: Final = 250  # in which it has
GRACE_MIN_MS: Final = 2 * SECOND_MS
GRACE_MAX_MS: Final = 60 * SECOND_MS
# By then whatever was due at the end of a trouble has its grace written down.
_GRANTED_MS: Final = 2 * SECOND_MS
# Troubles that follow one another within a grace grant new ones to a lease until it has lasted this long and as much healthy time
# lies between them: in a night of stalls the messages of a holder that died do come back.
_HEALTHY_MAX_MS: Final = 300 * SECOND_MS
_BEAT_MS: Final = 250


class TroubleKind(StrEnum):
    """What kept Veil from taking renewals."""

    DISK = "disk"  # a sync took long
    PAUSED = "paused"  # the process was stopped, or did not get the processor
    RESTART = "restart"  # planned or not
    DATABASE = "database"  # it was away, failed over or did not answer; or every node was away
    NODE = "node"  # one node of several died, or could not reach the database


class Trouble(NamedTuple):
    """A time in which Veil could not take renewals, up to now if it goes on."""

    from_ms: int
    to_ms: int
    kind: str
    healthy_ms: int = 0  # since the first of several that follow one another closely
    gap_ms: int = GRACE_MAX_MS  # of it, since the one before

    @property
    def length_s(self) -> float:
        """How long it lasted."""
        return (self.to_ms - self.from_ms) / SECOND_MS

    @property
    def told(self) -> str:
        """The trouble as the log tells it."""
        return f"renewals could not be taken for {self.length_s:.1f} s ({self.kind}): every lease that was open has a grace"

    def after(self, earlier: Trouble | None) -> Trouble:
        """This one, as it counts after an earlier one."""
        if earlier is None or self.from_ms - earlier.to_ms >= GRACE_MAX_MS:
            return self
        gap_ms = max(0, self.from_ms - earlier.to_ms)
        goes_on = gap_ms < _GRANTED_MS
        return Trouble(
            min(earlier.from_ms, self.from_ms) if goes_on else self.from_ms,
            max(self.to_ms, earlier.to_ms),
            self.kind,
            earlier.healthy_ms + gap_ms,
            earlier.gap_ms if goes_on else gap_ms,
        )

    def deadline_ms(self, deadline_ms: int, received_at_ms: int, visibility_s: int) -> int:
        """When a lease of a queue with that visibility timeout lapses, which without the trouble would lapse at
        `deadline_ms`. To ask again with the answer changes nothing."""
        if deadline_ms <= self.from_ms or received_at_ms >= self.to_ms:
            return deadline_ms  # it had lapsed before, or was opened afterwards
        length_ms = grace_ms(visibility_s)
        # Whoever has lived through a gap as long as the grace has renewed meanwhile: what the one before excused has lapsed.
        if (
            self.healthy_ms > _HEALTHY_MAX_MS
            and self.gap_ms < length_ms
            and self.to_ms - received_at_ms > _HEALTHY_MAX_MS
        ):
            if deadline_ms > self.to_ms:
                return deadline_ms
            length_ms = min(length_ms, deadline_ms - self.from_ms)  # what was left of it
        return max(deadline_ms, self.to_ms + length_ms)

    def may_have_moved(self, deadline_ms: int, moved_ms: int, visibility_s: int, now_ms: int) -> bool:
        """Whether a deadline can have become that other one by a grace, which is written down once the first has passed."""
        return self.from_ms < deadline_ms <= now_ms and deadline_ms < moved_ms <= self.to_ms + grace_ms(
            visibility_s
        )


def grace_ms(visibility_s: int) -> int:
    """How long after a trouble a lease stays open at least: half of its queue's visibility timeout, 2 to 60 seconds."""
    return min(max(visibility_s * SECOND_MS // 2, GRACE_MIN_MS), GRACE_MAX_MS)


_FAILURE: Final = object()  # who waits where nobody is left to wait: what failed will be asked for again


class Wait(NamedTuple):
    """Something that renewals wait for."""

    kind: TroubleKind
    since_ms: int
    from_ms: int  # when the last was taken that is known of: who came after it may have waited elsewhere


class LeaseTime:
    """Notices by the clock when Veil could not take renewals, and knows the trouble that leases are excused by.

    Whoever runs the process calls `beat` again and again; a store tells when it begins to wait for something that renewals
    have to wait for, and when it has it.
    """

    def __init__(self, clock: Clock, *, is_on: bool = True) -> None:
        self._clock, self.is_on = clock, is_on
        self._trouble: Trouble | None = None
        self._beat_ms: int | None = None  # when the process was last seen to run
        self._starved_ms: int | None = None  # since when it does not do so as often as it should
        self._waits: dict[object, Wait] = {}  # by whoever waits; the oldest comes first
        self._short_wait: Trouble | None = None  # the latest that was too short to be one
        self._timer: Timer | None = None
        # Asked instead where that is cheaper than to be told before every sync: the kind, and since when.
        self.wait_under_way: Callable[[], tuple[TroubleKind, int] | None] = lambda: None
        self.on_trouble: Callable[[Trouble], None] = lambda trouble: None  # called when one is over

    # ---- what happens

    def start(self) -> None:
        """The process takes requests from now on; what was begun as a restart is over."""
        if self.is_on:
            self.answered(self)
            self._beat_ms = self._clock.now_ms()
            self._beat()

    def stop(self) -> None:
        """The process takes no more requests: nothing lapses until it has ended, or starts again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._beat_ms is not None:
            self._look(self._clock.now_ms(), is_over=True)
            self.waits(self, TroubleKind.RESTART)
        self._timer = self._beat_ms = None

    @property
    def is_serving(self) -> bool:
        """Whether it notices trouble, and requests are taken."""
        return self._beat_ms is not None

    def _beat(self) -> None:
        """Notice whether the process runs: one that is starved is late again and again, though never for long."""
        now_ms = self._clock.now_ms()
        self._look(now_ms, is_over=True)
        self._beat_ms = now_ms
        self._timer = self._clock.call_at(now_ms + _BEAT_MS, self._beat)

    def resume(self, trouble: Trouble | None, last_ms: int) -> None:
        """Go on after a restart: with the trouble that was kept, and the last instant at which the server was seen to run."""
        if self.is_on:
            was_stopping = trouble is not None and trouble.kind == TroubleKind.RESTART
            if trouble is not None and was_stopping and trouble.to_ms + TROUBLE_MIN_MS >= last_ms:
                last_ms = trouble.from_ms  # it took some time to
            self._trouble = trouble
            self._waits[self] = Wait(TroubleKind.RESTART, last_ms, last_ms)

    def waits(self, who: object, kind: TroubleKind, taken_ms: int | None = None) -> None:
        """Renewals wait from now on, until `answered`; the last was taken at that instant, or just now."""
        if self.is_on:
            now_ms = self._clock.now_ms()
            self._waits[who] = Wait(kind, now_ms, now_ms if taken_ms is None else min(taken_ms, now_ms))

    def answered(self, who: object) -> None:
        """They wait no longer."""
        if (wait := self._waits.pop(who, None)) is not None:
            self.waited(wait.kind, wait.since_ms, self._clock.now_ms(), wait.from_ms)

    def failed(self, who: object) -> None:
        """What was waited for was not done, however soon that was told: renewals wait on, until something is `done`."""
        if (wait := self._waits.pop(who, None)) is not None:
            self._waits.setdefault(_FAILURE, wait)

    def done(self) -> None:
        """What had failed works again."""
        self.answered(_FAILURE)

    @contextmanager
    def waiting(self, kind: TroubleKind, taken_ms: int) -> Iterator[None]:
        """Renewals wait meanwhile; where it fails they wait on."""
        who = object()
        self.waits(who, kind, taken_ms)
        try:
            yield
        except BaseException:
            self.failed(who)
            raise
        self.answered(who)

    def waited(self, kind: TroubleKind, since_ms: int, now_ms: int, from_ms: int | None = None) -> None:
        """Renewals waited since then until now: a trouble, if that was long; of everybody who came after `from_ms`."""
        if not self.is_on or now_ms - since_ms <= DOUBT_MIN_MS:
            return
        wait = Trouble(since_ms if from_ms is None else from_ms, now_ms, kind)
        if now_ms - since_ms > TROUBLE_MIN_MS:
            self.note(wait)
        else:
            self._short_wait = wait

    def note(self, trouble: Trouble) -> None:
        """A trouble is over."""
        self._trouble = trouble.after(self._trouble)
        self.on_trouble(trouble)

    def learn(self, trouble: Trouble) -> None:
        """A trouble, as it counts, that others have noted; it may have begun before what was noticed of it here."""
        known = self._trouble
        if known is None or trouble.from_ms > known.to_ms + _GRANTED_MS:
            self._trouble = trouble
        elif known.from_ms <= trouble.to_ms + _GRANTED_MS:
            later = max(known, trouble, key=lambda each: each.to_ms)
            self._trouble = later._replace(
                from_ms=min(known.from_ms, trouble.from_ms),
                healthy_ms=max(known.healthy_ms, trouble.healthy_ms),
                gap_ms=min(known.gap_ms, trouble.gap_ms),
            )

    # ---- what counts

    @property
    def last(self) -> Trouble | None:
        """The latest trouble, as it counts; it is to be kept with the data."""
        return self._trouble

    def trouble_at(self, now_ms: int) -> Trouble | None:
        """The trouble that a lapse at that instant has to reckon with; asked whenever a lease is about to lapse."""
        if not self.is_on:
            return None
        wait = self.under_way(now_ms)
        return self._trouble if wait is None else wait.after(self._trouble)

    def under_way(self, now_ms: int) -> Trouble | None:
        """The trouble that goes on at that instant, up to then."""
        if not self.is_on:
            return None
        self._look(now_ms)
        return self._wait_longer_than(TROUBLE_MIN_MS, now_ms)

    def is_in_doubt(self, deadline_ms: int, now_ms: int) -> bool:
        """Whether a request that came before the deadline may not have had its turn by now."""
        if not self.is_on:
            return False
        waits = (self._short_wait, self._wait_longer_than(DOUBT_MIN_MS, now_ms))
        return any(
            wait is not None and wait.from_ms < deadline_ms <= wait.to_ms and now_ms < wait.to_ms + LET_IN_MS
            for wait in waits
        )

    def _wait_longer_than(self, min_ms: int, now_ms: int) -> Trouble | None:
        """The longest that is under way, if it is longer than that."""
        waits = [
            (now_ms - since_ms, Trouble(from_ms, now_ms, kind))
            for kind, since_ms, from_ms in self._waits.values()
        ]
        if (asked := self.wait_under_way()) is not None:
            kind, since_ms = asked
            waits.append((now_ms - since_ms, Trouble(since_ms, now_ms, kind)))
        if self._starved_ms is not None and self._beat_ms is not None:
            to_ms = now_ms if self._is_late(now_ms) else self._beat_ms
            waits.append((to_ms - self._starved_ms, Trouble(self._starved_ms, to_ms, TroubleKind.PAUSED)))
        length_ms, longest = max(waits, default=(0, None))
        return longest if length_ms > min_ms else None

    def _look(self, now_ms: int, *, is_over: bool = False) -> None:
        """Notice whether the process was paused, and whether it runs as it should again."""
        if self._is_late(now_ms):
            self._starved_ms = self._beat_ms if self._starved_ms is None else self._starved_ms
        elif is_over and self._starved_ms is not None and self._beat_ms is not None:
            starved_ms, self._starved_ms = self._starved_ms, None
            self.waited(TroubleKind.PAUSED, starved_ms, self._beat_ms)

    def _is_late(self, now_ms: int) -> bool:
        return self._beat_ms is not None and now_ms - self._beat_ms > _BEAT_MS + DOUBT_MIN_MS


# ---- the clock of tests


class ManualClock:
    """A clock that stands still until the test moves it; timers run inside `advance`, in the order of their instants."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._wall_offset_ms = 0
        self._order = itertools.count()
        self._timers: list[tuple[int, int, _ManualTimer]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._now_ms + self._wall_offset_ms

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        timer = _ManualTimer(call)
        heapq.heappush(self._timers, (due_ms, next(self._order), timer))
        return timer

    def mark(self) -> ClockMark:
        return ClockMark(self._now_ms, self.wall_ms(), self._now_ms, "manual")

    def resume(self, saved: ClockMark) -> None:
        self._now_ms = max(self._now_ms, saved.engine_ms)

    def advance(self, ms: int = 0, *, seconds: float = 0) -> None:
        """Let time pass, running each timer at its own instant."""
        target_ms = self._now_ms + ms + round(seconds * 1000)
        while self._timers and self._timers[0][0] <= target_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, due_ms)
            timer.run()
        self._now_ms = target_ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; engine time does not notice."""
        self._wall_offset_ms += ms


class _ManualTimer:
    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def run(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
