"""How long something keeps the event loop to itself, while which nobody else is served."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopTime(Generic[T]):
    """Awaits something and adds up the time between its waits; what happens while it waits is not its own."""

    def __init__(self, awaited: Awaitable[T]) -> None:
        self._steps = awaited.__await__()
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        step = partial(next, self._steps)
        while True:
            begun_s = perf_counter()
            try:
                waited_for = step()
            except StopIteration as end:
                answer: T = end.value
                return answer
            finally:
                self.seconds += perf_counter() - begun_s
            try:
                yield waited_for
            except BaseException as thrown:  # a cancellation, or what the wait came to
                step = partial(self._steps.throw, thrown)
            else:
                step = partial(next, self._steps)
