"""A real server and a real browser: every page must be quiet, under its own policy, and ask nobody else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from veil.testing import VeilServer

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE = {"width": 1280, "height": 900}
TELEPHONE = {"width": 360, "height": 740}

# Said by the browser itself when a page breaks its policy.
WATCH = """addEventListener("securitypolicyviolation", event =>
  console.error("policy broken: " + event.violatedDirective + " by " + event.blockedURI));"""


# For one file, not for the session: while it is open an event loop runs in this thread, and asynchronous tests cannot.
@pytest.fixture(scope="module")
def _browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium or Chrome on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[VeilServer]:
    """A server without keys, in memory, for the tests of one file."""
    with VeilServer() as server:
        yield server


@pytest.fixture
def sqs(server: VeilServer) -> Iterator[Any]:
    """A client of the server, which is emptied after the test."""
    client = server.client()
    yield client
    client.close()
    server.reset()


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(_browser: Any) -> Iterator[OpenPage]:
    """Opens pages in windows of their own; a page that complains or calls another host fails the test.

    `expected` are pieces of complaints that the test provokes.
    """
    contexts: list[Any] = []
    complaints: list[str] = []
    allowed: list[str] = []

    def open_page(
        address: str, *, expected: tuple[str, ...] = (), context: Any = None, **options: Any
    ) -> Any:
        allowed.extend(expected)
        if context is None:
            context = _browser.new_context(**({"viewport": WIDE} | options))
            contexts.append(context)
        host = urlsplit(address).netloc
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.add_init_script(WATCH)
        page.on(
            "console",
            lambda said: (
                complaints.append(f"{said.type}: {said.text}") if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(f"script: {error}"))
        page.on(
            "request",
            lambda request: (
                complaints.append(f"asked {request.url}")
                if urlsplit(request.url).netloc != host and not request.url.startswith("data:")
                else None
            ),
        )
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    unexpected = [each for each in complaints if not any(piece in each for piece in allowed)]
    assert not unexpected


def live_events(page: Any) -> str:
    """How many events the page has had, once it has had one: from then on it moves by itself."""
    from playwright.sync_api import expect

    # Not by a function in the page: there its policy forbids to evaluate one.
    expect(page.locator("html")).to_have_attribute("data-live-events", re.compile("[0-9]"), timeout=15_000)
    return str(page.locator("html").get_attribute("data-live-events"))
