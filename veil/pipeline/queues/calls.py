"""Calls to a queue from code that blocks: on an event loop's own thread, by tens, tried again while the service is away."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import uvloop

from veil.client.api import ApiError, Backoff, Failure

T = TypeVar("T")
R = TypeVar("R")

RETRY_S: Final = 30.0
_BACKOFF: Final = Backoff(first_s=0.05, max_s=3.0)
_RANDOM: Final = random.Random()  # noqa: S311 - spreads load, hides nothing
WORTH_RETRYING: Final = frozenset({Failure.THROTTLED, Failure.UNREACHABLE})


class Retries:
    """Pauses before further tries, within a time that begins now."""

    def __init__(self, retry_s: float = RETRY_S) -> None:
        self._until_s = time.monotonic() + retry_s
        self._failures = 0

    async def pause(self) -> bool:
        """Wait before the next try; False, at once, when that time is over."""
        pause_s = _BACKOFF.pause_s(self._failures, Failure.UNREACHABLE, _RANDOM)
        if time.monotonic() + pause_s > self._until_s:
            return False
        self._failures += 1
        await asyncio.sleep(pause_s)
        return True


async def with_retries(call: Callable[[], Awaitable[T]], retry_s: float = RETRY_S) -> T:
    """What the call comes to, tried again while it is throttled or gets no answer."""
    retries = Retries(retry_s)
    while True:
        try:
            return await call()
        except ApiError as error:
            if error.failure not in WORTH_RETRYING or not await retries.pause():
                raise


class LoopThread:
    """A running event loop; it ends with the process, or when closed."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work on the loop; the caller waits when it needs what it comes to."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work on the loop and wait for what it comes to."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            # Interrupted while waiting: the work must not go on behind the caller's back.
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


CALLS_AT_ONCE: Final = 8
ENTRIES: Final = 10


async def in_batches(
    items: Sequence[T],
    call: Callable[[Sequence[T]], Awaitable[list[R | ApiError]]],
    *,
    split: Callable[[Sequence[T]], list[list[int]]] | None = None,
    retry_s: float = RETRY_S,
) -> list[R | ApiError]:
    """What became of each item, in their order.

    `call` takes up to ten and says what became of each; what was throttled or unanswered is called again, without the rest
    of its batch, until `retry_s` is over. `split` gives the indices that go together (by tens where it is None).
    """
    results: list[R | ApiError | None] = [None] * len(items)
    batches = split(items) if split is not None else _by_tens(len(items))
    waiting = iter(batches)

    async def work() -> None:
        for batch in waiting:
            await _settle(items, batch, call, results, retry_s)

    await asyncio.gather(*(work() for _ in range(min(CALLS_AT_ONCE, len(batches)))))
    return [result for result in results if result is not None]


async def _settle(
    items: Sequence[T],
    indices: list[int],
    call: Callable[[Sequence[T]], Awaitable[list[R | ApiError]]],
    results: list[R | ApiError | None],
    retry_s: float,
) -> None:
    retries = Retries(retry_s)
    while True:
        try:
            answers = await call([items[index] for index in indices])
        except ApiError as error:
            answers = [error] * len(indices)
        again = []
        for index, answer in zip(indices, answers, strict=True):
            results[index] = answer
            if isinstance(answer, ApiError) and answer.failure in WORTH_RETRYING:
                again.append(index)
        if not again or not await retries.pause():
            return
        indices = again


def _by_tens(count: int) -> list[list[int]]:
    return [list(range(start, min(start + ENTRIES, count))) for start in range(0, count, ENTRIES)]
