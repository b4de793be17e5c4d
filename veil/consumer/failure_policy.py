"""What becomes of a message whose handler failed, by what was raised."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from veil.consumer.message import Message
from veil.consumer.outcome import DeadLetter, Fatal, Outcome
from veil.consumer.retry import DEFAULT_BACKOFF, Verdict

_log = logging.getLogger("veil.consumer")

Decide = Callable[[BaseException, Message], Outcome]
FailureSpec = Outcome | Mapping[type[BaseException], Outcome] | Decide

# Time for what is broken to mend, growing with every receive, but short enough to notice that it has: 5, 10, 20 s, … to a
# quarter of an hour, less a random share, so that what failed together does not return together. Letting the window run out
# would make crash recovery and retries share one number; releasing at once would burn the receives of the redrive policy
# in a second.
DEFAULT_FAILURE: Final = DEFAULT_BACKOFF


class PolicyRefused(TypeError):
    """The failure policy cannot be acted upon."""


class FailurePolicy:
    """Chooses the outcome of a failure: one for all, one for each class of exception, or by a function.

    Of the classes given, the most specific one that the exception is of wins. What no class covers, and what a
    function itself fails on, falls to `otherwise`.
    """

    def __init__(self, spec: FailureSpec | None = None, *, otherwise: Outcome = DEFAULT_FAILURE) -> None:
        _check(spec)
        self._spec = otherwise if spec is None else spec
        self._otherwise = otherwise

    def decide(self, error: BaseException, message: Message) -> Outcome:
        """The outcome for a message whose handler raised this."""
        error = _only_one(error, self._spec)
        if isinstance(error, Verdict):
            return error.outcome
        return explained(self._chosen(error, message), error)

    def _chosen(self, error: BaseException, message: Message) -> Outcome:
        spec = self._spec
        if isinstance(spec, Outcome):
            return spec
        if isinstance(spec, Mapping):
            for kind in type(error).__mro__:
                if kind in spec:
                    return spec[kind]
            return self._otherwise
        try:
            outcome: object = spec(error, message)
        except Exception:
            _log.exception("the failure policy itself failed", extra={"facts": message.facts})
            return self._otherwise
        if isinstance(outcome, Outcome):
            return outcome
        _log.error(
            "the failure policy returned %r, expected an Outcome", outcome, extra={"facts": message.facts}
        )
        return self._otherwise


def explained(outcome: Outcome, error: BaseException) -> Outcome:
    """The outcome with the error told, where it has room for it."""
    if isinstance(outcome, DeadLetter):
        return replace(outcome, reason=outcome.reason or told(error), error=outcome.error or error)
    if isinstance(outcome, Fatal) and not outcome.reason:
        return replace(outcome, reason=told(error))
    return outcome


def told(error: BaseException) -> str:
    """An error in one line: its class, and what it says."""
    try:
        text = str(error)
    except Exception:  # an exception whose own words fail must not fail the consumer
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _only_one(error: BaseException, spec: FailureSpec) -> BaseException:
    # A task group wraps even a single failure: what was meant is the one inside, unless groups are spoken of.
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        if isinstance(spec, Mapping) and type(error) in spec:
            break
        error = error.exceptions[0]
    return error


def _check(spec: object) -> None:
    if spec is None or isinstance(spec, Outcome):
        return
    if isinstance(spec, type) and issubclass(spec, Outcome):
        raise PolicyRefused(
            f"on_failure is the class {spec.__name__}, expected an outcome: {spec.__name__}()"
        )
    if not isinstance(spec, Mapping):
        if not callable(spec):
            raise PolicyRefused(
                f"on_failure is {spec!r}, expected an Outcome, a mapping of exceptions to outcomes, or a function"
            )
        if inspect.iscoroutinefunction(spec):
            raise PolicyRefused(f"on_failure is the coroutine function {spec!r}, expected a plain one")
        return
    for kind, outcome in spec.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise PolicyRefused(f"on_failure has the key {kind!r}, expected a class of exceptions")
        if not isinstance(outcome, Outcome):
            wanted = f"{outcome.__name__}()" if isinstance(outcome, type) else "an Outcome"
            raise PolicyRefused(f"on_failure[{kind.__name__}] is {outcome!r}, expected {wanted}")
