"""A fingerprint of an error's text: what differs from one message to the next is masked, what tells the error stays.

The console masks in Python what it shows, the pipeline a million texts within Spark; both by these patterns, so that like
errors come together in the same way wherever one looks. Each pattern is bounded, so that no text, whoever wrote it, takes
longer than its length allows.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

CHARS_MAX: Final = 300


class Mask(NamedTuple):
    """A pattern that means the same to Java and to Python, and what stands in its place."""

    pattern: str
    shown: str


# In this order: what contains others comes before them. A mask is never masked again, since no pattern matches `<`.
MASKS: Final = (
    Mask(r'"[^"\n]{0,500}"', "<text>"),
    Mask(r"`[^`\n]{0,500}`", "<text>"),
    # No opening mark within: each of a run of them would be tried to the end of the text that it does not open.
    Mask(r"[“„][^“„”\n]{0,500}[“”]", "<text>"),
    # An apostrophe within a word is none of a quotation's.
    Mask(r"(?<![A-Za-z0-9])'[^'\n]{0,500}'(?![A-Za-z0-9])", "<text>"),
    Mask(r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s<>\"')\],;]{1,500}", "<url>"),
    Mask(r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,250}[A-Za-z0-9]", "<address>"),
    Mask(
        r"(?<!\d)\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?)?(?!\d)",
        "<time>",
    ),
    Mask(r"(?<![\d:.])\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?![\d:])", "<time>"),
    Mask(
        r"(?<![0-9A-Za-z])[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}(?![0-9A-Za-z])",
        "<id>",
    ),
    Mask(r"(?<![0-9A-Za-z.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![0-9A-Za-z])", "<address>"),
    # IPv6 and MAC, with a port or a prefix's length.
    Mask(
        r"(?<![0-9A-Za-z:])\[?[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}\]?(?:[:/]\d{1,5})?(?![0-9A-Za-z:])",
        "<address>",
    ),
    Mask(r"(?<![A-Za-z0-9_.)\]>/\\-])(?:[A-Za-z]:\\|\\\\|~/|\.{0,2}/)[^\s:,;\"'()<>\[\]]{1,500}", "<path>"),
    Mask(r"(?<![0-9A-Za-z])0[xX][0-9A-Fa-f]{1,64}(?![0-9A-Za-z])", "<id>"),
    # Letters and digits, both: eight digits alone are a number like others.
    Mask(r"(?<![0-9A-Za-z])(?=[A-Fa-f]{0,64}\d)(?=\d{0,64}[A-Fa-f])[0-9A-Fa-f]{8,64}(?![0-9A-Za-z])", "<id>"),
    # Request ids, keys of objects, tokens: long, and with digits in more than one place.
    Mask(r"(?<![0-9A-Za-z_-])(?=(?:[A-Za-z_-]{0,60}\d){3})[0-9A-Za-z_-]{16,128}(?![0-9A-Za-z_-])", "<id>"),
    Mask(r"\d{1,40}(?:[.,]\d{1,40}){0,20}", "<n>"),
)  # fmt: skip

_COMPILED: Final = tuple((re.compile(mask.pattern, re.ASCII), mask.shown) for mask in MASKS)
_TEXT_CHARS_MAX: Final = 4_000  # of a text that somebody else wrote


def fingerprint(text: str) -> str:
    """The text masked, on one line, cut to 300 characters."""
    masked = text[:_TEXT_CHARS_MAX]
    for pattern, shown in _COMPILED:
        masked = pattern.sub(shown, masked)
    return " ".join(masked.split())[:CHARS_MAX]
