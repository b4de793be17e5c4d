"""Receiving: as many calls at a time as there is work for, never for more messages than there are free slots."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from veil.client.api import BATCH_MAX, ApiError, Failure, RawMessage, RetryBackoff
from veil.client.client import SqsClient

_log = logging.getLogger(__name__)


# ---- demand

# A message received ahead should find a slot within about this long. Longer, and another consumer could have had it.
_AHEAD_S: Final = 0.25
# However quick the handlers are. Of Veil's larger calls six, so that neither side ever waits for the other: with two of them a
# consumer of handlers that do nothing was a quarter slower.
AHEAD_MAX: Final = 60 * BATCH_MAX
_LEARN: Final = 0.1  # the weight of the newest handling time


class HandlingTime:
    """The usual time a handler takes, by an average that forgets."""

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self.last_s = math.inf

    def took(self, seconds: float) -> None:
        """One more handler has ended."""
        self.last_s = seconds
        if self.usual_s is None:
            self.usual_s = seconds
        else:
            self.usual_s += _LEARN * (seconds - self.usual_s)


def prefetch_for(slots: int, usual_s: float | None) -> int:
    """How many to receive ahead of free slots where `prefetch` is not set: as many as the slots take up in a quarter of a second.

    Nothing is known at first, and then nothing is received ahead.
    """
    if usual_s is None:
        return 0
    most = max(AHEAD_MAX, slots)
    if usual_s <= 0:
        return most
    return min(most, math.floor(slots * _AHEAD_S / usual_s))


def to_ask_for(*, slots: int, taken: int, asked: int, prefetch: int, call_max: int = BATCH_MAX) -> int:
    """How many messages there is room for now; 0: none, or too few to be worth a call.

    `taken` are slots, and places ahead of them, of what was received; `asked` is what receives under way may still bring.
    While a slot is free everything there is room for is asked for at once; what is only received ahead can wait until it fills
    a call of `call_max`, or half of the room there is for it.
    """
    free = slots - taken - asked
    room = free + prefetch
    if free > 0:
        return room
    return room if room >= min(call_max, max(1, prefetch // 2)) else 0


# ---- queue facts

_FRESH_S: Final = 60.0
_VISIBILITY_DEFAULT_S: Final = 30  # SQS's own default


class QueueFacts:
    """Read at the start, and again now and then, since queues are edited while consumers run."""

    def __init__(
        self, api: SqsClient, url: str, *, visibility_s: int | None, monotonic: Callable[[], float]
    ) -> None:
        self._api, self._monotonic = api, monotonic
        self._given_s = visibility_s
        self._is_read, self._read_at_s = False, float("-inf")
        self.url = url
        self.visibility_s = visibility_s or _VISIBILITY_DEFAULT_S
        self.dead_letters_url: str | None = None

    @property
    def fifo(self) -> bool:
        return self.url.endswith(".fifo")

    async def read(self) -> None:
        """Read them now; raises ApiError unless the consumer can do without."""
        try:
            attributes = await self._api.attributes(self.url)
        except ApiError as error:
            # With a window of its own the consumer needs no attributes, and a narrow policy may not let it read them.
            if self._given_s is None or error.is_missing_queue or error.failure is not Failure.FATAL:
                raise
            _log.warning(
                "the attributes of %s cannot be read, so its dead letters are unknown: %s", self.url, error
            )
            attributes = {}
        visibility_s = int(attributes.get("VisibilityTimeout", _VISIBILITY_DEFAULT_S))
        if self._given_s is None and visibility_s < 1 and self._is_read:
            # Every receive would count, and none could be handled: all would end among the dead letters.
            _log.warning(
                "%s now has a visibility timeout of 0, with which no consumer can hold a message; the consumer goes on with %d s",
                self.url,
                self.visibility_s,
            )
        elif self._given_s is None:
            self.visibility_s = visibility_s
        self._is_read, self._read_at_s = True, self._monotonic()
        self.dead_letters_url = _dead_letters(self.url, attributes.get("RedrivePolicy", ""))

    async def refresh(self) -> None:
        """Read them again if they are old; when that fails, what was known goes on counting."""
        if self._monotonic() - self._read_at_s < _FRESH_S:
            return
        try:
            await self.read()
        except ApiError as error:
            self._read_at_s = self._monotonic()
            _log.warning("the attributes of %s could not be read again: %s", self.url, error)


def _dead_letters(url: str, redrive_policy: str) -> str | None:
    try:
        arn = json.loads(redrive_policy)["deadLetterTargetArn"]
        name = arn.rsplit(":", 1)[1]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None
    prefix, _, own = url.rpartition("/")
    # A queue may be its own dead-letter queue: a copy sent there would come back to be handled, for ever.
    if name == own:
        return None
    # Dead letters lie in the account and region of their queue, so its URL differs in the name alone. Asking for it would
    # take one more permission on one more queue.
    return f"{prefix}/{name}"


# ---- receiving

WAIT_S: Final = 20  # the longest there is: a waiting call costs nothing, an empty answer costs a request
# Full jitter: consumers that lost the same server at the same instant must not come back as one.
BACKOFF: Final = RetryBackoff(first_s=0.5, max_s=60.0, jitter=1.0, throttled=4.0)
_ATTEMPTS_KEPT: Final = 32


class Receiver:
    """Keeps receives under way while there is room; `pump` after everything that may have made some.

    One call waits on an idle queue. Each answer that brings at least half of what was asked for allows one more call
    beside it, an empty one takes all but one away: a backlog is taken up quickly, and idleness stays cheap.
    """

    def __init__(
        self,
        api: SqsClient,
        facts: QueueFacts,
        *,
        free_slots: Callable[[int], int],
        deliver: Callable[[list[RawMessage], int], None],
        on_fatal: Callable[[ApiError], None],
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
        calls_max: int,
    ) -> None:
        self._api, self._facts, self._calls_max = api, facts, calls_max
        self._free_slots, self._deliver, self._on_fatal = free_slots, deliver, on_fatal
        self._sleep, self._random = sleep, random
        self._calls: set[asyncio.Task[None]] = set()
        self._pause: asyncio.Task[None] | None = None
        self._allowed = 1
        self._failures = 0
        self._stopping = False
        self._pumping = False  # at the end of this turn
        # FIFO: a receive that went unanswered is asked again under the same id, so that what it may have taken comes at
        # once instead of blocking its groups for a whole window.
        self._unanswered: deque[str] = deque(maxlen=_ATTEMPTS_KEPT)
        self.asked = 0  # what the receives under way may still bring

    @property
    def under_way(self) -> int:
        """How many receives wait for an answer."""
        return len(self._calls)

    @property
    def pausing(self) -> bool:
        """Whether it waits after a failure."""
        return self._pause is not None

    def pump_soon(self) -> None:
        """Ask at the end of this turn of the loop, in which others may make room too."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Ask for as much as there is room for."""
        self._pumping = False
        while not self._stopping and self._pause is None and len(self._calls) < self._allowed:
            count = self._free_slots(self.asked)
            if count < 1:
                return
            self.asked += count
            call = asyncio.get_running_loop().create_task(self._receive(count))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Ask no more, and cancel what is under way: the client gives back what an answer on its way brings."""
        self._stopping = True
        if self._pause is not None:
            self._pause.cancel()
        for call in self._calls:
            call.cancel()
        while self._calls:
            await asyncio.wait(self._calls)

    async def _receive(self, count: int) -> None:
        attempt_id: str | None = None
        if self._facts.fifo:
            attempt_id = self._unanswered.popleft() if self._unanswered else uuid.uuid4().hex
        visibility_s = self._facts.visibility_s
        try:
            messages = await self._api.receive(
                self._facts.url, count=count, wait_s=WAIT_S, visibility_s=visibility_s, attempt_id=attempt_id
            )
        except ApiError as error:
            self.asked -= count
            if attempt_id is not None and error.failure is Failure.UNREACHABLE:
                self._unanswered.append(attempt_id)
            self._failed(error)
            return
        except BaseException:
            self.asked -= count
            raise
        self.asked -= count
        self._failures = 0
        if 2 * len(messages) >= count:
            self._allowed = min(len(self._calls) + 1, self._calls_max)
        elif not messages:
            self._allowed = 1
        if messages:
            self._deliver(messages, visibility_s)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            _log.error(
                "receiving from %s failed in an unforeseen way: %r", self._facts.url, error, exc_info=error
            )
            self._failed(ApiError(Failure.UNREACHABLE, type(error).__name__, str(error)))
        self.pump()

    def _failed(self, error: ApiError) -> None:
        if self._stopping:
            return
        if error.failure in (Failure.FATAL, Failure.REFUSED):
            self._stopping = True
            self._on_fatal(error)
            return
        self._allowed = 1
        if self._pause is not None:
            return  # calls that were under way side by side fail together: one trouble, one step
        pause_s = BACKOFF.pause_s(self._failures, error.failure, self._random)
        self._failures += 1
        _log.warning("receiving from %s failed, next try in %.1f s: %s", self._facts.url, pause_s, error)
        self._pause = asyncio.get_running_loop().create_task(self._wait(pause_s))

    async def _wait(self, pause_s: float) -> None:
        try:
            await self._sleep(pause_s)
        finally:
            self._pause = None
        self.pump()
