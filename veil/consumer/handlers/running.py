"""Running a function for messages, in this task or in a thread, with its middleware; and judging what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final

from veil.consumer.error_reports import told, users_traceback
from veil.consumer.handlers.payload import AnswerRefused, HandlingCancelled, PayloadRefused
from veil.consumer.handlers.signature import Dependency, is_coroutine_function
from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.consumer.outcomes import (
    DeadLetter,
    Delete,
    Drop,
    FailurePolicy,
    Fatal,
    LetExpire,
    Outcome,
    RetryAfter,
    RetryNow,
    Stop,
    Verdict,
    label,
    settled,
)

_log = logging.getLogger(__name__)


# ---- middleware
#
#     async def timed(message: Message, call_next: CallNext) -> Outcome:
#         ...
#         return await call_next(message)
#
# The first registered is the outermost. What the handler raises comes through as an exception, and the failure policy
# judges it outside all of them; so a middleware may catch it, add to it, or answer with an outcome of its own.
# One that has a method `call_batch` takes part around batch handlers too; a plain function does not.

CallNext = Callable[[Message], Awaitable[Outcome]]
Middleware = Callable[[Message, CallNext], Awaitable[Outcome]]

# One outcome for each message, in their order.
CallNextBatch = Callable[[Sequence[Message]], Awaitable[list[Outcome]]]
BatchMiddleware = Callable[[Sequence[Message], CallNextBatch], Awaitable[list[Outcome]]]


class MiddlewareRefused(TypeError):
    """The object cannot be a middleware."""


def check_middleware(middleware: Any) -> None:
    """Raise MiddlewareRefused unless it is `async (message, call_next)`."""
    if not callable(middleware) or not is_coroutine_function(middleware):
        raise MiddlewareRefused(
            f"middleware {getattr(middleware, '__qualname__', middleware)!r} is not a coroutine function, "
            "expected async def (message, call_next) -> Outcome"
        )


def around(middlewares: Sequence[Callable[[Any, Any], Any]], handler: Any) -> Any:
    """The handler, of one message or of a batch, inside all of them, the first outermost."""
    for middleware in reversed(middlewares):
        handler = functools.partial(_through, middleware, handler)
    return handler


def _through(middleware: Any, call_next: Any, given: Any) -> Any:
    return middleware(given, call_next)


# ---- shared by all handlers


@dataclass(slots=True)
class HandlingSettings:
    """Set up by the runner before the first message; the same object for every handler."""

    on_failure: FailurePolicy = field(default_factory=FailurePolicy)
    # None: dead letters if there are any, else the redrive policy's business.
    on_poison: Outcome | None = None
    has_dead_letters: bool = False
    error_texts: bool = True  # reported with a failed attempt
    executor: Executor | None = None  # None: the event loop's own
    # Called with every message, its handler's name, the outcome (None: the lease was lost), and the seconds that it took (0: no
    # handler was begun).
    observer: Callable[[Message, str, Outcome | None, float], None] | None = None
    random: Callable[[], float] = random.random
    monotonic: Callable[[], float] = time.monotonic

    def poison(self, error: BaseException, on_poison: Outcome | None = None) -> Outcome:
        """What becomes of a message of which no payload can be made."""
        outcome = on_poison or self.on_poison or (DeadLetter() if self.has_dead_letters else LetExpire())
        if isinstance(outcome, DeadLetter):
            return replace(outcome, reason=outcome.reason or str(error), error=error)
        return outcome


# ---- judging outcomes

# A message that is held and waits for a free slot is not worked on. Shorter waits than these change no timeout and no route,
# and are not worth a header.
_WAIT_TOLD_S: Final = 0.1
_WAIT_TOLD_SHARE: Final = 0.01


def is_from_outside(error: BaseException) -> bool:
    """Whether the task is being ended from outside, rather than the handler failing."""
    if isinstance(error, GeneratorExit):
        return True
    if not isinstance(error, asyncio.CancelledError):
        return False
    # A handler that awaits something cancelled elsewhere raises the same class without anybody meaning this task.
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Judge:
    """Turns the way in which one handler ended into an outcome."""

    def __init__(
        self,
        name: str,
        settings: HandlingSettings,
        on_failure: FailurePolicy | None,
        on_poison: Outcome | None,
    ) -> None:
        self.name = name
        self._settings, self._on_failure, self._on_poison = settings, on_failure, on_poison

    def failed(self, message: Message, error: BaseException, *, trace: bool = True) -> Outcome | None:
        """What becomes of a message whose handling ended in this error; `trace`: whether to log the traceback."""
        if message.lease.lost or isinstance(error, HandlingCancelled):
            return None
        policy = self._on_failure or self._settings.on_failure
        error = policy.meant(error)
        trail = users_traceback(error)
        exc_info = (type(error), error, trail) if trace else None
        if not isinstance(error, Drop | RetryNow | Stop):  # those were not tried, or are done with
            message.failed_with = error, trail, self._settings.error_texts
        if isinstance(error, PayloadRefused):
            outcome = self._settings.poison(error, self._on_poison)
            self._say(logging.ERROR, "poison: %s", message, outcome, error)
        elif isinstance(error, SystemExit | KeyboardInterrupt):
            outcome = Fatal(told(error))
            self._say(logging.ERROR, "ended the process: %s", message, outcome, error, exc_info)
        else:
            outcome = policy.decide(error, message)
            outcome = settled(outcome, message.lease, message.receive_count, self._settings.random)
            if isinstance(error, Verdict):
                self._say(logging.INFO, "said: %s", message, outcome, error)
            else:
                self._say(logging.WARNING, "failed: %s", message, outcome, error, exc_info)
        if isinstance(outcome, DeadLetter):
            outcome = replace(outcome, handler=outcome.handler or self.name)
        return outcome

    def conclude(self, message: Message, outcome: Outcome | None, began_s: float | None) -> Outcome | None:
        """The outcome that the runner is to carry out; None once the lease is lost, whatever the handler said."""
        now_s = self._settings.monotonic()
        if message.lease.lost_by(now_s) or outcome is None:
            outcome = None
            _log.warning(
                "handler %s lost its lease, the result is not kept: %s; message %s",
                self.name,
                message.lease.why or "unknown why",
                message.id,
                extra=message.extra(handler=self.name, outcome=label(None)),
            )
        elif not isinstance(outcome, Delete):
            outcome = settled(outcome, message.lease, message.receive_count, self._settings.random)
        seconds = 0.0 if began_s is None else now_s - began_s
        waited_s = now_s - message.lease.received_at_s - seconds
        if waited_s >= max(_WAIT_TOLD_S, seconds * _WAIT_TOLD_SHARE):
            message.worked_ms = round(seconds * 1000)
        if isinstance(outcome, Delete) and _log.isEnabledFor(logging.DEBUG):
            extra = message.extra(handler=self.name, outcome=label(outcome), seconds=round(seconds, 6))
            text = "handler %s took %.3f s; message %s, receive %d"
            _log.debug(text, self.name, seconds, message.id, message.receive_count, extra=extra)
        observer = self._settings.observer
        if observer is not None:
            try:
                observer(message, self.name, outcome, seconds)
            except Exception:
                _log.exception("the observer of handled messages failed")
        return outcome

    def _say(
        self,
        level: int,
        text: str,
        message: Message,
        outcome: Outcome,
        error: BaseException,
        exc_info: tuple[type[BaseException], BaseException, TracebackType | None] | None = None,
    ) -> None:
        after = f" {outcome.seconds:g} s" if isinstance(outcome, RetryAfter) else ""
        _log.log(
            level,
            f"handler %s {text}; outcome %s%s; message %s, receive %d",
            self.name,
            told(error),
            label(outcome),
            after,
            message.id,
            message.receive_count,
            exc_info=exc_info,
            extra=message.extra(handler=self.name, outcome=label(outcome)),
        )


# ---- running functions


async def run_async(begun: Awaitable[Any], leases: Sequence[Lease]) -> Any:
    """The result of a coroutine, awaited in the present task; raises HandlingCancelled when every lease is lost. Without leases
    nothing cancels it."""
    if not leases:
        return await begun
    watch = _Watch(leases)
    try:
        result = await begun
    except asyncio.CancelledError:
        if watch.close():
            raise HandlingCancelled(leases[0].why) from None
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
            # The traceback holds this frame: without this, each failure would wait for the collector.
            del error
    if inspect.isawaitable(result):
        with contextlib.suppress(AttributeError):
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


async def made(
    dependency: Dependency,
    given: tuple[Any, ...],
    stack: contextlib.AsyncExitStack,
    known: dict[Callable[..., Any], Any],
    executor: Executor | None,
) -> Any:
    """The value of a dependency; what must be closed behind it is left on the stack."""
    function = dependency.function
    if function in known:
        return known[function]
    arguments = {name: given[place] for name, place in dependency.given}
    for name, other in dependency.dependencies:
        arguments[name] = await made(other, given, stack, known, executor)
    call = functools.partial(function, **arguments)
    value: Any
    if inspect.isasyncgenfunction(function):
        value = await stack.enter_async_context(contextlib.asynccontextmanager(function)(**arguments))
    elif inspect.isgeneratorfunction(function):
        manager = contextlib.contextmanager(function)(**arguments)
        value = await run_sync(manager.__enter__, executor)

        async def leave(*error: Any) -> Any:
            return await run_sync(functools.partial(manager.__exit__, *error), executor)

        stack.push_async_exit(leave)
    elif is_coroutine_function(function):
        value = await call()
    else:
        value = await run_sync(call, executor)
    known[function] = value
    return value


class _Watch:
    """Cancels the present task when every one of its leases is lost, and takes that back afterwards.

    The same way of counting as asyncio.timeout: a cancellation from elsewhere goes through.
    """

    __slots__ = ("_cancelling_before", "_fired", "_left", "_loop", "_open", "_task")

    def __init__(self, leases: Sequence[Lease]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = task.get_loop()
        self._cancelling_before = task.cancelling()
        self._left = len(leases)
        self._open, self._fired = True, False
        for lease in leases:
            lease.when_lost(self._lost_somewhere)

    def _lost_somewhere(self) -> None:
        # Called from whichever thread noticed; the loop may be gone by then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._one_lost)

    def _one_lost(self) -> None:
        self._left -= 1
        if self._open and self._left == 0:
            self._fired = True
            self._task.cancel()

    def close(self) -> bool:
        """Stop watching; True when the task was cancelled by this alone."""
        self._open = False
        return self._fired and self._task.uncancel() <= self._cancelling_before
