"""How long a call is tried again: until it works, the service refuses, or the time is over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from veil.consumer.message import ApiError, Failure

T = TypeVar("T")

PATIENCE_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 3.0
WORTH_RETRYING: Final = frozenset({Failure.THROTTLED, Failure.UNREACHABLE})


class Pauses:
    """Growing pauses with jitter, within a patience that begins now."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._until_s = time.monotonic() + patience_s
        self._next_s = _FIRST_PAUSE_S

    async def pause(self) -> bool:
        """Wait before the next try; False, at once, when the patience is over."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, hides nothing
        if time.monotonic() + pause_s > self._until_s:
            return False
        self._next_s = min(self._next_s * 2, _PAUSE_S_MAX)
        await asyncio.sleep(pause_s)
        return True


async def patiently(call: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
    """What the call comes to, tried again while it is throttled or gets no answer."""
    pauses = Pauses(patience_s)
    while True:
        try:
            return await call()
        except ApiError as error:
            if error.failure not in WORTH_RETRYING or not await pauses.pause():
                raise
