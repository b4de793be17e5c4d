"""Running a function for messages: in this task or in a thread, until it ends or its leases are lost."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from veil.consumer.handlers.errors import AnswerRefused, LeaseLost
from veil.consumer.lease import Lease


async def run_async(call: Callable[[], Any], leases: Sequence[Lease], *, cancel: bool = True) -> Any:
    """The result of a coroutine, awaited in the present task; LeaseLost when it was cancelled because every lease was."""
    if not cancel:
        return await call()
    watch = _Watch(leases)
    try:
        result = await call()
    except asyncio.CancelledError:
        if watch.close():
            raise LeaseLost(leases[0].why) from None
        raise
    except BaseException:
        watch.close()
        raise
    watch.close()
    return result


async def run_sync(call: Callable[[], Any], executor: Executor | None) -> Any:
    """The result of a function run in a thread, with this task's context variables."""
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    result, error = await loop.run_in_executor(executor, context.run, _caught, call)
    if error is not None:
        try:
            raise error
        finally:
            del (
                error
            )  # the traceback holds this frame: without this, each failure would wait for the collector
    if inspect.isawaitable(result):
        with suppress(AttributeError):
            result.close()  # type: ignore[attr-defined]
        raise AnswerRefused("the function returned something to await, so nothing was run; declare it async")
    return result


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    # Carried as a value: a future can hold neither StopIteration, on which the waiting task would hang for ever, nor
    # SystemExit without ending the pool's thread.
    try:
        return call(), None
    except BaseException as error:
        return None, error


class _Watch:
    """Cancels the present task when every one of its leases is lost, and takes that back afterwards.

    The same way of counting as asyncio.timeout: a cancellation from elsewhere is told apart and goes through.
    """

    def __init__(self, leases: Sequence[Lease]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling_before = task.cancelling()
        self._left = len(leases)
        self._open, self._fired = True, False
        for lease in leases:
            lease.when_lost(self._lost_somewhere)

    def _lost_somewhere(self) -> None:
        # Called from whichever thread noticed; the loop may be gone by then.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._one_lost)

    def _one_lost(self) -> None:
        self._left -= 1
        if self._open and self._left == 0:
            self._fired = True
            self._task.cancel()

    def close(self) -> bool:
        """Stop watching; True when the task was cancelled by this and by nobody else."""
        self._open = False
        return self._fired and self._task.uncancel() <= self._cancelling_before
