"""Numbers, lengths and instants as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from veil.words import plural as plural

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def count(number: int | float) -> str:
    """A number with its thousands apart: 12,345."""
    return f"{number:,}"


def length(seconds: float | None) -> str:
    """A length of time, exact for whole seconds: `1 h 30 min`; None is a dash."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return "0 s"
    if seconds != int(seconds) and seconds < 60:
        return f"{seconds:.3g} s"
    left = int(seconds)
    if left == 0:
        return "0 s"
    parts: list[str] = []
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts)


def rough_length(seconds: float | None) -> str:
    """The same in its largest unit or two, for ages that nobody counts to the second."""
    if seconds is None:
        return "–"
    return " ".join(length(max(0, int(seconds))).split(" ")[:4])


def file_size(size: int) -> str:
    """A number of bytes."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_BYTES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size:,} bytes" if unit == 0 else f"{value:.3g} {_BYTES[unit]}"


def rate(per_second: float) -> str:
    """How often something happens: `0`, `24 /min`, `2.5 /s`, `1,240 /s`."""
    if per_second == 0:
        return "0"
    if per_second < 1:
        return f"{max(1, round(per_second * 60))} /min"
    if per_second < 10:
        return f"{per_second:.2g} /s"
    return f"{round(per_second):,} /s"


def milliseconds(ms: float) -> str:
    """A short length: `180 ms`, `2.5 s`, `4 min 10 s`."""
    return f"{round(ms)} ms" if ms < 1_000 else length(ms / 1_000 if ms < 60_000 else round(ms / 1_000))


def utc(wall_ms: int | None) -> str:
    """The exact instant: 2026-01-31 12:00:00.123 UTC."""
    if wall_ms is None:
        return "–"
    try:
        instant = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return "–"
    return instant.strftime("%Y-%m-%d %H:%M:%S.") + f"{wall_ms % 1000:03d} UTC"


def instant(wall_ms: int | None) -> Markup:
    """The exact instant, in UTC; the page's script shows it in the reader's zone, with UTC in the title."""
    if wall_ms is None:
        return Markup("–")
    exact = utc(wall_ms)
    return Markup('<time class="at" datetime="{}">{}</time>').format(
        exact.removesuffix(" UTC").replace(" ", "T") + "Z", exact
    )


def ago(wall_ms: int | None, now_ms: int) -> Markup:
    """An instant as seen from now, with the exact one in its title; the page's script lets it run."""
    if wall_ms is None:
        return Markup("–")
    exact = utc(wall_ms)
    distance_s = (now_ms - wall_ms) / 1000
    words = f"{rough_length(distance_s)} ago" if distance_s >= 0 else f"in {rough_length(-distance_s)}"
    return Markup('<time datetime="{}" title="{}" data-ago-ms="{}">{}</time>').format(
        exact.removesuffix(" UTC").replace(" ", "T") + "Z", exact, wall_ms, words
    )


def age(since_ms: int | None, now_ms: int) -> Markup:
    """How long ago an instant of the engine's clock is; the page's script lets it run."""
    if since_ms is None:
        return Markup("–")
    words = rough_length(max(0, now_ms - since_ms) / 1000)
    return Markup('<span class="age" data-since-ms="{}">{}</span>').format(since_ms, words)


def countdown(deadline_ms: int | None, now_ms: int) -> Markup:
    """What is left until an instant of the engine's clock; the page's script lets it run to zero."""
    if deadline_ms is None:
        return Markup("–")
    left_s = max(0, deadline_ms - now_ms) / 1000
    return Markup('<span class="countdown" data-deadline-ms="{}">{}</span>').format(
        deadline_ms, length(round(left_s))
    )
