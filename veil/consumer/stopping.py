"""The order in which a consumer stops, so that nothing it held stays hidden.

1. Begin nothing, ask for nothing; a receive that waits is cancelled. Only now may anything be given back: a receive of our
   own that still waited would take it again.
2. Give back what was received and not begun.
3. Let the handlers end, with their leases renewed, until the drain timeout or a second signal.
4. Interrupt those that have not, and give back what they held.

Deletes and releases go out all the while; at the end those under way are waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from veil.consumer.acks import Acks
from veil.consumer.desk import MessageDesk
from veil.consumer.dispatch import Dispatch
from veil.consumer.giving_back import GivingBack
from veil.consumer.receiver import Receiver

logger = logging.getLogger(__name__)

# How long interrupted handlers may take to end, and what is under way to be answered.
_LAST_S: Final = 3.0


class Stopping:
    """The way down; `hurry` skips what is left of the draining."""

    def __init__(
        self,
        *,
        receiver: Receiver,
        dispatch: Dispatch,
        desk: MessageDesk,
        acks: Acks,
        giving_back: GivingBack,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._receiver, self._dispatch, self._desk = receiver, dispatch, desk
        self._acks, self._giving_back, self._sleep = acks, giving_back, sleep
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._hurried.set()

    async def run(self, drain_timeout_s: float) -> None:
        """Stop; returns when nothing is held any more."""
        dispatch = self._dispatch
        dispatch.close()
        await self._receiver.stop()
        await self._desk.give_back(dispatch.not_begun())
        if dispatch.running:
            logger.info("stopping: waiting for %d handlers, at most %g s", dispatch.running, drain_timeout_s)
        drained = asyncio.ensure_future(dispatch.drained())
        await self._first_of(drained, self._sleep(drain_timeout_s), self._hurried.wait())
        if not drained.done():
            if dispatch.running:
                logger.warning("stopping: %d handlers are interrupted", dispatch.running)
            dispatch.interrupt()
            self._acks.hurry()
            self._giving_back.hurry()
            await self._first_of(drained, asyncio.sleep(_LAST_S))
        if not drained.done():
            drained.cancel()
            await self._desk.abandon(dispatch.messages())
        # What a group gave back after its member failed may have come in while the others were drained.
        await self._desk.give_back(dispatch.not_begun())

    @staticmethod
    async def _first_of(drained: asyncio.Future[None], *others: Awaitable[Any]) -> None:
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(other) for other in others]
        try:
            await asyncio.wait([drained, *waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
