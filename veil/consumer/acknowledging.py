"""How a message is let go: deletes and visibility changes, in batches that make no entry wait for others."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from veil.client.api import BATCH_MAX, ApiError, Failure, RetryBackoff
from veil.client.client import SqsClient
from veil.consumer.message import Message
from veil.consumer.renewal.keeper import Keeper
from veil.core.attempt import GIVEN_BACK

_log = logging.getLogger(__name__)


# ---- batching

E = TypeVar("E")
Answered = Callable[[ApiError | None], None]

_TRIES: Final = 5
_BACKOFF: Final = RetryBackoff(first_s=0.2, max_s=5.0, throttled=3.0)
# For a service that promises a grace after its own trouble: often enough to be in time for it.
_BACKOFF_AWAY: Final = RetryBackoff(first_s=0.2, max_s=1.0)
_TRIES_AWAY: Final = 3_600


class Batcher(Generic[E]):
    """Up to `count_max()` entries in a call; one goes out as soon as none is under way, or so many have gathered.

    An entry that failed in a way that may pass is tried again, by itself, after a pause with jitter.
    """

    def __init__(
        self,
        send: Callable[[Sequence[E]], Awaitable[list[ApiError | None]]],
        *,
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
        count_max: Callable[[], int] = lambda: BATCH_MAX,
    ) -> None:
        self._send, self._sleep, self._random, self._count_max = send, sleep, random, count_max
        self._gathered: deque[tuple[E, Answered, int]] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.Task[None]] = set()
        self._due = False
        self._hurried = False
        self.grace_s = 0.0  # what the service promises of leases after its own trouble

    @property
    def pending(self) -> int:
        """Entries that no call has taken up yet."""
        return len(self._gathered) + len(self._pauses)

    def put(self, entry: E, answered: Answered) -> None:
        """Send the entry, and tell what became of it: None when it was done."""
        self._gathered.append((entry, answered, 1))
        self._soon()

    def add(self, entry: E) -> asyncio.Future[ApiError | None]:
        """The same, to be awaited."""
        answer: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        self.put(entry, lambda error: None if answer.done() else answer.set_result(error))
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
        count_max = self._count_max()
        while self._gathered and (not self._calls or len(self._gathered) >= count_max):
            batch = [self._gathered.popleft() for _ in range(min(count_max, len(self._gathered)))]
            call = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._gathered:
            self._go()

    async def _call(self, batch: list[tuple[E, Answered, int]]) -> None:
        batch = self._to_send(batch)
        answers: Sequence[ApiError | None]
        try:
            answers = await self._send([entry for entry, _, _ in batch]) if batch else []
        except ApiError as error:
            answers = [error] * len(batch)
        except Exception as error:
            answers = [ApiError(Failure.UNREACHABLE, type(error).__name__, str(error))] * len(batch)
        for (entry, answered, tries), answer in zip(batch, answers, strict=True):
            if answer is not None and self._may_pass(answer, tries):
                self._again(entry, answered, tries, answer)
            else:
                self._ended(entry, answer)
                answered(answer)

    def _to_send(self, batch: list[tuple[E, Answered, int]]) -> list[tuple[E, Answered, int]]:
        """Those of a batch that are to be sent, asked just before they are."""
        return batch

    def _ended(self, entry: E, error: ApiError | None) -> None:
        """This has become of the entry, and it is not tried again."""

    def _may_pass(self, error: ApiError, tries: int) -> bool:
        tries_max = _TRIES_AWAY if error.away and self.grace_s else _TRIES
        return not self._hurried and tries < tries_max and error.may_pass

    def _again(self, entry: E, answered: Answered, tries: int, error: ApiError) -> None:
        backoff = _BACKOFF_AWAY if error.away and self.grace_s else _BACKOFF
        pause_s = backoff.pause_s(tries - 1, error.failure, self._random)

        async def pause() -> None:
            await self._sleep(pause_s)
            self._gathered.append((entry, answered, tries + 1))
            self._soon()

        def over(task: asyncio.Task[None]) -> None:
            self._pauses.discard(task)
            # Here and not in the task: one that is cancelled before it has begun never runs.
            if task.cancelled():
                self._ended(entry, error)
                answered(error)

        task = asyncio.get_running_loop().create_task(pause())
        self._pauses.add(task)
        task.add_done_callback(over)


# ---- deleting

_REMEMBERED_MAX: Final = 10_000


class Deletes(Batcher[Message]):
    """Deletes, in batches; a message whose delete failed is known when it comes back, and is not handled again.

    A message that waits for its delete is held and renewed like one that is being handled. Its lease is ended with the call
    that deletes it, and one that was lost until then is not deleted: another consumer may hold it.
    """

    def __init__(
        self,
        api: SqsClient,
        url: str,
        keeper: Keeper,
        *,
        on_fatal: Callable[[ApiError], None],
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
    ) -> None:
        async def delete(messages: Sequence[Message]) -> list[ApiError | None]:
            receipts = [message.raw.receipt for message in messages]
            reported = [message.reported() for message in messages]
            return await api.delete(url, receipts, reported=reported if any(reported) else ())

        super().__init__(delete, sleep=sleep, random=random, count_max=lambda: api.bulk_max)
        self._handled: OrderedDict[str, None] = OrderedDict()
        self._url, self._keeper, self._on_fatal = url, keeper, on_fatal

    def was_handled(self, message_id: str) -> bool:
        """Whether the message was handled before and only its delete failed."""
        return message_id in self._handled

    def _to_send(self, batch: list[tuple[Message, Answered, int]]) -> list[tuple[Message, Answered, int]]:
        self._keeper.let_go(*(message.lease for message, _, tries in batch if tries == 1))
        return [each for each in batch if each[2] > 1 or self._is_held(*each)]

    def _is_held(self, message: Message, answered: Answered, _tries: int) -> bool:
        if message.end_lease():
            return True
        error = ApiError(Failure.LOST, "", message.lease.why)
        if not message.lease.released:  # by its handler: then it is to be handled again
            self._ended(message, error)
        answered(error)
        return False

    def _ended(self, message: Message, error: ApiError | None) -> None:
        if error is None:
            if self._handled:
                self._handled.pop(message.id, None)
            return
        # Also after LOST: its handler has succeeded, and if its new holder fails, it may come back to us.
        self._handled[message.id] = None
        self._handled.move_to_end(message.id)
        if len(self._handled) > _REMEMBERED_MAX:
            self._handled.popitem(last=False)
        if error.failure is Failure.LOST:
            level, became = logging.WARNING, "its lease had ended before the delete: %s"
        else:
            level = logging.ERROR
            became = "not deleted: %s; when it comes back it is deleted, not handled again"
        _log.log(level, f"message %s of %s was handled, but {became}", message.id, self._url, error)
        if error.failure is Failure.FATAL:
            self._on_fatal(error)  # or all that is received would be handled again and again


# ---- releasing


class Releases(Batcher[tuple[Message, int]]):
    """Changes the visibility of what was not handled. The keeper must have let go of their leases before.

    A message whose change fails for good comes back when its window ends: later than wished, never lost.
    """

    def __init__(
        self,
        api: SqsClient,
        url: str,
        *,
        fifo: bool,
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
    ) -> None:
        async def extend(changes: Sequence[tuple[Message, int]]) -> list[ApiError | None]:
            reported = [message.reported(GIVEN_BACK) for message, _ in changes]
            receipts = [(message.raw.receipt, seconds) for message, seconds in changes]
            return await api.extend(url, receipts, reported=reported)

        super().__init__(extend, sleep=sleep, random=random)
        self._fifo = fifo

    async def give_back(self, changes: Sequence[tuple[Message, int]]) -> None:
        """Make each visible after so many seconds, 0 at once; on a FIFO queue from the first on. With the change goes what its
        handler has come to, if it had one."""
        if not self._fifo:
            await self._change(changes)
            return
        # One call after the other: side by side, the second could overtake the first.
        for at in range(0, len(changes), BATCH_MAX):
            await self._change(changes[at : at + BATCH_MAX])

    async def _change(self, changes: Sequence[tuple[Message, int]]) -> None:
        answers = await asyncio.gather(*map(self.add, changes))
        for (message, seconds), error in zip(changes, answers, strict=True):
            if error is not None and error.failure is not Failure.LOST:
                _log.warning(
                    "the message could not be made visible in %d s and comes back when its window ends: %s",
                    seconds,
                    error,
                    extra=message.extra(),
                )
