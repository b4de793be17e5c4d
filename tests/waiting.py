"""Waiting for what another process, thread or task brings about: by looking for it, with a bound that only a bug can pass."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.01


class NotInTime(AssertionError):
    """Something that was waited for did not happen."""


class _Patience:
    """How long is still to be waited. A machine that stood still for a while between two looks has not waited so long."""

    def __init__(self, what: str, within_s: float) -> None:
        self._what, self._within_s, self._left_s = what, within_s, within_s
        self._looked_s = time.monotonic()

    def spend(self) -> None:
        before_s, self._looked_s = self._looked_s, time.monotonic()
        self._left_s -= min(self._looked_s - before_s, 1.0)
        if self._left_s < 0:
            raise NotInTime(f"after {self._within_s:g} s: {self._what}")


def until(happened: Callable[[], T], what: str = "it did not happen", within_s: float = PATIENCE_S) -> T:
    """Look until it has happened, and give what it was; raises NotInTime."""
    patience = _Patience(what, within_s)
    while not (found := happened()):
        patience.spend()
        time.sleep(_LOOK_EVERY_S)
    return found


async def until_async(happened: Callable[[], object], what: str = "it did not happen") -> None:
    """Let the loop turn until it has happened, which may have to be awaited to be seen; raises NotInTime."""
    patience = _Patience(what, PATIENCE_S)
    while True:
        found = happened()
        if await found if inspect.isawaitable(found) else found:
            return
        patience.spend()
        await asyncio.sleep(_LOOK_EVERY_S / 10)
