"""What runs around handlers: each middleware is given the message and the rest of the way to go.

    async def timed(message: Message, call_next: CallNext) -> Outcome:
        ...
        return await call_next(message)

The first registered is the outermost. What the handler raises comes through as an exception, and the failure policy
judges it outside all of them; so a middleware may catch it, add to it, or answer with an outcome of its own.
One that has a method `call_batch` takes part around batch handlers too; a plain function does not.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from veil.consumer.handlers.signature import is_coroutine_function
from veil.consumer.message import Message
from veil.consumer.outcome import Outcome

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


def around(middlewares: Sequence[Middleware], handler: CallNext) -> CallNext:
    """The handler inside all of them, the first outermost."""
    for middleware in reversed(middlewares):
        handler = functools.partial(_through, middleware, handler)
    return handler


def around_batch(middlewares: Sequence[BatchMiddleware], handler: CallNextBatch) -> CallNextBatch:
    """The same for a batch."""
    for middleware in reversed(middlewares):
        handler = functools.partial(_through, middleware, handler)
    return handler


def _through(middleware: Any, call_next: Any, given: Any) -> Any:
    return middleware(given, call_next)
