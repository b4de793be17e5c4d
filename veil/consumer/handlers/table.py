"""The handlers of a consumer, which of them a message is for, and how one goes from a message to what becomes of it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

from veil.consumer.handlers.payload import AnswerRefused, HandlerRefused, ItemFailed, PayloadRefused
from veil.consumer.handlers.running import (
    BatchMiddleware,
    CallNext,
    CallNextBatch,
    HandlingSettings,
    Judge,
    Middleware,
    around,
    check_middleware,
    is_from_outside,
    made,
    run_async,
    run_sync,
)
from veil.consumer.handlers.signature import Signature, handler_name, read_signature
from veil.consumer.lease import Lease
from veil.consumer.message import CURRENT, Message
from veil.consumer.outcomes import Delete, Discard, FailurePolicy, FailureSpec, Outcome, Release, Verdict


class _Handling(Judge):
    """A function, how to call it, and what its failures mean; `batch` is how many messages it takes at most, None for one."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        settings: HandlingSettings,
        *,
        batch: int | None,
        on_failure: FailurePolicy | None,
        on_poison: Outcome | None,
        cancel_when_lost: bool,
    ) -> None:
        super().__init__(signature.name, settings, on_failure, on_poison)
        self.function, self.batch, self.is_async = function, batch, signature.is_async
        self._signature, self._cancel_when_lost = signature, cancel_when_lost
        self.is_sync = not signature.is_async or any(each.is_sync for _, each in signature.dependencies)

    def _call(self, payload: Any, message: Any, lease: Any, held: Sequence[Lease]) -> Awaitable[Any]:
        """What the function returns, called with what it asks for; cancelled once all leases that it holds are lost."""
        args, kwargs = self._signature.arguments(payload, message, lease)
        if self._signature.dependencies:
            return self._call_with_dependencies((payload, message, lease), args, kwargs, held)
        return self._begun(args, kwargs, held)

    def _begun(self, args: list[Any], kwargs: dict[str, Any], held: Sequence[Lease]) -> Awaitable[Any]:
        if self.is_async:
            return run_async(self.function(*args, **kwargs), held if self._cancel_when_lost else ())
        return run_sync(functools.partial(self.function, *args, **kwargs), self._settings.executor)

    async def _call_with_dependencies(
        self, given: tuple[Any, Any, Any], args: list[Any], kwargs: dict[str, Any], held: Sequence[Lease]
    ) -> Any:
        ended: list[BaseException | None] = []  # empty: not even begun
        async with contextlib.AsyncExitStack() as stack:
            known: dict[Callable[..., Any], Any] = {}
            for name, dependency in self._signature.dependencies:
                kwargs[name] = await made(dependency, given, stack, known, self._settings.executor)
            try:
                result = await self._begun(args, kwargs, held)
                ended.append(None)
            except BaseException as error:
                ended.append(error)
                raise
        # A dependency that swallows an error has not done the work: the message must not be deleted.
        if not ended:
            raise AnswerRefused(
                "a dependency swallowed the error of another one, and the handler was not called"
            )
        if ended[0] is not None:
            raise ended[0]
        return result


class Handler(_Handling):
    """A function that takes one message."""

    _way: CallNext | None = None

    def wrap(self, middlewares: Sequence[Middleware]) -> None:
        """Put these around the function, the first outermost."""
        self._way = around(middlewares, self._run)

    async def call(self, message: Message) -> Outcome | None:
        """Handle one message. None means that its lease was lost: do nothing, another consumer may hold it.

        Never raises, except for a cancellation that came from outside.
        """
        began_s = self._settings.monotonic()
        if message.lease.lost_by(began_s):
            return self.conclude(message, None, None)
        outcome: Outcome | None
        before = CURRENT.set(message)
        try:
            outcome = await (self._way or self._run)(message)
            if not isinstance(outcome, Outcome):
                raise AnswerRefused(f"a middleware returned {outcome!r}, expected an Outcome")
        except BaseException as error:
            if is_from_outside(error):
                raise
            outcome = self.failed(message, error)
        finally:
            CURRENT.reset(before)
        return self.conclude(message, outcome, began_s)

    async def _run(self, message: Message) -> Outcome:
        decoder, lease = self._signature.decoder, message.lease
        payload = None if decoder is None else decoder(message.content)
        return answered(await self._call(payload, message, lease, (lease,)))


def answered(result: Any) -> Outcome:
    """What a handler says by returning: an outcome as it is, anything else that it is done."""
    if result is None:
        return Delete()
    if isinstance(result, Outcome):
        return result
    # Taken as "done", the message would be deleted against what was meant.
    if inspect.iscoroutine(result):
        result.close()
        raise AnswerRefused(
            "the handler returned a coroutine that was never awaited, expected it to `await` that"
        )
    kind = result if isinstance(result, type) else type(result)
    if issubclass(kind, Outcome | Verdict):
        wanted = f"{kind.__name__}()" if issubclass(kind, Outcome) else f"it to `raise {kind.__name__}()`"
        raise AnswerRefused(f"the handler returned {result!r}, expected {wanted}")
    return Delete()


# ---- batch results


def failed_ids(answer: Any, messages: Sequence[Message]) -> set[str]:
    """The ids of those that failed; raises AnswerRefused for an answer that cannot be understood.

    None and an empty list mean that all are done. Otherwise ids, messages, or the shape that Lambda uses. An id that is
    not in the batch makes the whole answer doubtful: a message that was meant to fail would be deleted.
    """
    items = () if answer is None else answer
    in_lambdas_shape = isinstance(answer, Mapping) and (not answer or "batchItemFailures" in answer)
    if in_lambdas_shape:
        items = answer.get("batchItemFailures") or ()
    if not isinstance(items, list | tuple | set | frozenset):
        raise _refused(answer)
    named: set[str] = set()
    for item in items:
        if in_lambdas_shape:
            each = item.get("itemIdentifier") if isinstance(item, Mapping) else None
        else:
            each = item.id if isinstance(item, Message) else item
        if not isinstance(each, str):
            raise _refused(item)
        named.add(each)
    known = {message.id for message in messages}
    strangers = sorted(named - known)
    if strangers:
        raise AnswerRefused(
            f"the batch handler named {', '.join(map(repr, strangers[:3]))} as failed, "
            f"expected ids of its {len(known)} messages; all are taken as failed"
        )
    return named


def _refused(answer: Any) -> AnswerRefused:
    return AnswerRefused(
        f"the batch handler returned {type(answer).__name__}, expected None, a list of failed ids or messages, or "
        '{"batchItemFailures": [{"itemIdentifier": id}]}; all are taken as failed'
    )


# ---- batch handlers


class BatchHandler(_Handling):
    """A function that takes lists. An async one is cancelled only when every lease of its batch is lost."""

    _middlewares: Sequence[BatchMiddleware] = ()

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
            self.conclude(message, outcomes.get(id(message)), began_s if id(message) in outcomes else None)
            for message in messages
        ]

    async def _handled(self, messages: list[Message], payloads: dict[int, Any]) -> dict[int, Outcome | None]:
        way: CallNextBatch = around(self._middlewares, functools.partial(self._run, payloads))
        before = CURRENT.set(messages[0])
        try:
            found = await way(messages)
            _check_outcomes(found, messages)
            return {id(message): outcome for message, outcome in zip(messages, found, strict=True)}
        except BaseException as error:
            if is_from_outside(error):
                raise
            return {
                id(message): self.failed(message, error, trace=message is messages[0]) for message in messages
            }
        finally:
            CURRENT.reset(before)

    async def _run(self, payloads: dict[int, Any], messages: Sequence[Message]) -> list[Outcome]:
        leases = [message.lease for message in messages]
        wanted = [payloads[id(message)] for message in messages] if payloads else []
        # Lists of their own: what a handler does to its arguments must not reach the book-keeping.
        answer = await self._call(wanted, list(messages), list(leases), leases)
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
                outcomes[id(message)] = self.failed(message, error)
                halted.add(message.group)
            else:
                good.append(message)
        return payloads, good, outcomes

    def _named(self, message: Message) -> Outcome:
        error = ItemFailed(f"the batch handler named message {message.id} as failed")
        # With its lease lost there is nothing to decide, and whatever is said here is not kept.
        return self.failed(message, error, trace=False) or Release()


def _check_outcomes(found: object, messages: Sequence[Message]) -> None:
    if not isinstance(found, list) or not all(isinstance(each, Outcome) for each in found):
        raise AnswerRefused(f"a middleware returned {found!r}, expected a list of Outcomes")
    if len(found) != len(messages):
        raise AnswerRefused(
            f"a middleware returned {len(found)} outcomes, expected {len(messages)}, one for each message"
        )


_log = logging.getLogger(__name__)

BATCH_MAX: Final = 10_000
NO_HANDLER: Final = "none"  # the name under which messages without a handler are counted

_F = TypeVar("_F", bound=Callable[..., Any])


class HandlerTable:
    """Chooses by message type: the handler of that type, else the one without a type, else none.

    `on_unknown` says what becomes of a message without a handler: "poison" like an undecodable one, "ignore" takes it
    out of the queue, or any outcome.
    """

    def __init__(
        self,
        settings: HandlingSettings | None = None,
        *,
        on_failure: FailureSpec | None = None,
        on_unknown: str | Outcome = "poison",
    ) -> None:
        self.settings = settings or HandlingSettings()
        if on_failure is not None:
            self.settings.on_failure = FailurePolicy(on_failure)
        if not isinstance(on_unknown, Outcome) and on_unknown not in ("poison", "ignore"):
            raise ValueError(f"on_unknown is {on_unknown!r}, expected 'poison', 'ignore' or an Outcome")
        self._on_unknown = on_unknown
        self._typed: dict[str, Handler | BatchHandler] = {}
        self._untyped: Handler | BatchHandler | None = None
        self._middlewares: list[Middleware] = []
        self._batch_middlewares: list[BatchMiddleware] = []

    @overload
    def handler(self, function: _F, /) -> _F: ...
    @overload
    def handler(
        self,
        function: None = None,
        /,
        *,
        type: str | Iterable[str] | None = None,
        batch: int | None = None,
        on_failure: FailureSpec | None = None,
        on_poison: Outcome | None = None,
        cancel_when_lost: bool = True,
        name: str = "",
    ) -> Callable[[_F], _F]: ...
    def handler(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        type: str | Iterable[str] | None = None,
        batch: int | None = None,
        on_failure: FailureSpec | None = None,
        on_poison: Outcome | None = None,
        cancel_when_lost: bool = True,
        name: str = "",
    ) -> Any:
        """Make a function a handler, for one or several types or for all that no other is for; returns it unchanged."""

        def decorate(given: Callable[..., Any]) -> Callable[..., Any]:
            known_as = name or handler_name(given)
            _check_options(batch, on_poison, known_as)
            signature = read_signature(given, batch=batch is not None, name=known_as)
            policy = None if on_failure is None else FailurePolicy(on_failure)
            made: Handler | BatchHandler = (Handler if batch is None else BatchHandler)(
                given,
                signature,
                self.settings,
                batch=batch,
                on_failure=policy,
                on_poison=on_poison,
                cancel_when_lost=cancel_when_lost,
            )
            self._add(made, type)
            self._wrap(made)
            return given

        return decorate if function is None else decorate(function)

    def use(self, middleware: Middleware, *, outermost: bool = False) -> Middleware:
        """Put a middleware around every handler, inside those registered before it or around them; returns it unchanged."""
        check_middleware(middleware)
        self._middlewares.insert(0 if outermost else len(self._middlewares), middleware)
        batch_variant = getattr(middleware, "call_batch", None)
        if batch_variant is not None:
            self._batch_middlewares.insert(0 if outermost else len(self._batch_middlewares), batch_variant)
        for handler in self.handlers:
            self._wrap(handler)
        return middleware

    @property
    def handlers(self) -> list[Handler | BatchHandler]:
        """Every handler, once."""
        found = [*self._typed.values(), *([self._untyped] if self._untyped else [])]
        return list(dict.fromkeys(found))

    @property
    def has_sync(self) -> bool:
        """Whether any handler, or what it depends on, needs a thread."""
        return any(handler.is_sync for handler in self.handlers)

    def pick(self, message: Message) -> Handler | BatchHandler | None:
        """The message's handler; None if it has none, and `unhandled` decides its outcome."""
        # Without typed handlers the type need not be known, and the body not be looked into.
        if self._typed:
            kind = message.type
            if kind is not None and kind in self._typed:
                return self._typed[kind]
        return self._untyped

    def unhandled(self, message: Message) -> Outcome | None:
        """The outcome of a message without a handler."""
        judge = Judge(NO_HANDLER, self.settings, None, None)
        if self._on_unknown == "poison":
            error = PayloadRefused(f"no handler for messages of type {message.type!r}")
            return judge.conclude(message, judge.failed(message, error), None)
        outcome = self._on_unknown if isinstance(self._on_unknown, Outcome) else Discard()
        _log.debug("no handler for messages of type %r", message.type, extra=message.extra())
        return judge.conclude(message, outcome, None)

    def _add(self, handler: Handler | BatchHandler, type: str | Iterable[str] | None) -> None:
        if type is None:
            if self._untyped is not None:
                raise HandlerRefused(
                    handler.name,
                    f"{self._untyped.name} handles all messages already; give one of them a type",
                )
            self._untyped = handler
            return
        kinds = [type] if isinstance(type, str) else list(type) if isinstance(type, Iterable) else []
        if not kinds or not all(isinstance(kind, str) and kind for kind in kinds):
            raise HandlerRefused(handler.name, f"type is {type!r}, expected a message type or several")
        for kind in kinds:
            if kind in self._typed:
                raise HandlerRefused(handler.name, f"{self._typed[kind].name} handles type {kind!r} already")
        self._typed.update(dict.fromkeys(kinds, handler))

    def _wrap(self, handler: Handler | BatchHandler) -> None:
        if isinstance(handler, Handler):
            handler.wrap(self._middlewares)
        else:
            handler.wrap(self._batch_middlewares)


def _check_options(batch: object, on_poison: object, name: str) -> None:
    if not isinstance(on_poison, Outcome | None):
        raise HandlerRefused(
            name, f"on_poison is {on_poison!r}, expected an outcome, such as DeadLetter() or LetExpire()"
        )
    if batch is None:
        return
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= BATCH_MAX:
        raise HandlerRefused(name, f"batch is {batch!r}, expected a number from 1 to {BATCH_MAX:,}")
