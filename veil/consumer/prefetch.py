"""How many messages to ask for: enough that quick handlers never wait, none that a slow handler would sit on."""

from __future__ import annotations

import math
from typing import Final

RECEIVE_MAX: Final = 10
# A message received ahead should find a slot within about this long. Longer, and another consumer could have had it.
_AHEAD_S: Final = 0.25
# However quick the handlers are: ten calls' worth, so that a round trip to the service is not waited for.
AHEAD_MAX: Final = 10 * RECEIVE_MAX
_LEARN: Final = 0.1  # the weight of the newest handling time


class HandlingTime:
    """The usual time a handler takes, by an average that forgets."""

    def __init__(self) -> None:
        self.usual_s: float | None = None

    def took(self, seconds: float) -> None:
        """One more handler has ended."""
        if self.usual_s is None:
            self.usual_s = seconds
        else:
            self.usual_s += _LEARN * (seconds - self.usual_s)


def prefetch_for(slots: int, usual_s: float | None) -> int:
    """How many to receive ahead of free slots when nobody said: as many as the slots take up within a quarter of a second.

    Nothing is known at first, and then nothing is received ahead.
    """
    if usual_s is None:
        return 0
    most = max(AHEAD_MAX, slots)
    if usual_s <= 0:
        return most
    return min(most, math.floor(slots * _AHEAD_S / usual_s))


def to_ask_for(*, slots: int, taken: int, asked: int, prefetch: int) -> int:
    """How many messages there is room for now; 0: none, or too few to be worth a call.

    `taken` are slots, and places ahead of them, of what was received; `asked` is what receives under way may still bring.
    While a slot is free everything there is room for is asked for at once; what is only received ahead can wait.
    """
    free = slots - taken - asked
    room = free + prefetch
    if free > 0:
        return room
    return room if room >= min(RECEIVE_MAX, max(1, prefetch // 2)) else 0
