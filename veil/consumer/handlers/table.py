"""The handlers of a consumer, and which of them a message is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, overload

from veil.consumer.handlers.handler import BatchHandler, Handler
from veil.consumer.handlers.payload import HandlerRefused, PayloadRefused
from veil.consumer.handlers.running import (
    BatchMiddleware,
    HandlingSettings,
    Judge,
    Middleware,
    check_middleware,
)
from veil.consumer.handlers.signature import handler_name, read_signature
from veil.consumer.message import Message
from veil.consumer.outcomes import Discard, FailurePolicy, FailureSpec, Outcome

_log = logging.getLogger(__name__)

BATCH_MAX: Final = 10_000
NO_HANDLER: Final = "none"  # the name under which messages without a handler are counted

_F = TypeVar("_F", bound=Callable[..., Any])


class HandlerTable:
    """Chooses by message type: the handler of that type, else the one without a type, else nobody.

    `on_unknown` says what becomes of a message that is for nobody: "poison" like an undecodable one, "ignore" takes it
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
            _check_batch(batch, known_as)
            signature = read_signature(given, batch=batch is not None, name=known_as)
            policy = None if on_failure is None else FailurePolicy(on_failure)
            made: Handler | BatchHandler
            if batch is None:
                made = Handler(
                    given,
                    signature,
                    self.settings,
                    on_failure=policy,
                    on_poison=on_poison,
                    cancel_when_lost=cancel_when_lost,
                )
            else:
                made = BatchHandler(
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

    def use(self, middleware: Middleware) -> Middleware:
        """Put a middleware around every handler, inside those registered before it; returns it unchanged."""
        check_middleware(middleware)
        self._middlewares.append(middleware)
        batch_variant = getattr(middleware, "call_batch", None)
        if batch_variant is not None:
            self._batch_middlewares.append(batch_variant)
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
        """Whether any handler needs a thread."""
        return any(not handler.is_async for handler in self.handlers)

    def pick(self, message: Message) -> Handler | BatchHandler | None:
        """Whom the message is for; None for nobody, of which `unhandled` knows the outcome."""
        # Without typed handlers the type need not be known, and the body not be looked into.
        if self._typed:
            kind = message.type
            if kind is not None and kind in self._typed:
                return self._typed[kind]
        return self._untyped

    def unhandled(self, message: Message) -> Outcome | None:
        """What becomes of a message that is for nobody."""
        judge = Judge(NO_HANDLER, self.settings, None, None)
        if self._on_unknown == "poison":
            error = PayloadRefused(f"no handler for messages of type {message.type!r}")
            return judge.conclude(message, judge.failed(message, error), None)
        outcome = self._on_unknown if isinstance(self._on_unknown, Outcome) else Discard()
        _log.debug("no handler for messages of type %r", message.type, extra={"facts": message.facts})
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
        kinds = [type] if isinstance(type, str) else list(type)
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


def _check_batch(batch: int | None, name: str) -> None:
    if batch is None:
        return
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= BATCH_MAX:
        raise HandlerRefused(name, f"batch is {batch!r}, expected a number from 1 to {BATCH_MAX:,}")
