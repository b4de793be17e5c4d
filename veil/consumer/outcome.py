"""What is to become of a message once its handler has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from veil.core.limits import VISIBILITY_MAX_S


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

    The error and the handler are filled in by whoever knows them; they say no more about which outcome it is.
    """

    reason: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    handler: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Discard(Outcome):
    """Take it out of the queue although it was not handled."""


@dataclass(frozen=True, slots=True)
class Fatal(Outcome):
    """Release it and stop the whole consumer, for whoever supervises the process to see."""

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
LABELS: Final = tuple(dict.fromkeys(_LABELS.values()))


def label(outcome: Outcome | None) -> str:
    """One word for logs and metrics, of a fixed set; None is a lease that was lost, of which nothing may become."""
    return _LABELS.get(None if outcome is None else type(outcome), "other")


def _check(owner: str, name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{owner}: {name} is {value!r}, expected a number from {least:g} to {most:g}")
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{owner}: {name} is {value!r}, expected {least:g} to {most:g}")
