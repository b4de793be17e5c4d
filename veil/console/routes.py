"""Which path is answered by whom; pages put themselves into the table with these decorators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from veil.console.web import Answer, Role

if TYPE_CHECKING:
    from veil.console.visit import Visit

ROOT = "/console"

PageHandler = Callable[["Visit"], Awaitable[Answer]]
LiveHandler = Callable[["Visit"], Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path and what answers it."""

    method: str  # GET, POST, or LIVE: a GET that is answered with a stream
    parts: tuple[str, ...]  # `{name}` stands for any one part
    needs: Role | None  # None: open to who is not logged in
    page: PageHandler | None = None
    live: LiveHandler | None = None


_routes: list[Route] = []


def page(path: str, *, needs: Role | None = Role.VIEWER) -> Callable[[PageHandler], PageHandler]:
    """What answers a GET of the path, below /console; it changes nothing."""

    def put(handler: PageHandler) -> PageHandler:
        _routes.append(Route("GET", _parts(path), needs, page=handler))
        return handler

    return put


def change(path: str, *, needs: Role | None) -> Callable[[PageHandler], PageHandler]:
    """What answers a POST of the path: its token and the visitor's role have been checked."""

    def put(handler: PageHandler) -> PageHandler:
        _routes.append(Route("POST", _parts(path), needs, page=handler))
        return handler

    return put


def live(path: str, *, needs: Role = Role.VIEWER) -> Callable[[LiveHandler], LiveHandler]:
    """What renders the fragments of a stream at the path, once a second while somebody looks."""

    def put(handler: LiveHandler) -> LiveHandler:
        _routes.append(Route("LIVE", _parts(path), needs, live=handler))
        return handler

    return put


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of a path below /console and the parts that it leaves open."""
    parts = [unquote(part) for part in path.split("/") if part]
    kinds = ("GET", "LIVE") if method in ("GET", "HEAD") else (method,)
    # Fixed words before open ones: /queues/new is a page, not a region.
    best: tuple[Route, dict[str, str]] | None = None
    for route in _routes:
        if route.method in kinds and len(route.parts) == len(parts):
            found = _match(route.parts, parts)
            if found is not None and (best is None or len(found) < len(best[1])):
                best = route, found
    return best


def methods_of(path: str) -> list[str]:
    """The methods that the path has a route for."""
    return [method for method in ("GET", "POST") if find(method, path) is not None]


def link(*parts: str) -> str:
    """A path below /console, its parts percent-encoded."""
    return ROOT + "".join("/" + quote(part, safe="") for part in parts)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            found[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return found
