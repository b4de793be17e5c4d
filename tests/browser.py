"""One Chromium for all the tests of a process: to start one, and a window in it, costs more than most pages do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest

# The shell costs half of what a whole browser does. Not by Debian's scripts around them, which add flags of a desktop.
_PLACES: Final = (
    "/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium",
    "chromium", "chromium-browser", "google-chrome",
)  # fmt: skip
BROWSER: Final = next(filter(None, map(shutil.which, _PLACES)), None)
# Names that pages of other sites, and servers, have in tests.
NAMES: Final = ("evil.example", "veil", "queue.internal", "a.localhost")
_FLAGS: Final = (
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--in-process-gpu",
    # One process draws all pages, of whatever site: to start another costs more than the page.
    "--renderer-process-limit=1", "--disable-site-isolation-trials",
    "--host-resolver-rules=" + ",".join(f"MAP {name} 127.0.0.1" for name in NAMES),
)  # fmt: skip


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium or Chrome on this machine")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)  # as long as a page's own: under load a live page moves more rarely

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=_FLAGS)
        asyncio._set_running_loop(None)
        yield chromium
        asyncio._set_running_loop(chromium._loop)
        chromium.close()


@pytest.fixture
def browser(_chromium: Any) -> Iterator[Any]:
    """The browser. Its event loop counts as running in this thread for this test alone, so that others can run their own."""
    asyncio._set_running_loop(_chromium._loop)
    yield _chromium
    asyncio._set_running_loop(None)
