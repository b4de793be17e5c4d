"""The page in a real browser: nothing is cut or overlaps, from a telephone to a wide screen, and it asks nobody."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.report_kit import some_findings, some_overview
from veil.pipeline.report import render_html

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Looks at the page from outside, since the page itself lets nothing run.
LOOK = """<!doctype html><body><iframe id="frame" src="/report.html" style="width:WIDTHpx;height:900px;border:0"></iframe>
<script>
const frame = document.getElementById("frame");
frame.onload = () => {
  const page = frame.contentDocument, shown = frame.contentWindow;
  const box = each => each.getBoundingClientRect();
  const scrolls = each => each.closest(".scroll");
  const outside = [...page.querySelectorAll("body *")].filter(
    each => !scrolls(each) && !each.closest("thead") && box(each).right > WIDTH + 0.5);
  const overlaps = [];
  for (const plot of page.querySelectorAll(".plot, .strip, .axis")) {
    const texts = [...plot.querySelectorAll("text")].map(each => [each.textContent, box(each)]);
    for (const [i, [name, a]] of texts.entries()) for (const [other, b] of texts.slice(i + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) overlaps.push(name + " / " + other);
    }
  }
  const told = {
    scrolls: page.documentElement.scrollWidth > WIDTH,
    outside: outside.slice(0, 5).map(each => each.outerHTML.slice(0, 200)),
    overlaps: overlaps.slice(0, 5),
    styled: shown.getComputedStyle(page.querySelector(".card")).borderRadius,
    plots: page.querySelectorAll(".plot").length,
  };
  document.body.setAttribute("data-told", JSON.stringify(told));
};
</script>"""


@pytest.fixture
def site() -> Iterator[tuple[str, list[str]]]:
    """A server of the report and of pages that look at it, and what it was asked for."""
    findings = some_findings(8)
    page = render_html(findings, some_overview(findings))
    asked: list[str] = []

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            width = re.fullmatch(r"/look/([0-9]+)", self.path)
            body = LOOK.replace("WIDTH", width[1]) if width else page if self.path == "/report.html" else ""
            data = body.encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.parametrize("width", [360, 800, 1280, 1900])
def test_nothing_is_cut_or_overlaps_and_nobody_is_asked(
    width: int, site: tuple[str, list[str]], tmp_path: Path
):
    address, asked = site
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}",
        f"--window-size={width + 40},1000", "--virtual-time-budget=10000", "--dump-dom", f"{address}/look/{width}",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    found = re.search(r'data-told="([^"]*)"', ran.stdout)
    assert found is not None, ran.stderr
    told = json.loads(
        found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    assert told == {"scrolls": False, "outside": [], "overlaps": [], "styled": "10px", "plots": told["plots"]}
    assert told["plots"] > 20
    # The page that looks has no icon of its own, so a browser may ask for that.
    assert [path for path in asked if path != "/favicon.ico"] == [f"/look/{width}", "/report.html"]
