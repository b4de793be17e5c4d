"""What is reported of an error: in the log, on dead letters, and to the queue at the end of the attempt."""

from __future__ import annotations

import functools
import linecache
import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from veil.core.attempt import FAILED, ReportedOutcome

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
# Of a traceback that is reported: the last frames, and the errors that led to this one.
_FRAMES_MAX: Final = 40
_EARLIER_MAX: Final = 4
_CAUSED: Final = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_DURING: Final = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def masked(text: str) -> str:
    """The text without what looks like a secret or a person's data."""
    utf8 = text.encode("utf-8", "replace")
    if not text.isascii():
        text = utf8.decode()  # without lone surrogates, as the name of a file has them that is not UTF-8
    lower = text.lower()
    if _SECRET_RUN in utf8.translate(_IN_RUNS) or any(name in lower for name in _SECRET_NAMES):
        return _SECRETS.sub(
            lambda found: found["uuid"] or (found["keep"] or found["name"] or "") + _MASK, text
        )
    return text


def class_name(error: BaseException) -> str:
    """The error's class with its module, unless that is Python's own."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name.encode("utf-8", "replace").decode()


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
    error: BaseException, trace: TracebackType | None = None, texts: bool = True
) -> ReportedOutcome:
    """What is reported of an attempt that ended in this error: its class, and with `texts` where it came from and its words,
    masked and bounded. `trace`: the user's part of its traceback, if that was looked for already."""
    kind = class_name(error)
    if not texts:
        return ReportedOutcome(FAILED.outcome, kind)
    try:
        way = _way_to(error, users_traceback(error) if trace is None else trace)
    except Exception:  # an exception whose own attributes fail must not fail the consumer
        way = None
    return ReportedOutcome(FAILED.outcome, kind, _bounded_words(words_of(error)), way)


def _bounded_words(words: str) -> str:
    if len(words) <= TEXT_CHARS_MAX:
        return masked(words)
    return masked(words[: TEXT_CHARS_MAX * 2])[:TEXT_CHARS_MAX]


def _way_to(error: BaseException, trace: TracebackType | None, earlier_max: int = _EARLIER_MAX) -> str:
    """The user's part of the traceback, masked, without the error's own line at its end, which is reported beside it.

    Python's own way of writing one reads each file's state again and parses each line for its carets, and to mask the
    whole of it costs as much again: together as much as the rest of an attempt that fails. What is written of a frame is
    always the same, and what fails mostly fails in few places, so each frame is written and masked once.
    """
    if isinstance(error, BaseExceptionGroup) or hasattr(error, "__notes__"):
        whole = traceback_text(error)
        return masked(whole[-TRACEBACK_CHARS_MAX * 2 :])[-TRACEBACK_CHARS_MAX:]
    frames = [
        (frame.f_code.co_filename, frame.f_code.co_name, line) for frame, line in traceback.walk_tb(trace)
    ]
    own = "".join(_frame_text(*frame) for frame in frames[-_FRAMES_MAX:])
    if own:
        own = f"Traceback (most recent call last):\n{own}"[-TRACEBACK_CHARS_MAX:]
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is None or not earlier_max:
        return own
    earlier_words = _bounded_words(told(earlier))
    joint = _CAUSED if earlier is error.__cause__ else _DURING
    way = _way_to(earlier, users_traceback(earlier), earlier_max - 1)
    return (way + earlier_words + joint + own)[-TRACEBACK_CHARS_MAX:]


@functools.lru_cache(maxsize=256)
def _frame_text(file: str, function: str, line: int) -> str:
    source = linecache.getline(file, line).strip()
    text = f'  File "{file}", line {line}, in {function}\n'
    return masked(text + (f"    {source}\n" if source else ""))


def told(error: BaseException) -> str:
    """An error in one line: its class, and what it says."""
    text = words_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def words_of(error: object) -> str:
    """What the error, or whatever else was given as a reason, says of itself."""
    try:
        return str(error)
    except BaseException:  # an exception whose own words fail must not fail the consumer
        return ""
