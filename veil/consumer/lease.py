"""A handler's claim on its message: how long it lasts, and whether it still does."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from veil.core.limits import VISIBILITY_MAX_S

if TYPE_CHECKING:
    from veil.consumer.renewal.keeper import Keeper

_log = logging.getLogger(__name__)
_BY_HAND_TIMEOUT_S = 60.0


class LeaseStatus(Enum):
    """What has become of a lease."""

    HELD = "held"
    LOST = "lost"  # another consumer has, or may have, the message: the result must not be kept
    ENDED = "ended"  # deleted or given back by its holder


class LeaseLost(Exception):
    """The lease cannot be changed any more: another consumer has, or may have, the message."""


class Settling:
    """Something that is done already, or soon: await it, on any event loop."""

    __slots__ = ("futures",)

    def __init__(self, *futures: Future[None]) -> None:
        self.futures = futures

    def __await__(self) -> Generator[Any, None, None]:
        for future in self.futures:
            yield from asyncio.wrap_future(future).__await__()


class Lease:
    """One delivery of one message, safe to use from any thread.

    The window is counted on the monotonic clock from before the request that opened it was sent, so `remaining_s` errs on
    the careful side. `token` rises with every delivery of the message: hand it to whatever the handler writes to, and let
    that refuse a lower one than it has seen.
    """

    # One for all: it is held for a few assignments, and to make one for each lease costs more than to wait for it.
    _lock = threading.Lock()
    # What most leases never change, so that to make one costs little.
    noticed = LeaseStatus.HELD  # its state as far as anybody has noticed, without a look at the clock
    why = ""  # it was lost, in words
    _over: threading.Event | None = None  # made by `wait_lost`
    _on_lost: tuple[Callable[[], None], ...] = ()
    _on_warned: tuple[Callable[[], None], ...] = ()
    _ends_at_s: float | None = None
    # Set while the handler is in charge of the window itself; the keeper then leaves the lease alone.
    by_hand = False
    released = False
    number = 0  # by which a helper process knows it
    extensions = 0
    # Set by a keeper in this process: from then on the lease counts as lost, whether or not anybody was awake to
    # notice. A handler that goes on after a stall thus learns it from its first look.
    lost_at_s = math.inf
    control: Keeper | None = None  # which holds it, and changes it for its handler

    def __init__(
        self,
        *,
        queue_url: str,
        message_id: str,
        receipt: str,
        token: int,
        received_at_s: float,
        visibility_s: float,
        monotonic: Callable[[], float],
        kind: str = "",
        grace_s: float = 0.0,
    ) -> None:
        self.queue_url, self.message_id, self.receipt, self.token = queue_url, message_id, receipt, token
        self.received_at_s = received_at_s
        self.visibility_s = visibility_s  # of the receive; what the window is now, `deadline_s` tells
        # Leases of one kind usually last alike: the handler's name, for what a policy learns.
        self.kind = kind
        # How long after the service's own trouble it stays open, as the service has promised.
        self.grace_s = grace_s
        self._monotonic = monotonic
        self.deadline_s = received_at_s + visibility_s  # unless it is renewed; monotonic time

    @property
    def state(self) -> LeaseStatus:
        """What has become of it."""
        self._look_at_the_clock()
        return self.noticed

    @property
    def lost(self) -> bool:
        """Whether another consumer has, or may have, the message now. A sync handler looks at it between two steps."""
        self._look_at_the_clock()
        return self.noticed is LeaseStatus.LOST

    def lost_by(self, now_s: float) -> bool:
        """The same at an instant that the caller has read off the lease's clock."""
        if now_s >= self.lost_at_s:
            self._look_at_the_clock()
        return self.noticed is LeaseStatus.LOST

    @property
    def remaining_s(self) -> float:
        """How long the window still lasts; negative once it has ended."""
        return self.deadline_s - self._monotonic()

    @property
    def is_certain(self) -> bool:
        """Whether the window that the service granted last is still open. False while the service is away longer than that:
        the lease then rests on the service's promise of a grace, and another look at `lost` tells what came of it."""
        return self.state is LeaseStatus.HELD and self.remaining_s > 0

    @property
    def warned(self) -> bool:
        """Whether the end that no renewal can move is near."""
        return self._ends_at_s is not None

    @property
    def ends_in_s(self) -> float | None:
        """Once warned: how long until renewal ends for good. None before."""
        return None if self._ends_at_s is None else self._ends_at_s - self._monotonic()

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Block until the lease is lost or the time is up; True when it is lost."""
        with self._lock:
            if self._over is None:
                self._over = threading.Event()
                if self.noticed is not LeaseStatus.HELD:
                    self._over.set()
        return self._over.wait(timeout_s) and self.lost

    # ---- by hand: `await` it in an async handler; in a sync one it has happened when the call returns

    def extend(self, by: float | timedelta) -> Settling:
        """Make the window last so long from now, in whole seconds, and leave it to the handler from here on.

        The keeper renews it no more and will not shorten it. Raises LeaseLost when another consumer has the message, and
        ApiError when the service refuses; the keeper then goes on as before.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if not (1 <= seconds <= VISIBILITY_MAX_S and seconds == int(seconds)):
            raise ValueError(
                f"extend({by!r}): expected whole seconds, 1 to {VISIBILITY_MAX_S:,}; release() gives the message back"
            )
        return self._change(int(seconds))

    def release(self) -> Settling:
        """Give the message back: it is visible at once, to every consumer, and what the handler returns has no effect."""
        return self._change(0)

    def _change(self, visibility_s: int) -> Settling:
        if self.control is None:
            raise RuntimeError(
                f"lease of message {self.message_id}: no keeper holds it, so it cannot be changed"
            )
        future = self.control.change(self, visibility_s)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a plain thread: wait here
            future.result(_BY_HAND_TIMEOUT_S)
        return Settling(future)

    # ---- for the keeper and the runner

    def renewed(self, deadline_s: float) -> None:
        """The service granted a new deadline."""
        with self._lock:
            self.deadline_s = deadline_s
            self.extensions += 1

    def changed_by_hand(self, visibility_s: int, deadline_s: float) -> None:
        """The service granted what its handler asked for; with 0 seconds the message was given back."""
        self.by_hand = True
        if visibility_s:
            self.renewed(deadline_s)
        else:
            self.released = self.end()

    def lose(self, why: str) -> bool:
        """Mark as lost, once, and run the callbacks of `when_lost`."""
        return self._finish(LeaseStatus.LOST, why)

    def end(self) -> bool:
        """Mark as ended by its holder, once; False when it was lost before."""
        self._look_at_the_clock()
        return self._finish(LeaseStatus.ENDED, "")

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call (from whatever thread notices) when the lease is lost; at once if it already is."""
        with self._lock:
            if self.noticed is LeaseStatus.HELD:
                self._on_lost += (call,)
                return
        if self.lost:
            call()

    def warn(self, ends_at_s: float) -> bool:
        """Say, once, that renewal ends for good at that instant, and run the callbacks of `when_warned`."""
        with self._lock:
            if self._ends_at_s is not None or self.noticed is not LeaseStatus.HELD:
                return False
            self._ends_at_s = ends_at_s
            calls, self._on_warned = self._on_warned, ()
        self._tell(calls)
        return True

    def when_warned(self, call: Callable[[], None]) -> None:
        """Call (from the keeper's thread) when the end that no renewal can move is near; at once if it already is."""
        with self._lock:
            if self._ends_at_s is None:
                self._on_warned += (call,)
                return
        call()

    def _look_at_the_clock(self) -> None:
        if self.noticed is LeaseStatus.HELD and self._monotonic() >= self.lost_at_s:
            self._finish(LeaseStatus.LOST, "its visibility deadline passed without a renewal")

    def _finish(self, state: LeaseStatus, why: str) -> bool:
        with self._lock:
            if self.noticed is not LeaseStatus.HELD:
                return False
            self.noticed, self.why = state, why
            calls, self._on_lost = self._on_lost, ()
            if self._over is not None:
                self._over.set()
        if state is LeaseStatus.LOST:
            self._tell(calls)
        return True

    def _tell(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:  # the keeper has a thousand other leases, and must not fail for one
                _log.exception("lease of message %s: a callback failed", self.message_id)
