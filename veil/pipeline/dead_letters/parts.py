"""How the reading of a queue is divided, so that executors read side by side: by ranges of `seq`, the order of the queue.

Every message is in exactly one range, whenever it comes. Messages crowd where many were sent at once, so the ranges are
equal in time between the first and the last message, and there are more of them than executors.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from veil.pipeline.dead_letters.calls import DeadLetterQueue

# Fewer messages than this are read sooner than they are divided.
WORTH_DIVIDING: Final = 20_000
PARTS_MAX: Final = 32
_SEQ_MAX: Final = (1 << 63) - 1
_SECOND: Final = 1_000 << 20  # of `seq`, whose upper bits are milliseconds
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Part(NamedTuple):
    """The messages of a queue after the one `seq` and up to the other; None leaves an end open."""

    queue: str
    after: int | None
    up_to: int | None


def divided(queue: DeadLetterQueue, name: str) -> list[Part]:
    """The queue in as many parts as its messages are worth; in one where the server cannot begin in the middle."""
    counts = queue.attributes()
    parts = min(PARTS_MAX, sum(int(counts.get(each, "0")) for each in _COUNTS) // WORTH_DIVIDING)
    first = _next(queue, None)
    # A server that passes over `After` would give the first message here too.
    if parts < 2 or first is None or _next(queue, _SEQ_MAX) is not None:
        return [Part(name, None, None)]
    step = max(1, -(-(_last(queue, first) - first) // parts))
    edges = [first + step * number for number in range(1, parts)]
    return [Part(name, after, up_to) for after, up_to in zip([None, *edges], [*edges, None], strict=True)]


def _next(queue: DeadLetterQueue, after: int | None) -> int | None:
    found = queue.peek(1, after=after).messages
    return int(found[0].sequence_number) if found else None


def _last(queue: DeadLetterQueue, first: int) -> int:
    """Where the queue ends, to a hundredth of its length: found by halving, since it is looked at from its beginning."""
    low, length = first, _SECOND
    while (found := _next(queue, low + length)) is not None:
        low, length = found, 4 * length
    high = low + length
    while high - low > max(_SECOND, (high - first) // 100):
        middle = (low + high) // 2
        found = _next(queue, middle)
        if found is None:
            high = middle
        else:
            low = found
    return high
