"""A fingerprint of an error's text: what differs from one message to the next is masked, what tells the error stays.

Expressions of Spark's own: a million texts are masked without a row of them leaving the JVM. Each pattern is bounded, so
that no text, whoever wrote it, takes longer than its length allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column

CHARS_MAX: Final = 300


class Mask(NamedTuple):
    """A pattern in Java's manner, and what stands in its place."""

    pattern: str
    shown: str


# In this order: what contains others comes before them. A mask is never masked again, since no pattern matches `<`.
MASKS: Final = (
    Mask(r'"[^"\n]{0,500}"', "<text>"),
    Mask(r"`[^`\n]{0,500}`", "<text>"),
    Mask(r"[“„][^“”\n]{0,500}[“”]", "<text>"),
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


def fingerprint_of(text: Column) -> Column:
    """The text masked, on one line, cut to 300 characters; null stays null."""
    from pyspark.sql import functions as F  # noqa: N812

    masked = text
    for mask in MASKS:
        masked = F.regexp_replace(masked, mask.pattern, mask.shown)
    return F.left(F.trim(F.regexp_replace(masked, r"\s+", " ")), F.lit(CHARS_MAX))
