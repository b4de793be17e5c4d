"""Goes through every page that a link leads to, and finds the forms on it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlsplit

from tests.console.web import Visitor


@dataclass
class FoundForm:
    """A form of a page, with what its fields hold."""

    page: str
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)  # those that people fill in

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        return self.action, self.method, tuple(sorted(self.fields))


class _Read(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self._page = page
        self.links: list[str] = []
        self.forms: list[FoundForm] = []
        self._open: FoundForm | None = None
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        elif tag == "form":
            action = named.get("action") or self._page
            self._open = FoundForm(self._page, action, named.get("method", "get").upper())
            self.forms.append(self._open)
        elif self._open is not None and "name" in named:
            name, kind = named["name"], named.get("type", tag)
            if tag == "select":
                self._select = name
                self._open.fields.setdefault(name, "")
                self._open.given.add(name)
            elif kind not in ("checkbox", "radio") or "checked" in named:
                self._open.fields.setdefault(name, named.get("value", ""))
                if kind not in ("hidden", "submit", "button"):
                    self._open.given.add(name)
            else:
                self._open.given.add(name)
        elif tag == "option" and self._open is not None and self._select and "selected" in named:
            self._open.fields[self._select] = named.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None
        elif tag == "select":
            self._select = ""


def read_page(address: str, html: str) -> tuple[list[str], list[FoundForm]]:
    """The links and forms of a page."""
    read = _Read(address)
    read.feed(html)
    read.close()
    return read.links, read.forms


def crawl(visitor: Visitor, start: str, pages_max: int = 400) -> dict[str, str]:
    """Every page that is reached by links from the start, by its address; pages that differ in their query alone count a few."""
    pages: dict[str, str] = {}
    seen, waiting = {start}, deque([start])
    by_path: dict[str, int] = {}
    while waiting and len(pages) < pages_max:
        address = waiting.popleft()
        got = visitor.get(address)
        if got.status == 303:
            links = [got.place]
        else:
            pages[address] = got.text if "text/html" in got.headers.get("content-type", "") else ""
            links, _ = read_page(address, pages[address])
        for link in links:
            parts = urlsplit(link)
            if not parts.path.startswith("/console") or "/static/" in parts.path or link in seen:
                continue
            by_path[parts.path] = by_path.get(parts.path, 0) + 1
            if by_path[parts.path] <= 6:
                seen.add(link)
                waiting.append(link.partition("#")[0])
    return pages
