"""Not faster than so many messages a second, over the whole of a run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from veil.pipeline.dead_letters.calls import ENTRIES_MAX

_RATE: Final = re.compile(r"([0-9]{1,9})(?:/(s|min))?")
# Calls a second: fewer would come in bursts, more would be calls of hardly anything.
_CALLS_A_SECOND: Final = 4


def read_rate(text: str) -> float:
    """Messages a second, from text such as 500, 500/s or 30/min; raises ValueError with what was expected."""
    found = _RATE.fullmatch(text.strip().replace(" ", ""))
    if found is None or int(found[1]) == 0:
        raise ValueError("a rate such as 500, 500/s or 30/min")
    return int(found[1]) / (60 if found[2] == "min" else 1)


def messages_a_call(rate_s: float | None) -> int:
    """How many messages a call should have, so that the rate is kept without bursts."""
    return ENTRIES_MAX if rate_s is None else max(1, min(ENTRIES_MAX, int(rate_s / _CALLS_A_SECOND)))


class Pace:
    """Waits as long as the messages that went before ask for."""

    def __init__(
        self,
        rate_s: float | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate_s, self._monotonic, self._rest = rate_s, monotonic, rest
        self._free_at_s = monotonic()

    def keep(self, messages: int) -> None:
        """Return when so many may go."""
        if self._rate_s is None:
            return
        now_s = self._monotonic()
        if self._free_at_s > now_s:
            self._rest(self._free_at_s - now_s)
        # What was not used is not saved up: after a pause there is no burst.
        self._free_at_s = max(now_s, self._free_at_s) + messages / self._rate_s
