"""The template environment, and how templates format numbers, lengths and instants.

Everything that is put in is escaped and visible, and a name that is not there is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from veil import words
from veil.charts import percent
from veil.console import charts
from veil.console.messages import attributes_of, cut, show_body, show_preview
from veil.console.web import ROOT, NotFound, dead_letters_link, link, queue_link
from veil.core.findings import after_losses
from veil.core.lease import State
from veil.service.time_slices import TimeSlice
from veil.wire.exchange import Response
from veil.words import count, exact_length, plural, rough_length

STATES: Final[Mapping[int, str]] = {state: state.label for state in State}
_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def file_size(size: int) -> str:
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
    return f"{round(ms)} ms" if ms < 1_000 else exact_length(ms / 1_000 if ms < 60_000 else round(ms / 1_000))


def utc(wall_ms: int | None) -> str:
    """The exact instant: 2026-01-31 12:00:00.123 UTC."""
    if wall_ms is None:
        return "–"
    try:
        instant = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return "–"
    return instant.strftime("%Y-%m-%d %H:%M:%S.") + f"{wall_ms % 1000:03d} UTC"


def _iso(exact: str) -> str:
    return exact.removesuffix(" UTC").replace(" ", "T") + "Z"


def instant(wall_ms: int | None) -> Markup:
    """The exact instant, in UTC; the page's script shows it in the reader's zone, with UTC in the title."""
    if wall_ms is None:
        return Markup("–")
    exact = utc(wall_ms)
    return Markup('<time class="at" datetime="{}">{}</time>').format(_iso(exact), exact)


# In a live fragment a running time stands as if it began now: the page's script writes the words, and the text of the
# fragment is the same for as long as nothing happens.


@pass_context
def ago(context: Context, wall_ms: int | None) -> Markup:
    """An instant as seen from now, with the exact one in its title; the page's script lets it run."""
    if wall_ms is None:
        return Markup("–")
    exact, visit = utc(wall_ms), context["visit"]
    distance_s = 0 if visit.is_live else (visit.wall_ms - wall_ms) / 1000
    words = f"{rough_length(distance_s)} ago" if distance_s >= 0 else f"in {rough_length(-distance_s)}"
    return Markup('<time datetime="{}" title="{}" data-ago-ms="{}">{}</time>').format(
        _iso(exact), exact, wall_ms, words
    )


@pass_context
def age(context: Context, since_ms: int | None) -> Markup:
    """How long ago an instant of the engine's clock is; the page's script lets it run."""
    if since_ms is None:
        return Markup("–")
    visit = context["visit"]
    words = rough_length(0 if visit.is_live else max(0, visit.now_ms - since_ms) / 1000)
    return Markup('<span class="age" data-since-ms="{}">{}</span>').format(since_ms, words)


@pass_context
def countdown(context: Context, deadline_ms: int | None) -> Markup:
    """What is left until an instant of the engine's clock; the page's script lets it run to zero."""
    if deadline_ms is None:
        return Markup("–")
    visit = context["visit"]
    left_s = 0 if visit.is_live else max(0, deadline_ms - visit.now_ms) / 1000
    return Markup('<span class="countdown" data-deadline-ms="{}">{}</span>').format(
        deadline_ms, exact_length(round(left_s))
    )


_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_FOR_EVER: Final = (("Cache-Control", "public, max-age=31536000, immutable"),)


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """The content of each file by its name, and a mark of it; a path that a visitor made up names nothing."""
    contents = {path: path.read_bytes() for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
    return {
        path.relative_to(_FOLDER).as_posix(): (content, sha256(content).hexdigest()[:12])
        for path, content in contents.items()
    }


def static_address(name: str) -> str:
    """Where the file is, with a mark of its content: browsers may keep it for ever."""
    return f"{ROOT}/static/{name}?v={static_files()[name][1]}"


def static_file(name: str) -> Response:
    if name not in static_files():
        raise NotFound("There is no such file.")
    return Response(200, static_files()[name][0], _TYPES[Path(name).suffix], _FOR_EVER)


def _shown(value: Any) -> Any:
    """What is put in, with invisible characters spelled out: no name, error or body shall hide something or mislead. A field
    holds what it holds: `| e` keeps it."""
    return words.visible(value, keep="\t\n\r") if type(value) is str else value


class Templates:
    """The console's templates, each compiled when it is first shown: all at once would hold up messages for half a second."""

    def __init__(self) -> None:
        self._environment = environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=_shown,
        )
        environment.filters |= {
            "count": count,
            "as_length": exact_length,
            "rough_length": rough_length,
            "file_size": file_size,
            "rate": rate,
            "utc": utc,
            "percent": percent,
            "laid_out": show_body,
            "preview": show_preview,
            "attributes": attributes_of,
            "cut": cut,
        }
        environment.globals |= {
            "ago": ago,
            "instant": instant,
            "age": age,
            "countdown": countdown,
            "plural": plural,
            "sparkline": charts.sparkline,
            "link": link,
            "queue_link": queue_link,
            "dead_letters_link": dead_letters_link,
            "static": static_address,
            "states": STATES,
            "chance": words.chance,
            "seconds": words.length,
            "after_losses": after_losses,
            "sentence": words.sentence,
        }

    def render(self, template: str, **values: Any) -> str:
        """The text of a small template with these values, at once."""
        return self._environment.get_template(template).render(**values)

    async def render_in_slices(self, template: str, time_slice: TimeSlice, **values: Any) -> str:
        """The text of a template with these values, made a piece at a time."""
        pieces: list[str] = []
        for piece in self._environment.get_template(template).generate(**values):
            pieces.append(piece)
            await time_slice.yield_if_spent()
        return "".join(pieces)


@cache
def templates() -> Templates:
    """The templates, compiled with the first call."""
    return Templates()
