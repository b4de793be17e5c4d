"""A real server and a real browser: every page must be quiet, under its own policy, and ask nobody else."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from veil.testing import VeilServer

WIDE = {"width": 1280, "height": 900}
TELEPHONE = {"width": 360, "height": 740}

# Said by the browser itself when a page breaks its policy.
WATCH = """addEventListener("securitypolicyviolation", event =>
  console.error("policy broken: " + event.violatedDirective + " by " + event.blockedURI));"""


@pytest.fixture(scope="session")
def server(veil_session_server: VeilServer) -> VeilServer:
    """A server without keys, in memory."""
    return veil_session_server


@pytest.fixture
def sqs(server: VeilServer) -> Iterator[Any]:
    """A client of the server, which is emptied after the test."""
    client = server.client()
    yield client
    client.close()
    server.reset()


OpenPage = Callable[..., Any]


class _Window:
    """A page, and what it complains of."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": WIDE} | options))
        self.page = page = self.context.new_page()
        self.complaints: list[str] = []
        self._is_old = False  # what it shows is of an earlier test
        page.set_default_timeout(60_000)
        page.add_init_script(WATCH)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("request", self._asked)
        page.on("framenavigated", self._navigated)

    def open(self, address: str) -> Any:
        self._host = urlsplit(address).netloc
        self.context.set_offline(False)
        self._is_old = True
        self.page.goto(address)
        return self.page

    def put_away(self) -> None:
        """Make it as good as new, which costs far less than a new one."""
        self.page.goto("about:blank")  # a navigation that is under way must not end in the next test
        self.context.set_offline(True)
        self.page.unroute_all()
        self.context.clear_cookies()
        self.page.set_viewport_size(WIDE)

    def _navigated(self, frame: Any) -> None:
        if self._is_old and frame == self.page.main_frame:
            self._is_old = False
            self.complaints.clear()  # they were the last page's

    def _said(self, said: Any) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(f"{said.type}: {said.text}")

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != self._host and not request.url.startswith("data:"):
            self.complaints.append(f"asked {request.url}")


@pytest.fixture(scope="session")
def _spare_windows() -> dict[str, list[_Window]]:
    """By the options that they were opened with."""
    return defaultdict(list)


@pytest.fixture
def open_page(browser: Any, _spare_windows: dict[str, list[_Window]]) -> Iterator[OpenPage]:
    """Opens pages in windows of their own; a page that complains or calls another host fails the test.

    `expected` are pieces of complaints that the test provokes.
    """
    windows: list[tuple[str, _Window]] = []
    allowed: list[str] = []

    def open_page(
        address: str, *, expected: tuple[str, ...] = (), viewport: Any = None, **options: Any
    ) -> Any:
        allowed.extend(expected)
        kind = repr(options)
        window = _spare_windows[kind].pop() if _spare_windows[kind] else _Window(browser, **options)
        windows.append((kind, window))
        if viewport is not None:
            window.page.set_viewport_size(viewport)
        return window.open(address)

    yield open_page
    complaints = [each for _, window in windows for each in window.complaints]
    for kind, window in windows:
        if window.page.is_closed():
            window.context.close()
        else:
            window.put_away()
            _spare_windows[kind].append(window)
    assert not [each for each in complaints if not any(piece in each for piece in allowed)]


def live_events(page: Any) -> str:
    """How many events the page has had, once it has had one: from then on it moves by itself."""
    from playwright.sync_api import expect

    # Not by a function in the page: there its policy forbids to evaluate one.
    expect(page.locator("html")).to_have_attribute("data-live-events", re.compile("[0-9]"), timeout=60_000)
    return str(page.locator("html").get_attribute("data-live-events"))
