"""What becomes of a message when its handler has ended: by what it returned, by what it raised, by the failure policy."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from veil.consumer.error_reports import told, words_of
from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.core.limits import VISIBILITY_MAX_S

_log = logging.getLogger(__name__)


# ---- outcomes


class Outcome:
    """The root: what a failure policy decides, or a handler says by raising `Retry`, `Drop` and their like."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Delete(Outcome):
    """Handled: take it out of the queue."""


@dataclass(frozen=True, slots=True)
class LetExpire(Outcome):
    """Do nothing: it comes back when its window ends."""


@dataclass(frozen=True, slots=True)
class Release(Outcome):
    """Make it visible at once."""


@dataclass(frozen=True, slots=True)
class RetryAfter(Outcome):
    """Make it visible after so many seconds (0 to 43,200, and within the twelve hours of its lease)."""

    seconds: float

    def __post_init__(self) -> None:
        _check("RetryAfter", "seconds", self.seconds, 0, VISIBILITY_MAX_S)


@dataclass(frozen=True, slots=True)
class Backoff(Outcome):
    """Make it visible after base · factor^(receives − 1) seconds, at most `cap_s`, of which a share is random."""

    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 900.0
    jitter: float = 0.5  # 0: none, 1: anything from 0 to the full delay

    def __post_init__(self) -> None:
        _check("Backoff", "base_s", self.base_s, 0, VISIBILITY_MAX_S)
        _check("Backoff", "factor", self.factor, 1, 1_000)
        _check("Backoff", "cap_s", self.cap_s, 0, VISIBILITY_MAX_S)
        _check("Backoff", "jitter", self.jitter, 0, 1)


@dataclass(frozen=True, slots=True)
class DeadLetter(Outcome):
    """Send it to the queue's dead letters now, with the reason written on it as attributes.

    The error and the handler are filled in later, and make no difference when outcomes are compared.
    """

    reason: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    handler: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        given: object = self.reason
        if not isinstance(given, str):  # `raise Reject(error)` is too natural to fail
            object.__setattr__(self, "reason", words_of(given))


@dataclass(frozen=True, slots=True)
class Discard(Outcome):
    """Take it out of the queue although it was not handled."""


@dataclass(frozen=True, slots=True)
class Fatal(Outcome):
    """Release it and stop the whole consumer with an error, for the process's supervisor to see."""

    reason: str = field(default="", compare=False)


_LABELS: Final[dict[type[Outcome] | None, str]] = {
    Delete: "delete",
    LetExpire: "let_expire",
    Release: "release",
    RetryAfter: "retry_after",
    Backoff: "retry_after",
    DeadLetter: "dead_letter",
    Discard: "discard",
    Fatal: "fatal",
    None: "lost",
}


def label(outcome: Outcome | None) -> str:
    """One word for logs and metrics, of a fixed set; None is a lease that was lost, of which nothing may become."""
    return _LABELS.get(None if outcome is None else type(outcome), "other")


def _check(owner: str, name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{owner}: {name} is {value!r}, expected a number from {least:g} to {most:g}")
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{owner}: {name} is {value!r}, expected {least:g} to {most:g}")


# ---- exceptions

# Between this decision and the service's there is a request; a delay to the last second would be refused.
_MARGIN_S = 1.0
# The outcome of a failure unless a policy says otherwise, and of a bare `Retry()`. Time for what is broken to mend, growing with
# every receive, but short enough to notice that it has: 5, 10, 20 s, … to a quarter of an hour, less a random share, so that
# what failed together does not return together. Letting the window run out would make crash recovery and retries share one
# number; releasing at once would burn the receives of the redrive policy in a second.
DEFAULT_BACKOFF: Final = Backoff(base_s=5.0)


class Verdict(Exception):
    """The root of what a handler raises on purpose; it wins over the failure policy."""

    outcome: Outcome  # what the handler asks for

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Verdict):
    """Try again later: after so many seconds, or backing off by receive count when none are given."""

    def __init__(self, reason: str = "", *, after_s: float | None = None) -> None:
        given: object = reason
        if isinstance(given, int | float):  # it would be taken for a reason, and wait for something else
            raise TypeError(f"Retry({reason!r}): expected a reason; a delay is Retry(after_s={reason!r})")
        super().__init__(reason)
        self.outcome = DEFAULT_BACKOFF if after_s is None else RetryAfter(after_s)


class RetryNow(Verdict):
    """Make it visible at once, for the next receive of any consumer."""

    outcome = Release()


class Reject(Verdict):
    """Send it to the dead letters now: another try would end the same way."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.outcome = DeadLetter(reason)


class Drop(Verdict):
    """Take it out of the queue although it was not handled."""

    outcome = Discard()


class Stop(Verdict):
    """Release it and stop the whole consumer."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.outcome = Fatal(reason)


def backoff_s(backoff: Backoff, receive_count: int, random: Callable[[], float]) -> float:
    """How long to wait before the next try, `random` being from [0, 1)."""
    try:
        full_s = backoff.base_s * backoff.factor ** max(0, receive_count - 1)
    except OverflowError:  # received a thousand times
        full_s = backoff.cap_s
    return min(full_s, backoff.cap_s) * (1 - backoff.jitter * random())


def held_s(lease: Lease) -> float:
    """How long ago the lease began, by its own clock."""
    return lease.deadline_s - lease.remaining_s - lease.received_at_s


def settled(outcome: Outcome, lease: Lease, receive_count: int, random: Callable[[], float]) -> Outcome:
    """The outcome as a runner can carry it out: a backoff made a delay, a delay in whole seconds that the lease allows."""
    if isinstance(outcome, Backoff):
        wanted_s = backoff_s(outcome, receive_count, random)
    elif isinstance(outcome, RetryAfter):
        wanted_s = outcome.seconds
    else:
        return outcome
    # Twelve hours after its receive a message shows itself, whatever anybody asks; asking for more is an error.
    left_s = math.floor(VISIBILITY_MAX_S - held_s(lease) - _MARGIN_S)
    if left_s < 0:
        return LetExpire()
    # Rounded up, because a delay of 0 means "at once" and a small one does not.
    return RetryAfter(min(math.ceil(wanted_s), left_s))


# ---- failure policies

Decide = Callable[[BaseException, Message], Outcome]
FailureSpec = Outcome | Mapping[type[BaseException], Outcome] | Decide


class FailurePolicyRefused(TypeError):
    """The failure policy cannot be acted upon."""


class FailurePolicy:
    """Chooses the outcome of a failure: one for all, one for each class of exception, or by a function.

    Of the classes given, the most specific one that the exception is of wins. What no class covers, and what a
    function itself fails on, is tried again by DEFAULT_BACKOFF.
    """

    def __init__(self, spec: FailureSpec | None = None) -> None:
        _check_spec(spec)
        self._spec = DEFAULT_BACKOFF if spec is None else spec

    def meant(self, error: BaseException) -> BaseException:
        """The one that counts: a task group wraps even a single failure, and the one inside was meant, unless groups are spoken
        of."""
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            if isinstance(self._spec, Mapping) and type(error) in self._spec:
                break
            error = error.exceptions[0]
        return error

    def decide(self, error: BaseException, message: Message) -> Outcome:
        """The outcome for a message whose handler raised this."""
        error = self.meant(error)
        if isinstance(error, Verdict):
            outcome = error.outcome
        else:
            outcome = self._chosen(error, message)
            if isinstance(outcome, DeadLetter | Fatal) and not outcome.reason:
                outcome = replace(outcome, reason=told(error))
        if isinstance(outcome, DeadLetter) and outcome.error is None:
            outcome = replace(outcome, error=error)
        return outcome

    def _chosen(self, error: BaseException, message: Message) -> Outcome:
        spec = self._spec
        if isinstance(spec, Outcome):
            return spec
        if isinstance(spec, Mapping):
            for kind in type(error).__mro__:
                if kind in spec:
                    return spec[kind]
            return DEFAULT_BACKOFF
        try:
            outcome: object = spec(error, message)
        except Exception:
            _log.exception("the failure policy itself failed", extra=message.extra())
            return DEFAULT_BACKOFF
        if isinstance(outcome, Outcome):
            return outcome
        _log.error("the failure policy returned %r, expected an Outcome", outcome, extra=message.extra())
        return DEFAULT_BACKOFF


def _check_spec(spec: object) -> None:
    if spec is None or isinstance(spec, Outcome):
        return
    if isinstance(spec, type):
        wanted = (
            f"an outcome: {spec.__name__}()" if issubclass(spec, Outcome) else "an outcome, such as Backoff()"
        )
        raise FailurePolicyRefused(f"on_failure is the class {spec.__name__}, expected {wanted}")
    if not isinstance(spec, Mapping):
        if not callable(spec):
            raise FailurePolicyRefused(
                f"on_failure is {spec!r}, expected an Outcome, a mapping of exceptions to outcomes, or a function"
            )
        if inspect.iscoroutinefunction(spec):
            raise FailurePolicyRefused(f"on_failure is the coroutine function {spec!r}, expected a plain one")
        return
    for kind, outcome in spec.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise FailurePolicyRefused(f"on_failure has the key {kind!r}, expected a class of exceptions")
        if not isinstance(outcome, Outcome):
            wanted = f"{outcome.__name__}()" if isinstance(outcome, type) else "an Outcome"
            raise FailurePolicyRefused(f"on_failure[{kind.__name__}] is {outcome!r}, expected {wanted}")
