"""One function that handles messages one by one: from a message to what shall become of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from veil.consumer.failure_policy import FailurePolicy
from veil.consumer.handlers.errors import AnswerRefused
from veil.consumer.handlers.handling_settings import HandlingSettings
from veil.consumer.handlers.judging import Judge, is_from_outside
from veil.consumer.handlers.running import run_async, run_sync
from veil.consumer.handlers.signature import Signature
from veil.consumer.message import Message
from veil.consumer.middleware import CallNext, Middleware, around
from veil.consumer.outcome import Delete, Outcome
from veil.consumer.telemetry.logs import CURRENT


class Handler:
    """A function, how to call it, and what its failures mean."""

    batch: int | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        settings: HandlingSettings,
        *,
        on_failure: FailurePolicy | None = None,
        on_poison: Outcome | None = None,
        cancel_when_lost: bool = True,
    ) -> None:
        self.function = function
        self.name = signature.name
        self.is_async = signature.is_async
        self._signature = signature
        self._settings = settings
        self._judge = Judge(signature.name, settings, on_failure, on_poison)
        self._cancel_when_lost = cancel_when_lost
        self._way: CallNext = self._run

    def wrap(self, middlewares: Sequence[Middleware]) -> None:
        """Put these around the function, the first outermost."""
        self._way = around(middlewares, self._run)

    async def call(self, message: Message) -> Outcome | None:
        """Handle one message. None means that its lease was lost: do nothing, it is somebody else's now.

        Never raises, except for a cancellation that came from outside.
        """
        if message.lease.lost:
            return self._judge.conclude(message, None, None)
        began_s = self._settings.monotonic()
        outcome: Outcome | None
        before = CURRENT.set(message)
        try:
            outcome = await self._way(message)
            if not isinstance(outcome, Outcome):
                raise AnswerRefused(f"a middleware returned {outcome!r}, expected an Outcome")
        except BaseException as error:
            if is_from_outside(error):
                raise
            outcome = self._judge.failed(message, error)
        finally:
            CURRENT.reset(before)
        return self._judge.conclude(message, outcome, began_s)

    async def _run(self, message: Message) -> Outcome:
        signature = self._signature
        payload = None if signature.decoder is None else signature.decoder(message.content)
        args, kwargs = signature.arguments(payload, message, message.lease)
        call = functools.partial(self.function, *args, **kwargs)
        if self.is_async:
            result = await run_async(call, (message.lease,), cancel=self._cancel_when_lost)
        else:
            result = await run_sync(call, self._settings.executor)
        return answered(result)


def answered(result: Any) -> Outcome:
    """What a handler says by returning: an outcome as it is, anything else that it is done."""
    if result is None:
        return Delete()
    if isinstance(result, Outcome):
        return result
    if isinstance(result, type) and issubclass(result, Outcome):
        # Taken as "done", the message would be deleted against what was meant.
        raise AnswerRefused(f"the handler returned the class {result.__name__}, expected {result.__name__}()")
    return Delete()
