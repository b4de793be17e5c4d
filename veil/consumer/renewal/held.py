"""One lease in a keeper's table."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from veil.consumer.lease import Lease
from veil.consumer.renewal.policy import Window


@dataclass(slots=True, eq=False, kw_only=True)
class Held(Window):
    """The window's facts, and where its renewal stands."""

    lease: Lease
    next_s: float = math.inf  # when to look at it next; the heap's entries of other instants are stale
    renewals: int = 0
    tries: int = 0  # that failed since the last success
    asking_s: int = 0  # what this series of tries asks for
    retry_s: float = math.inf
    flying: bool = False  # a call for it is under way
    gone: bool = False  # let go, or lost: nothing may be sent for it any more
    last: bool = False  # this window is the last one
    why_last: str = ""
    warned: bool = False
    problem: str = ""  # what the last failed try said
    refused: bool = False
    waiting: list[Future[None]] = field(default_factory=list)  # for the call under way to end


class Flight(NamedTuple):
    """One renewal that is to be sent."""

    held: Held
    ask_s: int
    clamped: bool  # to what is left of the twelve hours


class Lost(NamedTuple):
    """The lease is somebody else's, or may be."""

    held: Held
    why: str


class Capped(NamedTuple):
    """The lease cannot be renewed any more; it lasts until its deadline."""

    held: Held
    why: str


class Warned(NamedTuple):
    """Renewal ends for good at that instant."""

    held: Held
    ends_at_s: float


class Renewed(NamedTuple):
    """The service granted a new window."""

    held: Held
    ask_s: int


class Failed(NamedTuple):
    """A try failed; `again` when there will be another."""

    held: Held
    problem: Exception
    again: bool


Effect = Lost | Capped | Warned | Renewed | Failed
