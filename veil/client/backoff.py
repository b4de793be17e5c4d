"""How long to wait before a call is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from veil.client.api import Failure


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `first_s` up to `max_s`, each partly random: those who failed together come back apart."""

    first_s: float
    max_s: float
    jitter: float = 0.5  # the share of a pause that is random; 1: anything from nothing to the whole of it
    throttled: float = 1.0  # how many times as long, where the service asked for fewer calls

    def pause_s(self, failures: int, failure: Failure, random: Random) -> float:
        """How long to wait after this failure, with so many before it in a row."""
        longest_s = self.first_s * float(2 ** min(failures, 20))
        if failure is Failure.THROTTLED:
            longest_s *= self.throttled
        return min(self.max_s, longest_s) * (1 - self.jitter * random.random())
