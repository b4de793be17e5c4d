"""Makes messages visible again: at once, or after a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from veil.consumer.collector import BATCH_MAX, Collector
from veil.consumer.message import Message
from veil.consumer.queue_api import ApiError, Failure, QueueApi

logger = logging.getLogger(__name__)


class GivingBack:
    """Changes the visibility of what was not handled. The keeper must have let go of the leases before.

    A message whose change fails for good comes back when its window ends: later than wished, never lost.
    """

    def __init__(
        self,
        api: QueueApi,
        url: str,
        *,
        fifo: bool,
        sleep: Callable[[float], Awaitable[None]],
        random: Random,
    ) -> None:
        async def extend(changes: Sequence[tuple[str, int]]) -> list[ApiError | None]:
            return await api.extend(url, changes)

        self._collector = Collector(extend, sleep=sleep, random=random)
        self._fifo = fifo

    async def give_back(self, changes: Sequence[tuple[Message, int]]) -> None:
        """Make each visible after so many seconds, 0 at once; on a FIFO queue from the first on."""
        if not self._fifo:
            await self._change(changes)
            return
        # One call after the other: side by side, the second could overtake the first.
        for at in range(0, len(changes), BATCH_MAX):
            await self._change(changes[at : at + BATCH_MAX])

    def hurry(self) -> None:
        """Try nothing again from now on."""
        self._collector.hurry()

    async def _change(self, changes: Sequence[tuple[Message, int]]) -> None:
        answers = await asyncio.gather(
            *(self._collector.add((message.raw.receipt, seconds)) for message, seconds in changes)
        )
        for (message, seconds), error in zip(changes, answers, strict=True):
            if error is not None and error.failure is not Failure.LOST:
                logger.warning(
                    "the message could not be made visible in %d s and comes back when its window ends: %s",
                    seconds,
                    error,
                    extra={"facts": message.facts},
                )
