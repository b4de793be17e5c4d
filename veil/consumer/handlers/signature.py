"""What a handler asks for, read once from its annotations when it is decorated.

One parameter is the payload; parameters of the types `Message` and `Lease` get these, in any place; one marked with `Depends` is
made for the call; any other one with a default keeps it.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from veil.consumer.handlers.payload import PAYLOAD_TYPES, Decoder, HandlerRefused, TypeRefused, decoder_for
from veil.consumer.lease import Lease
from veil.consumer.message import Message

# ---- what it needs besides its message: made for each message by functions that it names, and closed behind it


class Depends:
    """Marks a parameter whose value a function makes: `Annotated[Kind, Depends(function)]`, or as its default.

    def connection() -> Iterator[Connection]:
        with pool.connection() as open_one:
            yield open_one

    @app.handler
    def ship(order: Order, db: Annotated[Connection, Depends(connection)]) -> None: ...

    The function may be sync or async, may yield once instead of returning (what follows the yield runs when the message has been
    handled, and sees its error), and may itself ask for Message, Lease and further dependencies. Where several ask for the
    same function, it is called once for a message. Sync functions run in a thread.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"Depends({function!r}): expected a function")
        self.function = function


def depends_in(annotation: Any, default: Any) -> Depends | None:
    """The mark on a parameter, if it has one."""
    if isinstance(default, Depends):
        return default
    if typing.get_origin(annotation) is typing.Annotated:
        marks = [each for each in annotation.__metadata__ if isinstance(each, Depends)]
        return marks[-1] if marks else None
    return None


@dataclass(frozen=True, slots=True)
class Dependency:
    """A function, and what it is called with."""

    function: Callable[..., Any]
    given: tuple[tuple[str, int], ...]  # by name: the place in what a call has to give
    dependencies: tuple[tuple[str, Dependency], ...]

    @property
    def is_sync(self) -> bool:
        """Whether it, or one that it needs, runs in a thread."""
        is_async = is_coroutine_function(self.function) or inspect.isasyncgenfunction(self.function)
        return not is_async or any(below.is_sync for _, below in self.dependencies)


class Asked(IntEnum):
    """What one parameter is given; the number is its place in what a call has to give."""

    PAYLOAD = 0
    MESSAGE = 1
    LEASE = 2


@dataclass(frozen=True, slots=True)
class Signature:
    """How to call a handler."""

    name: str
    is_async: bool
    by_place: tuple[Asked, ...]
    by_name: tuple[tuple[str, Asked], ...]
    decoder: Decoder | None  # None: the handler wants no payload, only the message
    dependencies: tuple[tuple[str, Dependency], ...] = ()  # given by name

    def arguments(self, payload: Any, message: Any, lease: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call; in a batch each of the three is a list."""
        given = (payload, message, lease)
        by_name = {name: given[asked] for name, asked in self.by_name} if self.by_name else {}
        return [given[asked] for asked in self.by_place], by_name


def read_signature(function: Callable[..., Any], *, batch: bool = False, name: str = "") -> Signature:
    """How to call this function; raises HandlerRefused, naming the parameter, when it cannot be a handler."""
    name = name or handler_name(function)
    _check_kind(function, name)
    hints = _hints(function, name)
    by_place: list[Asked] = []
    by_name: list[tuple[str, Asked]] = []
    dependencies: list[tuple[str, Dependency]] = []
    payload: tuple[str, Any] | None = None
    places_end = False  # once a default was left alone, what follows can only be given by name
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, parameter.annotation)
        mark = depends_in(annotation, parameter.default)
        if mark is not None:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise HandlerRefused(name, f"parameter {parameter.name!r} is positional-only and has Depends")
            dependencies.append((parameter.name, _dependency(mark.function, name, batch, ())))
            places_end = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            problem = f"parameter '{parameter}' has no fixed meaning, expected named parameters"
            raise HandlerRefused(name, problem)
        if annotation is parameter.empty and parameter.default is parameter.empty:
            problem = f"parameter {parameter.name!r} has no annotation, expected one of {PAYLOAD_TYPES}"
            raise HandlerRefused(name, problem)
        asked = _asked(annotation, parameter, name, batch)
        if parameter.default is not parameter.empty and asked is Asked.PAYLOAD:
            places_end = True
            continue
        if asked is Asked.PAYLOAD:
            if payload is not None:
                raise HandlerRefused(
                    name,
                    f"parameters {payload[0]!r} and {parameter.name!r} both ask for the payload, expected one; "
                    "give the other a default, or annotate it with Message or Lease",
                )
            payload = (parameter.name, annotation)
        if parameter.kind is parameter.KEYWORD_ONLY or places_end:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise HandlerRefused(
                    name, f"parameter {parameter.name!r} is positional-only behind one with a default"
                )
            by_name.append((parameter.name, asked))
        else:
            by_place.append(asked)
    wanted = {*by_place, *(asked for _, asked in by_name)}
    if not wanted & {Asked.PAYLOAD, Asked.MESSAGE}:
        raise HandlerRefused(name, f"no parameter asks for the payload, expected one of {PAYLOAD_TYPES}")
    decoder = _payload_decoder(*payload, name, batch) if payload else None
    return Signature(
        name, is_coroutine_function(function), tuple(by_place), tuple(by_name), decoder, tuple(dependencies)
    )


def _dependency(
    function: Callable[..., Any], name: str, batch: bool, above: tuple[Callable[..., Any], ...]
) -> Dependency:
    """A function that a handler depends on, with all that it needs itself."""
    if function in above:
        way = " needs ".join(getattr(each, "__name__", repr(each)) for each in (*above, function))
        raise HandlerRefused(name, f"its dependencies go in a circle: {way}")
    hints = _hints(function.__init__ if isinstance(function, type) else function, name)  # type: ignore[misc]
    given: list[tuple[str, int]] = []
    dependencies: list[tuple[str, Dependency]] = []
    for parameter in _parameters(function):
        annotation = hints.get(parameter.name, parameter.annotation)
        mark = depends_in(annotation, parameter.default)
        if mark is not None:
            below = _dependency(mark.function, name, batch, (*above, function))
            dependencies.append((parameter.name, below))
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        asked = _asked(annotation, parameter, name, batch)
        if asked is not Asked.PAYLOAD:
            given.append((parameter.name, asked))
        elif parameter.default is parameter.empty:
            raise HandlerRefused(
                name,
                f"parameter {parameter.name!r} of the dependency {handler_name(function)}: expected Message, Lease, "
                "Depends(…) or a default",
            )
    return Dependency(function, tuple(given), tuple(dependencies))


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except (
        ValueError
    ):  # some of those that are not written in Python do not say; they are called with nothing
        return ()


def handler_name(function: Callable[..., Any]) -> str:
    """What the handler is called in logs and metrics."""
    function = _unbound(function)
    return getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await; also for objects whose class says so, but not for such a class."""
    if isinstance(function, type):
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _check_kind(function: Callable[..., Any], name: str) -> None:
    if not callable(function):
        raise HandlerRefused(name, f"{function!r} cannot be called")
    if isinstance(function, type):
        raise HandlerRefused(
            name, "is a class, expected a function: its objects would be made and thrown away"
        )
    inner = getattr(function, "__call__", None)  # noqa: B004
    # Calling one of these runs nothing: every message would be deleted unhandled.
    if any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (function, inner)
    ):
        raise HandlerRefused(name, "is a generator, expected a function that runs when it is called")


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    inner: Any = _unbound(function)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except (NameError, SyntaxError) as error:
        raise HandlerRefused(
            name, f"an annotation cannot be read: {error}; it must be importable at run time, at module level"
        ) from None


def _asked(annotation: Any, parameter: inspect.Parameter, name: str, batch: bool) -> Asked:
    plain = _without_none(annotation)
    for kind, asked in ((Message, Asked.MESSAGE), (Lease, Asked.LEASE)):
        if plain == (list[kind] if batch else kind):  # type: ignore[valid-type]
            return asked
        if plain == (kind if batch else list[kind]):  # type: ignore[valid-type]
            here, wanted = (f"{kind.__name__}", f"list[{kind.__name__}]")
            here, wanted = (here, wanted) if batch else (wanted, here)
            kinds = "a batch handler" if batch else "a handler of single messages"
            raise HandlerRefused(
                name, f"parameter {parameter.name!r} is {here}, expected {wanted} in {kinds}"
            )
    return Asked.PAYLOAD


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [each for each in typing.get_args(annotation) if each is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return annotation


def _payload_decoder(parameter: str, annotation: Any, name: str, batch: bool) -> Decoder:
    if batch:
        arguments = typing.get_args(annotation)
        if typing.get_origin(annotation) is not list or len(arguments) != 1:
            raise HandlerRefused(
                name, f"parameter {parameter!r} of a batch handler must be a list[…] of {PAYLOAD_TYPES}"
            )
        annotation = arguments[0]
    try:
        return decoder_for(annotation)
    except TypeRefused as error:
        raise HandlerRefused(name, f"parameter {parameter!r}: {error}") from None
