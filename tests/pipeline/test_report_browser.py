"""The page in a real browser: nothing is cut or overlaps, from a telephone to a wide screen, and it asks nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pipeline.report_kit import some_findings, some_overview
from veil.pipeline.report.page import render_html

WIDTHS = (360, 800, 1280, 1900)
LOOK = """() => {
  const width = document.documentElement.clientWidth;
  const box = each => each.getBoundingClientRect();
  const outside = [...document.querySelectorAll("body *")].filter(
    each => !each.closest(".scroll") && !each.closest("thead") && box(each).right > width + 0.5);
  const overlaps = [];
  for (const plot of document.querySelectorAll(".plot, .strip, .axis")) {
    const texts = [...plot.querySelectorAll("text")].map(each => [each.textContent, box(each)]);
    for (const [i, [name, a]] of texts.entries()) for (const [other, b] of texts.slice(i + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) overlaps.push(name + " / " + other);
    }
  }
  return {
    width,
    scrolls: document.documentElement.scrollWidth > width,
    outside: outside.slice(0, 5).map(each => each.outerHTML.slice(0, 200)),
    overlaps: overlaps.slice(0, 5),
    styled: getComputedStyle(document.querySelector(".card")).borderRadius,
  };
}"""


def test_nothing_is_cut_or_overlaps_and_nobody_is_asked(browser: Any, tmp_path: Path):
    findings = some_findings(8)
    report = tmp_path / "report.html"
    report.write_text(render_html(findings, some_overview(findings)), "utf-8")
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())

    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        expected = {"width": width, "scrolls": False, "outside": [], "overlaps": [], "styled": "10px"}
        assert page.evaluate(LOOK) == expected
    assert page.locator(".plot").count() > 20
    assert asked == [report.as_uri()]
    page.close()
