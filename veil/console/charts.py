"""Small drawings, made here as SVG: no script, no style of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT = 120, 24


def sparkline(series: Mapping[str, Sequence[int]], label: str) -> Markup:
    """A few lines over the same time on one scale; each has a class of its own name."""
    top = max((max(values, default=0) for values in series.values()), default=0)
    lines = [
        Markup('<path class="line {}" d="{}"/>').format(name, _line(values, top))
        for name, values in series.items()
        if any(values)
    ]
    drawn = Markup("").join(lines) or Markup('<path class="line none" d="M0 {}H{}"/>').format(
        _HEIGHT - 1, _WIDTH
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, drawn)


def _line(values: Sequence[int], top: int) -> str:
    step = _WIDTH / max(1, len(values) - 1)
    height, ground = _HEIGHT - 3, _HEIGHT - 1.5
    last = len(values) - 1
    # Where it goes on level nothing need be said: most of these lines are, and they are drawn every second.
    return "M" + "L".join(
        [
            f"{place * step:.1f} {ground - height * value / top:.1f}"
            for place, value in enumerate(values)
            if place in (0, last) or value != values[place - 1] or value != values[place + 1]
        ]
    )


def in_pairs(values: Sequence[int]) -> list[int]:
    """Half as many points, two added up into one."""
    return [sum(values[place : place + 2]) for place in range(0, len(values), 2)]
