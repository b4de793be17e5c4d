"""Sends many small requests as few batches, without making any of them wait for company."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from veil.consumer.queue_api import ApiError, Failure

E = TypeVar("E")

BATCH_MAX: Final = 10
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
# A throttled call is one the service asked us not to make: wait three times as long.
_THROTTLED_FACTOR: Final = 3


class Collector(Generic[E]):
    """Up to ten entries in a call; a call goes out as soon as none is under way, or ten have gathered.

    An entry that failed in a way that may pass is tried again, by itself, after a pause with jitter.
    """

    def __init__(
        self,
        send: Callable[[Sequence[E]], Awaitable[list[ApiError | None]]],
        *,
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
    ) -> None:
        self._send, self._sleep, self._random = send, sleep, random
        self._gathered: deque[tuple[E, asyncio.Future[ApiError | None], int]] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.Task[None]] = set()
        self._due = False
        self._hurried = False

    @property
    def pending(self) -> int:
        """Entries that no call has taken up yet."""
        return len(self._gathered) + len(self._pauses)

    def add(self, entry: E) -> asyncio.Future[ApiError | None]:
        """What became of the entry, once that is known: None when it was done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ApiError | None] = loop.create_future()
        self._gathered.append((entry, answer, 1))
        self._soon()
        return answer

    def hurry(self) -> None:
        """The end is near: try nothing again from now on."""
        self._hurried = True
        for pause in self._pauses:
            pause.cancel()

    def _soon(self) -> None:
        # At the end of this turn of the loop, so that everything that ends in the same turn shares a call.
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        self._due = False
        while self._gathered and (not self._calls or len(self._gathered) >= BATCH_MAX):
            batch = [self._gathered.popleft() for _ in range(min(BATCH_MAX, len(self._gathered)))]
            call = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._gathered:
            self._go()

    async def _call(self, batch: list[tuple[E, asyncio.Future[ApiError | None], int]]) -> None:
        answers: Sequence[ApiError | None]
        try:
            answers = await self._send([entry for entry, _, _ in batch])
        except ApiError as error:
            answers = [error] * len(batch)
        except Exception as error:
            answers = [ApiError(Failure.UNREACHABLE, type(error).__name__, str(error))] * len(batch)
        for (entry, future, tries), answer in zip(batch, answers, strict=True):
            if answer is not None and self._may_pass(answer, tries):
                self._again(entry, future, tries, answer)
            elif not future.done():
                future.set_result(answer)

    def _may_pass(self, error: ApiError, tries: int) -> bool:
        return (
            not self._hurried and tries < _TRIES and error.failure in (Failure.THROTTLED, Failure.UNREACHABLE)
        )

    def _again(self, entry: E, future: asyncio.Future[ApiError | None], tries: int, error: ApiError) -> None:
        pause_s = min(_PAUSE_MAX_S, _FIRST_PAUSE_S * 2**tries) * (0.5 + self._random.random() / 2)
        if error.failure is Failure.THROTTLED:
            pause_s *= _THROTTLED_FACTOR

        async def pause() -> None:
            try:
                await self._sleep(pause_s)
            except asyncio.CancelledError:
                if not future.done():
                    future.set_result(error)
                raise
            self._gathered.append((entry, future, tries + 1))
            self._soon()

        task = asyncio.get_running_loop().create_task(pause())
        self._pauses.add(task)
        task.add_done_callback(self._pauses.discard)
