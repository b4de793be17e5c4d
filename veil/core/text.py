"""Texts that others wrote: numbers in them, forms, and errors that are quoted."""

from __future__ import annotations

import re
from binascii import a2b_qp
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from veil.core.sequence import SEQ_MAX

# ---- numbers

_SEQ_DIGITS_MAX: Final = 19


def whole_number(text: str | None, digits_max: int = 18) -> int | None:
    """The number that the text is, in plain digits; None for anything else, and for more digits than that.

    `int` alone also takes blanks, signs, underscores and the digits of every script, and raises for more than 4,300 of them.
    """
    if text is None or len(text) > digits_max or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


_UNITS_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_LENGTH: Final = re.compile(r"(?:[0-9]{1,9} ?(?:s|min|m|h|d) ?)+", re.ASCII)
_PART: Final = re.compile(r"([0-9]+) ?(s|min|m|h|d)", re.ASCII)


def length_s(text: str) -> int | None:
    """The seconds that a length such as 90, 90s, 5m, 5 min, 1h30m or 4d means; None for anything else."""
    text = text.strip()
    seconds = whole_number(text, 9)
    if seconds is not None or len(text) > 60 or _LENGTH.fullmatch(text) is None:
        return seconds
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


def short_length(seconds: int) -> str:
    """The shortest text that `length_s` reads as so many seconds: 0, 90s, 5m, 12h, 4d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s" if seconds else "0"


def seq_number(text: str) -> int | None:
    """The key of a message; None for what cannot be one."""
    seq = whole_number(text, _SEQ_DIGITS_MAX)
    return seq if seq is not None and 0 < seq <= SEQ_MAX else None


# ---- forms and queries

# Quoted-printable is percent-encoding with another sign, and binascii reads it without a step of Python for each escape.
_AS_QUOTED_PRINTABLE: Final = bytes.maketrans(b"%+", b"= ")
_BLANKS: Final = bytes.maketrans(b"+", b" ")
# One call keeps the interpreter's lock for no more than this; a thread gives way between two of them.
_SLICE_BYTES: Final = 1 << 20
# A lone percent sign stands for itself, as browsers and people write it; by the million it would cost seconds.
_LENIENT_BYTES_MAX: Final = 1 << 16


def read_pairs(text: bytes, pairs_max: int) -> list[tuple[bytes, bytes]]:
    """Names and values in order, blank ones included; raises ValueError for what is no form of at most so many."""
    if not text:
        return []
    if not text.isascii() or text.count(b"&") >= pairs_max:
        raise ValueError(f"expected a percent-encoded form of at most {pairs_max} fields")
    pairs = []
    for piece in text.split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            pairs.append((_decoded(name), _decoded(value)))
    return pairs


def _decoded(text: bytes) -> bytes:
    if b"%" not in text:
        return text.translate(_BLANKS) if b"+" in text else text
    if len(text) <= _SLICE_BYTES:
        return unquoted(text)
    slices = []
    start = 0
    while start < len(text):
        end = start + _SLICE_BYTES
        cut = text.rfind(b"%", end - 2, end)
        if cut >= 0 and end < len(text):  # not within an escape
            end = cut
        slices.append(unquoted(text[start:end]))
        start = end
    return b"".join(slices)


def unquoted(text: bytes) -> bytes:
    """The bytes behind one name or value, in one call; raises ValueError for much that is not percent-encoded."""
    is_short = len(text) <= _LENIENT_BYTES_MAX
    if b"=" in text:
        text = text.replace(b"=", b"%3D")
    decoded = a2b_qp(text.translate(_AS_QUOTED_PRINTABLE))
    # Each escape is three bytes that became one. At a line end quoted-printable has an escape of its own.
    if len(decoded) == len(text) - 2 * text.count(b"%") and not (b"%\n" in text or b"%\r" in text):
        return decoded
    if not is_short:
        raise ValueError("expected two hexadecimal digits behind every percent sign")
    return unquote_to_bytes(text.translate(_BLANKS))


# ---- XML

# A bare return would reach a client as a line feed: XML parsers normalise line ends.
_SPELLED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}
_SPECIAL: Final = re.compile(r"[&<>\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NOT_XML: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def xml_text(text: str) -> str:
    """The text as it may stand between tags; what XML cannot carry becomes a replacement character."""
    if _SPECIAL.search(text) is None:
        return text
    for char, spelled in _SPELLED.items():  # the ampersand first: the others bring some along
        text = text.replace(char, spelled)
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


# ---- fingerprints of errors
#
# The console masks in Python what it shows, the pipeline a million texts within Spark; both by these patterns, so that like
# errors come together in the same way wherever one looks. Each pattern is bounded, so that no text, whoever wrote it, takes
# longer than its length allows.

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
