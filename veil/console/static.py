"""The console's own files: style, script, logo and the vendored htmx, each under an address that changes with it."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from veil.console.exchange import Answer
from veil.console.refusals import NotFound
from veil.console.routes import ROOT

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
