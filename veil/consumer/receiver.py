"""Asks the queue for messages: as many calls at a time as there is work for, never for more than there is room."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from veil.consumer.queue_api import ApiError, Failure, QueueApi, RawMessage

logger = logging.getLogger(__name__)

WAIT_S: Final = 20  # the longest there is: a waiting call costs nothing, an empty answer costs a request
_FIRST_PAUSE_S: Final = 0.5
_FIRST_PAUSE_THROTTLED_S: Final = 2.0
PAUSE_MAX_S: Final = 60.0
_ATTEMPTS_KEPT: Final = 32


def pause_after(failure: Failure, failures: int, random: Random) -> float:
    """How long to wait after so many failures before this one, in a row."""
    first_s = _FIRST_PAUSE_THROTTLED_S if failure is Failure.THROTTLED else _FIRST_PAUSE_S
    # Full jitter: consumers that lost the same server at the same instant must not come back as one.
    return random.uniform(0, min(PAUSE_MAX_S, first_s * 2 ** min(failures, 10)))


class Receiver:
    """Keeps receives under way while there is room; `pump` after everything that may have made some.

    One call waits on an idle queue. Each answer that brings at least half of what was asked for allows one more call
    beside it, an empty one takes all but one away: a backlog is taken up quickly, and idleness stays cheap.
    """

    def __init__(
        self,
        api: QueueApi,
        url: str,
        *,
        visibility_s: Callable[[], int],
        room: Callable[[int], int],
        deliver: Callable[[list[RawMessage], int], None],
        on_fatal: Callable[[ApiError], None],
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
        fifo: bool,
        calls_max: int,
    ) -> None:
        self._api, self._url, self._fifo, self._calls_max = api, url, fifo, calls_max
        self._visibility_s, self._room, self._deliver, self._on_fatal = visibility_s, room, deliver, on_fatal
        self._sleep, self._random = sleep, random
        self._calls: set[asyncio.Task[None]] = set()
        self._pause: asyncio.Task[None] | None = None
        self._allowed = 1
        self._failures = 0
        self._stopping = False
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

    def pump(self) -> None:
        """Ask for as much as there is room for."""
        while not self._stopping and self._pause is None and len(self._calls) < self._allowed:
            count = self._room(self.asked)
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
        if self._fifo:
            attempt_id = self._unanswered.popleft() if self._unanswered else uuid.uuid4().hex
        visibility_s = self._visibility_s()
        try:
            messages = await self._api.receive(
                self._url, count=count, wait_s=WAIT_S, visibility_s=visibility_s, attempt_id=attempt_id
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
            logger.error(
                "receiving from %s failed in an unforeseen way: %r", self._url, error, exc_info=error
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
        pause_s = pause_after(error.failure, self._failures, self._random)
        self._failures += 1
        logger.warning("receiving from %s failed, next try in %.1f s: %s", self._url, pause_s, error)
        self._pause = asyncio.get_running_loop().create_task(self._wait(pause_s))

    async def _wait(self, pause_s: float) -> None:
        try:
            await self._sleep(pause_s)
        finally:
            self._pause = None
        self.pump()
