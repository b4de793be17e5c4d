"""What becomes of a message when its handler has ended: by what it returned, by what it raised, by the failure policy."""

from __future__ import annotations

import inspect
import linecache
import logging
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final

import msgspec

from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.core.attempt import FAILED, ReportedOutcome
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


# ---- exceptions

# Between this decision and the service's there is a request; a delay to the last second would be refused.
_MARGIN_S = 1.0
# What a failure comes to unless a policy says otherwise, and a bare `Retry()`. Time for what is broken to mend, growing with
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
        super().__init__(reason)
        self.outcome = DEFAULT_BACKOFF if after_s is None else RetryAfter(after_s)


class RetryNow(Verdict):
    """Make it visible at once, for whoever receives next."""

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
    function itself fails on, falls to `otherwise`.
    """

    def __init__(self, spec: FailureSpec | None = None, *, otherwise: Outcome = DEFAULT_BACKOFF) -> None:
        _check_spec(spec)
        self._spec = otherwise if spec is None else spec
        self._otherwise = otherwise

    def decide(self, error: BaseException, message: Message) -> Outcome:
        """The outcome for a message whose handler raised this."""
        error = _only_one(error, self._spec)
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


# ---- What is told of an error: to people in the log, on dead letters, and to the queue with the end of the attempt.

TEXT_CHARS_MAX: Final = 512
TRACEBACK_CHARS_MAX: Final = 4_096
_VEIL: Final = str(Path(__file__).parents[1])
# What looks like a secret, a person or an account, wherever it stands: credentials in URLs, values after names such as
# `password=`, keys of clouds, addresses of mail, and long runs of digits or of hexadecimal. A UUID is kept whole: it names a
# message or an order, and one in a hundred has twelve digits in a row.
_SECRETS: Final = re.compile(
    r"""(?P<keep>://[^\s/:@]{0,64}:)[^\s/@]{1,256}(?=@)
    | (?P<uuid>\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b)
    | (?P<name>(?:passw(?:or)?d|secret|token|api[_-]?key|authorization|credential)[\w.-]{0,32}["']?\s{0,4}[=:]\s{0,4}["']?
        (?:bearer\s|basic\s)?)[^\s"',;&]{1,512}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,4}\b
    | \b[0-9a-f]{32,128}\b
    | \b\d(?:[ -]?\d){11,18}\b""",
    re.VERBOSE | re.IGNORECASE,
)
# Without one of these there is nothing to mask, and most texts have none: to look for them takes a tenth of the time. A run of
# digits, of hexadecimal or of what may stand between is looked for with all of these made one character.
_SECRET_NAMES: Final = ("passw", "secret", "token", "api", "authorization", "credential", "@", "akia", "asia")
_IN_RUNS: Final = bytes(48 if chr(each) in "0123456789abcdefABCDEF -" else 46 for each in range(256))
_SECRET_RUN: Final = b"0" * 12
_MASK: Final = "***"
# Of a traceback that is told: the last frames, and the errors that led to this one.
_FRAMES_MAX: Final = 40
_PLACES_MAX: Final = 256
_PLACES: Final[dict[tuple[int, ...], tuple[str, list[CodeType]]]] = {}  # by each frame's code and instruction
_EARLIER_MAX: Final = 4
_CAUSED: Final = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_DURING: Final = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def masked(text: str) -> str:
    """The text without what looks like a secret or a person's data."""
    if not _is_suspect(text):
        return text
    return _SECRETS.sub(lambda found: found["uuid"] or (found["keep"] or found["name"] or "") + _MASK, text)


def masked_together(reported: Sequence[ReportedOutcome | None]) -> Sequence[ReportedOutcome | None]:
    """What is said of several attempts, fit to be told: their texts masked and bounded. To look for secrets in ten texts at once
    costs little more than in one of them."""
    texts = [each.error_text for each in reported if each is not None and each.error_text]
    whole = "\n".join(texts)
    are_short = len(whole) <= TEXT_CHARS_MAX or len(max(texts, key=len)) <= TEXT_CHARS_MAX
    if are_short and not _is_suspect(whole):
        return reported
    return [
        msgspec.structs.replace(each, error_text=masked(each.error_text)[:TEXT_CHARS_MAX])
        if each is not None and each.error_text
        else each
        for each in reported
    ]


def _is_suspect(text: str) -> bool:
    lower = text.lower()
    for name in _SECRET_NAMES:
        if name in lower:
            return True
    return _SECRET_RUN in text.encode("utf-8", "replace").translate(_IN_RUNS)


def class_name(error: BaseException) -> str:
    """The error's class with its module, unless that is Python's own."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def users_traceback(error: BaseException) -> TracebackType | None:
    """The error's traceback from the first frame on that is not Veil's own; None where all of them are."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_VEIL):
        trace = trace.tb_next
    return trace


def traceback_text(error: BaseException) -> str:
    """The traceback as text, from the user's own code on; empty where the error has none there."""
    trace = users_traceback(error)
    if trace is None:
        return ""
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # an exception whose own words fail must not fail the consumer
        return "".join(traceback.format_tb(trace))


def reported_failure(
    error: BaseException, trace: TracebackType | None = None, *, texts: bool = True
) -> ReportedOutcome:
    """What came of an attempt that ended in this error: its class, and with `texts` where it came from and its words, which
    `masked_together` makes fit to be told. `trace`: the user's part of its traceback, if that was looked for already."""
    kind = class_name(error)
    if not texts:
        return ReportedOutcome(FAILED.outcome, kind)
    way = _way_to(error, users_traceback(error) if trace is None else trace)
    return ReportedOutcome(FAILED.outcome, kind, words_of(error)[: TEXT_CHARS_MAX * 2], way)


def _way_to(error: BaseException, trace: TracebackType | None, earlier_max: int = _EARLIER_MAX) -> str:
    """The user's part of the traceback, masked, without the error's own line at its end: that one is told beside it.

    Python's own way of writing one reads each file's state again and parses each line for its carets, and to mask the
    whole of it costs as much again: together as much as the rest of an attempt that fails. What is written of a place is
    always the same, and what fails mostly fails at few places, so each is written and masked once.
    """
    if isinstance(error, BaseExceptionGroup) or hasattr(error, "__notes__"):
        whole = traceback_text(error)
        return masked(whole[-TRACEBACK_CHARS_MAX * 2 :])[-TRACEBACK_CHARS_MAX:]
    place: list[int] = []
    at = trace
    while at is not None:
        place += (id(at.tb_frame.f_code), at.tb_lasti)
        at = at.tb_next
    known = _PLACES.get(key := tuple(place))
    if known is None:
        if len(_PLACES) >= _PLACES_MAX:
            _PLACES.clear()
        known = _PLACES[key] = _place_text(trace)
    own = known[0]
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is None or not earlier_max:
        return own
    earlier_words = masked(told(earlier)[: TEXT_CHARS_MAX * 2])[:TEXT_CHARS_MAX]
    joint = _CAUSED if earlier is error.__cause__ else _DURING
    way = _way_to(earlier, users_traceback(earlier), earlier_max - 1)
    return (way + earlier_words + joint + own)[-TRACEBACK_CHARS_MAX:]


def _place_text(trace: TracebackType | None) -> tuple[str, list[CodeType]]:
    """The frames of a traceback, and the code that they are of: as long as that is kept, nothing else has its id."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    text = "".join(_frame_text(code, line) for code, line in frames[-_FRAMES_MAX:])
    head = "Traceback (most recent call last):\n" if text else ""
    return (head + text)[-TRACEBACK_CHARS_MAX:], [code for code, _ in frames]


def _frame_text(code: CodeType, line: int) -> str:
    source = linecache.getline(code.co_filename, line).strip()
    text = f'  File "{code.co_filename}", line {line}, in {code.co_name}\n'
    return masked(text + (f"    {source}\n" if source else ""))


def told(error: BaseException) -> str:
    """An error in one line: its class, and what it says."""
    text = words_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def words_of(error: BaseException) -> str:
    """What the error says of itself."""
    try:
        return str(error)
    except Exception:  # an exception whose own words fail must not fail the consumer
        return ""


def _only_one(error: BaseException, spec: FailureSpec) -> BaseException:
    # A task group wraps even a single failure: what was meant is the one inside, unless groups are spoken of.
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        if isinstance(spec, Mapping) and type(error) in spec:
            break
        error = error.exceptions[0]
    return error


def _check_spec(spec: object) -> None:
    if spec is None or isinstance(spec, Outcome):
        return
    if isinstance(spec, type) and issubclass(spec, Outcome):
        raise FailurePolicyRefused(
            f"on_failure is the class {spec.__name__}, expected an outcome: {spec.__name__}()"
        )
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
