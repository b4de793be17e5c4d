"""Charts and sparklines of the console, as SVG without scripts or inline styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, log10
from typing import Final, NamedTuple

from markupsafe import Markup

from veil.words import rough_length

_WIDTH, _HEIGHT = 120, 24


def sparkline(series: Mapping[str, Sequence[int]], label: str) -> Markup:
    """A few lines over the same time on one scale; each has a class of its own name."""
    top = max((max(values, default=0) for values in series.values()), default=0)
    lines = [
        Markup('<path class="line {}" d="{}"/>').format(
            name, _path(values, top, _WIDTH / max(1, len(values) - 1), _HEIGHT - 1.5, _HEIGHT - 3)
        )
        for name, values in series.items()
        if any(values)
    ]
    drawn = Markup("").join(lines) or Markup('<path class="line none" d="M0 {}H{}"/>').format(
        _HEIGHT - 1, _WIDTH
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, drawn)


def in_pairs(values: Sequence[int]) -> list[int]:
    """Half as many points, two added up into one."""
    return [sum(values[place : place + 2]) for place in range(0, len(values), 2)]


_TIME_WIDTH, _BASE = 600, 112  # of 120, see charts.html
_Values = Sequence[float | None]


class Line(NamedTuple):
    """One line of a chart: None where nothing is known."""

    name: str  # the class of its colour
    words: str
    values: _Values
    sum: str = ""  # told with its words, instead of the latest value


class Shade(NamedTuple):
    """A time in which the server itself was in trouble, from place to place among the values, and what it was."""

    begin: float
    end: float
    words: str


class Chart(NamedTuple):
    """Lines over the same time on one scale, as charts.html draws them."""

    name: str
    title: str
    keys: list[tuple[str, str, str]]  # of each line its name, its words, and its latest value or sum
    top: str  # what the highest place of the scale means
    paths: list[tuple[str, str]]  # of each line its name and its way
    shades: list[tuple[float, float]]  # where each begins, and how wide it is
    told: list[tuple[float, str]]  # where each span begins, and what it says when it is pointed at
    step: float  # how wide a span is


def time_chart(
    name: str,
    title: str,
    lines: Sequence[Line],
    span_s: int,
    say: Callable[[float], str] = "{:,.0f}".format,
    per_s: int = 0,
    shades: Sequence[Shade] = (),
) -> Chart:
    """The lines, the oldest value first; `say` writes a value. Each span says its values when it is pointed at, and which
    shade lies over it. `per_s`: the values are lengths of time, so many to the second."""
    spans = len(lines[0].values)
    highest = max((value for line in lines for value in line.values if value is not None), default=0)
    top = _round_up_length(highest / per_s) * per_s if per_s else _round_up(highest)
    step = _TIME_WIDTH / max(1, spans - 1)
    latest = [next((value for value in reversed(line.values) if value is not None), None) for line in lines]
    keys = [
        (line.name, line.words, line.sum or ("–" if value is None else say(value)))
        for line, value in zip(lines, latest, strict=True)
    ]
    if shades:
        keys.append(("trouble", "server in trouble", f"{len(shades):,} ×"))
    return Chart(
        name,
        title,
        keys,
        say(top),
        [(line.name, _path(line.values, top, step, _BASE, _BASE - 2)) for line in lines if any(line.values)],
        # A second in a week is still there.
        [((shade.begin - 0.5) * step, max(1.5, (shade.end - shade.begin) * step)) for shade in shades],
        [((place - 0.5) * step, words) for place, words in _told(lines, span_s, say, shades)],
        step,
    )


def _path(values: _Values, top: float, step: float, base: float, height: float) -> str:
    """Where it goes on level nothing need be said: most lines are, and they are drawn every second. Where nothing is known the
    line breaks off."""
    pieces: list[str] = []
    last = len(values) - 1
    for place, value in enumerate(values):
        before = values[place - 1] if place else None
        if value is None or (0 < place < last and value == before == values[place + 1]):
            continue
        move = "M" if before is None else "L"
        pieces.append(f"{move}{place * step:.1f} {base - height * value / top:.1f}")
        if before is None and (place == last or values[place + 1] is None):
            pieces.append("h1")  # one value alone: a dot
    return "".join(pieces)


def _told(
    lines: Sequence[Line], span_s: int, say: Callable[[float], str], shades: Sequence[Shade]
) -> Iterator[tuple[int, str]]:
    spans = len(lines[0].values)
    over: dict[int, list[str]] = {}
    for shade in shades:
        for place in range(floor(shade.begin), min(ceil(shade.end), spans)):
            over.setdefault(place, []).append(f"server in trouble ({shade.words})")
    for place in range(spans):
        known = [f"{line.words} {say(line.values[place] or 0)}" for line in lines if line.values[place]]
        known += over.get(place, ())
        if known:
            ago = "now" if place == spans - 1 else f"{rough_length((spans - 1 - place) * span_s)} ago"
            yield place, f"{ago}: " + ", ".join(known)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 …: the top of the scale; below one as well, for rates."""
    size = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(factor * size for factor in (1, 2, 5, 10) if value <= factor * size * 1.000001)


_LENGTHS_S: Final = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400, 172_800)


def _round_up_length(seconds: float) -> float:
    """The next length that people say in one word: 30 s, 15 min, 4 h, 2 d."""
    if seconds <= 30:
        return _round_up(seconds) if seconds <= 10 else 30
    return next((each for each in _LENGTHS_S if seconds <= each), ceil(seconds / 86_400) * 86_400)
