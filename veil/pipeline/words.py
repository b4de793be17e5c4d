"""Lengths and shares as people read them."""

from __future__ import annotations

import math


def length(seconds: float) -> str:
    """A length with the unit that suits it: 0.4 s, 28 s, 12 min, 3 h."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds else "0 s"
    for unit, size in (("s", 1), ("min", 60)):
        if round(seconds / size) < (120 if size == 1 or seconds % 3600 else 60):
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds / 3600)} h"


def share(chance: float) -> str:
    """A share in per cent, with two figures that count."""
    percent = chance * 100
    if percent <= 0:
        return "0 %"
    if percent >= 10:
        return f"{percent:.0f} %"
    return f"{round(percent, 1 - math.floor(math.log10(percent))):g} %"


def about(count: float) -> str:
    """A number rounded up to two figures."""
    size = 10 ** max(math.floor(math.log10(count)) - 1, 0) if count >= 1 else 1
    return f"{math.ceil(count / size) * size:,}"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or abs(number - round(number)) < 0.05 else f"{number:.1f}"
