"""Templates: everything that is put in is escaped, and a name that is not there is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from veil.console import charts, formatting
from veil.console.routes import find, link
from veil.console.static import Static

_NAV: Final = (
    ("Queues", "queues"),
    ("Messages", "messages"),
    ("Dead letters", "dead-letters"),
    ("Timeouts", "timeouts"),
    ("Consumers", "consumers"),
    ("Audit", "audit"),
)


class Templates:
    """The console's templates, compiled when first used."""

    def __init__(self, static: Static) -> None:
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
            "static": static.address,
            "nav": _nav,
        }

    def render(self, template: str, **values: Any) -> str:
        """The text of a template with these values."""
        return self._environment.get_template(template).render(**values)


def _nav(path: str) -> list[tuple[str, str, bool]]:
    """The main pages that there are: name, address, and whether the path lies below it."""
    return [
        (name, link(word), path.startswith(link(word)))
        for name, word in _NAV
        if find("GET", f"/{word}") is not None
    ]
