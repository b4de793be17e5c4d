"""Templates: everything that is put in is escaped, and a name that is not there is an error."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from veil.console import charts, formatting
from veil.console.web import ROOT, Answer, NotFound, find_route, link
from veil.service.turns import Turn

# ---- static files

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_FOR_EVER: Final = (("Cache-Control", "public, max-age=31536000, immutable"),)


class Static:
    """Serves the files of one folder, read once."""

    def address(self, name: str) -> str:
        """Where the file is, with a mark of its content: browsers may keep it for ever."""
        return f"{ROOT}/static/{name}?v={_content(name)[1]}"

    def answer(self, name: str) -> Answer:
        """The file."""
        content, _ = _content(name)
        return Answer(200, content, _TYPES[Path(name).suffix], _FOR_EVER)


@cache
def _files() -> frozenset[str]:
    # Only what is in this list is ever opened: a path made up by a visitor names nothing.
    return frozenset(
        path.relative_to(_FOLDER).as_posix() for path in _FOLDER.rglob("*") if path.suffix in _TYPES
    )


def _content(name: str) -> tuple[bytes, str]:
    if name not in _files():
        raise NotFound("There is no such file.")
    return _read(name)


@cache
def _read(name: str) -> tuple[bytes, str]:
    content = (_FOLDER / name).read_bytes()
    return content, sha256(content).hexdigest()[:12]


_NAV: Final = (
    ("Overview", "overview"),
    ("Queues", "queues"),
    ("Messages", "messages"),
    ("Dead letters", "dead-letters"),
    ("Timeouts", "timeouts"),
    ("Consumers", "consumers"),
    ("Audit", "audit"),
)


class Templates:
    """The console's templates, all compiled: that takes longer than a page may take."""

    def __init__(self) -> None:
        self._environment = environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {
            "count": formatting.count,
            "as_length": formatting.length,
            "rough_length": formatting.rough_length,
            "file_size": formatting.file_size,
            "rate": formatting.rate,
            "utc": formatting.utc,
        }
        environment.globals |= {
            "ago": formatting.ago,
            "instant": formatting.instant,
            "age": formatting.age,
            "countdown": formatting.countdown,
            "plural": formatting.plural,
            "sparkline": charts.sparkline,
            "link": link,
            "static": Static().address,
            "nav": _nav,
        }
        for name in environment.list_templates():
            environment.get_template(name)

    def render(self, template: str, **values: Any) -> str:
        """The text of a small template with these values, at once."""
        return self._environment.get_template(template).render(**values)

    async def render_in_turns(self, template: str, turn: Turn, **values: Any) -> str:
        """The text of a template with these values, made a piece at a time."""
        pieces: list[str] = []
        for piece in self._environment.get_template(template).generate(**values):
            pieces.append(piece)
            await turn.pause()
        return "".join(pieces)


@cache
def templates() -> Templates:
    """The templates, compiled with the first call."""
    return Templates()


def _nav(path: str) -> list[tuple[str, str, bool]]:
    """The main pages that there are: name, address, and whether the path lies below it."""
    return [
        (name, link(word), path.startswith(link(word)))
        for name, word in _NAV
        if find_route("GET", f"/{word}") is not None
    ]
