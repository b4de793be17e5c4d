"""What all handlers of a consumer share, apart from their functions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Protocol

from veil.consumer.failure_policy import FailurePolicy
from veil.consumer.message import Message
from veil.consumer.outcome import DeadLetter, LetExpire, Outcome


class HandlingObserver(Protocol):
    """Is told what became of every message and how long its handler took.

    No outcome means that its lease was lost, 0 seconds that no handler was begun.
    """

    def handled(self, message: Message, handler: str, outcome: Outcome | None, seconds: float) -> None: ...


def _random() -> float:
    return random.random()  # noqa: S311 - jitter, no secret


@dataclass(slots=True)
class HandlingSettings:
    """Set up by the runner before the first message; the same object for every handler."""

    on_failure: FailurePolicy = field(default_factory=FailurePolicy)
    on_poison: Outcome | None = (
        None  # None: dead letters if there are any, else the redrive policy's business
    )
    has_dead_letters: bool = False
    executor: Executor | None = None  # None: the event loop's own
    observer: HandlingObserver | None = None
    random: Callable[[], float] = _random
    monotonic: Callable[[], float] = time.monotonic

    def poison(self, error: BaseException, on_poison: Outcome | None = None) -> Outcome:
        """What becomes of a message of which no payload can be made."""
        outcome = on_poison or self.on_poison or (DeadLetter() if self.has_dead_letters else LetExpire())
        if isinstance(outcome, DeadLetter):
            return replace(outcome, reason=outcome.reason or str(error), error=error)
        return outcome
