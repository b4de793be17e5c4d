"""Work on thousands of messages through calls that take ten: several at once, each entry tried again on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from veil.consumer.message import ApiError
from veil.pipeline.queues.patience import PATIENCE_S, WORTH_RETRYING, Pauses

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE: Final = 8
ENTRIES: Final = 10


async def in_batches(
    items: Sequence[T],
    call: Callable[[Sequence[T]], Awaitable[list[R | ApiError]]],
    *,
    split: Callable[[Sequence[T]], list[list[int]]] | None = None,
    patience_s: float = PATIENCE_S,
) -> list[R | ApiError]:
    """What became of each item, in their order.

    `call` takes up to ten and says what became of each; what was throttled or unanswered is called again, without the rest
    of its batch, until the patience is over. `split` gives the places that go together (by tens where it is None).
    """
    results: list[R | ApiError | None] = [None] * len(items)
    batches = split(items) if split is not None else _by_tens(len(items))
    waiting = iter(batches)

    async def work() -> None:
        for batch in waiting:
            await _settle(items, batch, call, results, patience_s)

    await asyncio.gather(*(work() for _ in range(min(CALLS_AT_ONCE, len(batches)))))
    return [result for result in results if result is not None]


async def _settle(
    items: Sequence[T],
    places: list[int],
    call: Callable[[Sequence[T]], Awaitable[list[R | ApiError]]],
    results: list[R | ApiError | None],
    patience_s: float,
) -> None:
    pauses = Pauses(patience_s)
    while True:
        try:
            answers = await call([items[place] for place in places])
        except ApiError as error:
            answers = [error] * len(places)
        again = []
        for place, answer in zip(places, answers, strict=True):
            results[place] = answer
            if isinstance(answer, ApiError) and answer.failure in WORTH_RETRYING:
                again.append(place)
        if not again or not await pauses.pause():
            return
        places = again


def _by_tens(count: int) -> list[list[int]]:
    return [list(range(start, min(start + ENTRIES, count))) for start in range(0, count, ENTRIES)]
