"""Templates: everything that is put in is escaped, and a name that is not there is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from veil.console import charts, formatting
from veil.console.routes import find, link
from veil.console.static import Static
from veil.console.turns import Turn

_NAV: Final = (
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
        if find("GET", f"/{word}") is not None
    ]
