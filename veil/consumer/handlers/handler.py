"""One function that handles messages one by one: from a message to what shall become of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from veil.consumer.handlers.payload import AnswerRefused, ItemFailed
from veil.consumer.handlers.running import (
    BatchMiddleware,
    CallNext,
    CallNextBatch,
    HandlingSettings,
    Judge,
    Middleware,
    around,
    around_batch,
    is_from_outside,
    run_async,
    run_sync,
)
from veil.consumer.handlers.signature import Signature, made
from veil.consumer.lease import Lease
from veil.consumer.message import CURRENT, Message
from veil.consumer.outcomes import Delete, FailurePolicy, Outcome, Release


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
        given = (payload, message, message.lease)
        cancelled_by = (message.lease,) if self._cancel_when_lost else ()
        return answered(await call(self.function, signature, given, self._settings, cancelled_by))


async def call(
    function: Callable[..., Any],
    signature: Signature,
    given: tuple[Any, Any, Any],
    settings: HandlingSettings,
    cancelled_by: Sequence[Lease],
) -> Any:
    """What a handler returns, called with payload, message, lease and what it depends on."""
    args, kwargs = signature.arguments(*given)
    if not signature.dependencies:
        return await _run(function, args, kwargs, signature.is_async, settings, cancelled_by)
    ended: list[BaseException | None] = []  # empty: not even begun
    async with contextlib.AsyncExitStack() as stack:
        known: dict[Callable[..., Any], Any] = {}
        for name, dependency in signature.dependencies:
            kwargs[name] = await made(dependency, given, stack, known, run_sync, settings.executor)
        try:
            result = await _run(function, args, kwargs, signature.is_async, settings, cancelled_by)
            ended.append(None)
        except BaseException as error:
            ended.append(error)
            raise
    # A dependency that swallows an error has not done the work: the message must not be deleted.
    if not ended:
        raise AnswerRefused("a dependency swallowed the error of another one, and the handler was not called")
    if ended[0] is not None:
        raise ended[0]
    return result


async def _run(
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    is_async: bool,
    settings: HandlingSettings,
    cancelled_by: Sequence[Lease],
) -> Any:
    bound = functools.partial(function, *args, **kwargs)
    if is_async:
        return await run_async(bound, cancelled_by, cancel=bool(cancelled_by))
    return await run_sync(bound, settings.executor)


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


# ---- batch results


def failed_ids(answer: Any, messages: Sequence[Message]) -> set[str]:
    """The ids of those that failed; raises AnswerRefused for an answer that cannot be understood.

    None and an empty list mean that all are done. Otherwise ids, messages, or the shape that Lambda uses. An id that is
    not in the batch makes the whole answer doubtful: whoever wrote it meant a message that would be deleted instead.
    """
    named = _named(answer)
    known = {message.id for message in messages}
    strangers = sorted(named - known)
    if strangers:
        raise AnswerRefused(
            f"the batch handler named {', '.join(map(repr, strangers[:3]))} as failed, "
            f"expected ids of its {len(known)} messages; all are taken as failed"
        )
    return named


def _named(answer: Any) -> set[str]:
    if answer is None:
        return set()
    if isinstance(answer, Mapping):
        if answer and "batchItemFailures" not in answer:
            raise _refused(answer)
        items = answer.get("batchItemFailures") or ()
        if not isinstance(items, Iterable) or isinstance(items, str):
            raise _refused(answer)
        return {_item_identifier(item) for item in items}
    if isinstance(answer, list | tuple | set | frozenset):
        return {_one(each) for each in answer}
    raise _refused(answer)


def _item_identifier(item: Any) -> str:
    identifier = item.get("itemIdentifier") if isinstance(item, Mapping) else None
    if isinstance(identifier, str):
        return identifier
    raise _refused(item)


def _one(each: Any) -> str:
    if isinstance(each, Message):
        return each.id
    if isinstance(each, str):
        return each
    raise _refused(each)


def _refused(answer: Any) -> AnswerRefused:
    return AnswerRefused(
        f"the batch handler returned {type(answer).__name__}, expected None, a list of failed ids or messages, or "
        '{"batchItemFailures": [{"itemIdentifier": id}]}; all are taken as failed'
    )


# ---- batch handlers


class BatchHandler:
    """A function that takes lists. An async one is cancelled only when every lease of its batch is lost."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        settings: HandlingSettings,
        *,
        batch: int,
        on_failure: FailurePolicy | None = None,
        on_poison: Outcome | None = None,
        cancel_when_lost: bool = True,
    ) -> None:
        self.function = function
        self.name = signature.name
        self.batch = batch
        self.is_async = signature.is_async
        self._signature = signature
        self._settings = settings
        self._judge = Judge(signature.name, settings, on_failure, on_poison)
        self._cancel_when_lost = cancel_when_lost
        self._middlewares: Sequence[BatchMiddleware] = ()

    def wrap(self, middlewares: Sequence[BatchMiddleware]) -> None:
        """Put these around the function, the first outermost."""
        self._middlewares = middlewares

    async def call(self, messages: Sequence[Message]) -> list[Outcome | None]:
        """One outcome for each message, in their order; None where the lease was lost.

        Never raises, except for a cancellation that came from outside.
        """
        began_s = self._settings.monotonic()
        held = [message for message in messages if not message.lease.lost]
        payloads, good, outcomes = self._decoded(held)
        if good:
            outcomes |= await self._handled(good, payloads)
        return [
            self._judge.conclude(
                message, outcomes.get(id(message)), began_s if id(message) in outcomes else None
            )
            for message in messages
        ]

    async def _handled(self, messages: list[Message], payloads: dict[int, Any]) -> dict[int, Outcome | None]:
        way: CallNextBatch = around_batch(self._middlewares, functools.partial(self._run, payloads))
        before = CURRENT.set(messages[0])
        try:
            found = await way(messages)
            _check_outcomes(found, messages)
            return {id(message): outcome for message, outcome in zip(messages, found, strict=True)}
        except BaseException as error:
            if is_from_outside(error):
                raise
            return {
                id(message): self._judge.failed(message, error, trace=message is messages[0])
                for message in messages
            }
        finally:
            CURRENT.reset(before)

    async def _run(self, payloads: dict[int, Any], messages: Sequence[Message]) -> list[Outcome]:
        leases = [message.lease for message in messages]
        wanted = [payloads[id(message)] for message in messages] if payloads else []
        # Lists of their own: what a handler does to its arguments must not reach the book-keeping.
        given = (wanted, list(messages), list(leases))
        cancelled_by = leases if self._cancel_when_lost else ()
        answer = await call(self.function, self._signature, given, self._settings, cancelled_by)
        failed = failed_ids(answer, messages)
        return [self._named(message) if message.id in failed else Delete() for message in messages]

    def _decoded(
        self, messages: Sequence[Message]
    ) -> tuple[dict[int, Any], list[Message], dict[int, Outcome | None]]:
        """Payloads, the messages that have one, and the outcomes of those that have none: poison fails alone."""
        decode = self._signature.decoder
        if decode is None:
            return {}, list(messages), {}
        payloads: dict[int, Any] = {}
        good: list[Message] = []
        outcomes: dict[int, Outcome | None] = {}
        halted: set[str | None] = set()
        for message in messages:
            if message.is_fifo and message.group in halted:
                # Its predecessor may come back: to handle it now would be out of order.
                outcomes[id(message)] = Release()
                continue
            try:
                payloads[id(message)] = decode(message.content)
            except Exception as error:
                outcomes[id(message)] = self._judge.failed(message, error)
                halted.add(message.group)
            else:
                good.append(message)
        return payloads, good, outcomes

    def _named(self, message: Message) -> Outcome:
        error = ItemFailed(f"the batch handler named message {message.id} as failed")
        # With its lease lost there is nothing to decide, and whatever is said here is not kept.
        return self._judge.failed(message, error, trace=False) or Release()


def _check_outcomes(found: object, messages: Sequence[Message]) -> None:
    if not isinstance(found, list) or not all(isinstance(each, Outcome) for each in found):
        raise AnswerRefused(f"a middleware returned {found!r}, expected a list of Outcomes")
    if len(found) != len(messages):
        raise AnswerRefused(
            f"a middleware returned {len(found)} outcomes, expected {len(messages)}, one for each message"
        )
