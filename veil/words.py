"""Lengths, counts, chances and instants as people read them: the same in the report, the console, the terminal and every
reason given."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Final

NOTHING: Final = "–"
# What a page or a terminal would not show, or would obey: controls, C1 included (0x9b alone begins an escape sequence on some
# terminals), and the marks that turn the direction of text, which can make a line read as something else. A queue may be named
# by anybody who may create one, and a user agent by anybody at all. The joiners stay: words and emoji are written with them.
_INVISIBLE: Final = "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
INVISIBLE: Final = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def length(seconds: float | None) -> str:
    """A length with two units at most: 340 ms, 4.2 s, 45 s, 2 min 30 s, 3 h 20 min."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 0.9995:
        return "0 s" if seconds <= 0 else f"{_significant(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if whole >= size:
            # Rounded at the smaller unit first: 59 min 60 s is an hour.
            parts = round(whole / part) * part
            if parts // size >= {"min": 60, "h": 24}.get(unit, math.inf):
                return length(parts)
            rest = parts % size // part
            return f"{parts // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def exact_length(seconds: float | None) -> str:
    """A length that is set or counted, exact for whole seconds: 1 h 30 min; a shorter one with a fraction, 0.25 s."""
    if seconds is None:
        return NOTHING
    if 0 < seconds < 60 and seconds != int(seconds):
        return f"{seconds:.3g} s"
    parts, left = [], max(0, int(seconds))
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        parts += [f"{number} {unit}"] if number else []
    return " ".join(parts) or "0 s"


def rough_length(seconds: float | None) -> str:
    """The same in its largest unit or two, for ages that nobody counts to the second."""
    return NOTHING if seconds is None else " ".join(exact_length(int(seconds)).split(" ")[:4])


def _significant(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"


_TROUBLES: Final = {
    "disk": "the disk stalled",
    "paused": "the process was paused",
    "restart": "restart",
    "database": "the database was unreachable",
    "node": "a node was unreachable",
}


def trouble(kind: str, seconds: float) -> str:
    """Why the server could not take renewals, and for how long: restart, 12 s."""
    return f"{_TROUBLES.get(kind, kind)}, {length(seconds)}"


def count(number: float | None) -> str:
    """A whole number with its thousands parted."""
    return NOTHING if number is None else f"{round(number):,}"


def hours(number: float | None) -> str:
    """Hours, as exactly as it matters: 0 h, 2 min, 3.4 h, 1,204 h."""
    if number is None:
        return NOTHING
    if number < 0.95:
        return length(number * 3600) if number > 0 else "0 h"
    return f"{number:,.1f} h" if number < 99.5 else f"{number:,.0f} h"


def chance(probability: float | None) -> str:
    """A chance in per cent with two significant digits; what is next to nothing says so."""
    if probability is None:
        return NOTHING
    percent = probability * 100
    if percent <= 0:
        return "0 %"
    if percent < 0.001:
        return "< 0.001 %"
    if percent >= 9.95:
        return f"{percent:.0f} %"
    digits = max(0, 1 - math.floor(math.log10(percent)))
    text = f"{percent:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def about(number: float) -> str:
    """A number rounded up to two figures."""
    size = 10 ** max(math.floor(math.log10(number)) - 1, 0) if number >= 1 else 1
    return f"{math.ceil(number / size) * size:,}"


def number(value: float | None, *, digits: int = 1) -> str:
    """A small number; what is next to nothing says so."""
    if value is None:
        return NOTHING
    if 0 < value < 10**-digits / 2:
        return f"< {10**-digits}"
    return f"{value:,.{digits}f}".removesuffix("." + "0" * digits)


def instant(at: datetime | str | None) -> str:
    """An instant in UTC to the minute."""
    moment = parsed(at)
    return NOTHING if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"


def iso(at_ms: float, sep: str = "T", precision: str = "milliseconds") -> str:
    """An instant in UTC as ISO 8601, for logs and for scripts: 2026-01-31T12:00:00.123Z."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(sep, timespec=precision).replace("+00:00", "Z")


def parsed(at: datetime | str | None) -> datetime | None:
    """The instant in UTC; what bears no zone is UTC. None where there is none, or what is given is no instant."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            return None
    if at is None:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def wall_ms(at: str) -> int | None:
    """The instant in milliseconds since 1970; None where the text is no instant."""
    moment = parsed(at)
    return None if moment is None else round(moment.timestamp() * 1000)


def span(since: datetime | str | None, until: datetime | str | None) -> str | None:
    """How long a period is, for "over these …": 6 days, 40 minutes."""
    begin, end = parsed(since), parsed(until)
    if begin is None or end is None or end <= begin:
        return None
    seconds = (end - begin).total_seconds()
    for unit, size, at_least in (("day", 86_400, 2), ("hour", 3_600, 2), ("minute", 60, 1)):
        if seconds >= size * at_least:
            units = round(seconds / size)
            return f"{units} {unit}s" if units != 1 else f"1 {unit}"
    return f"{round(seconds)} seconds"


def sentence(text: str) -> str:
    """The text as a sentence: a capital first, a full stop last."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def plural(number: float, one: str, many: str | None = None) -> str:
    """The count with its noun."""
    return f"{count(number)} {one if round(number) == 1 else many or one + 's'}"


def visible(text: str, *, keep: str = "") -> str:
    """The text with invisible characters made visible, as Python spells them; `keep` names controls that may stay."""
    # A run at a time: a body of nothing else would keep the event loop.
    return _runs(keep).sub(lambda found: repr(found[0])[1:-1], text)


@cache
def _runs(keep: str) -> re.Pattern[str]:
    controls = "".join(each for each in map(chr, range(32)) if each not in keep)
    return re.compile(f"[{re.escape(controls)}{_INVISIBLE}]+")


def unbroken(text: str) -> str:
    """The text with numbers kept on one line with their units."""
    return re.sub(r"(?<=\d) (?=(?:%|s|ms|min|h|d|UTC)\b|%)", "\u00a0", text)
