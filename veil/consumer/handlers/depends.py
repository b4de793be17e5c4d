"""What a handler needs besides its message: made for each message by functions that it names, and closed behind it.

def connection() -> Iterator[Connection]:
    with pool.connection() as open_one:
        yield open_one

@app.handler
def ship(order: Order, db: Annotated[Connection, Depends(connection)]) -> None: ...
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from veil.consumer.handlers.payload import HandlerRefused

RunSync = Callable[[Callable[[], Any], Executor | None], Awaitable[Any]]


class Depends:
    """Marks a parameter whose value a function makes: `Annotated[Kind, Depends(function)]`, or as its default.

    The function may be sync or async, may yield once instead of returning (what follows the yield runs when the message has been
    handled, and is told of an error), and may itself ask for Message, Lease and further dependencies. Where several ask for the
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
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)


async def made(
    dependency: Dependency,
    given: tuple[Any, ...],
    stack: contextlib.AsyncExitStack,
    known: dict[Callable[..., Any], Any],
    run_sync: RunSync,
    executor: Executor | None,
) -> Any:
    """The value of a dependency; what must be closed behind it is left on the stack."""
    function = dependency.function
    if function in known:
        return known[function]
    arguments = {name: given[place] for name, place in dependency.given}
    for name, other in dependency.dependencies:
        arguments[name] = await made(other, given, stack, known, run_sync, executor)
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
    elif inspect.iscoroutinefunction(function):
        value = await call()
    else:
        value = await run_sync(call, executor)
    known[function] = value
    return value


def refuse_circle(function: Callable[..., Any], above: tuple[Callable[..., Any], ...], name: str) -> None:
    """Raise HandlerRefused where a dependency needs itself."""
    if function in above:
        way = " needs ".join(getattr(each, "__name__", repr(each)) for each in (*above, function))
        raise HandlerRefused(name, f"its dependencies go in a circle: {way}")
