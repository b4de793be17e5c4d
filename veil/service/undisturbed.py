"""Await something to its end, though the one who asked may leave.

A receive that is cancelled while the store looks may have claimed messages, and only the store's answer tells
which. `asyncio.shield` would do, at the price of a task for every receive, several times the cost of all else
here. So a cancellation is held back until the answer is there, a few milliseconds at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Uncancellable:
    """What a task sees in place of the future it waits for: the same, except that it cannot be cancelled.

    Future-like as `asyncio.isfuture` has it. The task keeps the cancellation in mind and raises it once the
    future is done.
    """

    __slots__ = ("_asyncio_future_blocking", "add_done_callback", "get_loop")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._asyncio_future_blocking = True
        self.add_done_callback = future.add_done_callback
        self.get_loop = future.get_loop

    def cancel(self, msg: object = None) -> bool:
        return False


@coroutine
def undisturbed(work: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> Generator[Any, None, T]:
    """The result of the work; for a caller that was cancelled meanwhile, `undo` gets it instead."""
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            future = work.send(None)
        except StopIteration as end:
            result: T = end.value
            break
        except BaseException:
            if cancelled is not None:
                raise cancelled from None  # the work failed, so there is nothing to undo, and nobody to tell
            raise
        if future is None:  # a bare turn of the loop
            shell = None
        else:
            future._asyncio_future_blocking = False
            shell = _Uncancellable(future)
        try:
            yield shell
        except GeneratorExit:
            work.close()
            raise
        except asyncio.CancelledError as error:
            if future is None or not future.cancelled():
                cancelled = error
        except BaseException:  # noqa: S110 - the future's own failure: the work learns it from the future
            pass
    if cancelled is not None:
        undo(result)
        raise cancelled
    return result
