"""Every page for everybody: names for what can be used, one heading of the first order, colours that can be told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import OpenPage
from tests.console.crawl import crawl
from tests.console.web import Visitor
from veil.testing import VeilServer

# What a page is asked: each answer is a list of what is wrong.
QUESTIONS = """() => {
  const short = each => each.outerHTML.replace(/\\s+/g, " ").slice(0, 140);
  const named = each => (each.getAttribute("aria-label") || each.title || each.innerText || each.alt || "").trim()
    || [...(each.labels || [])].some(label => label.innerText.trim());
  const wrong = [];
  for (const each of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary"))
    if (each.checkVisibility() && !named(each)) wrong.push("no name: " + short(each));
  for (const each of document.querySelectorAll("img:not([alt])")) wrong.push("no alt: " + short(each));
  for (const each of document.querySelectorAll("svg:not([aria-hidden]):not([role])")) wrong.push("no role: " + short(each));
  const ids = [...document.querySelectorAll("[id]")].map(each => each.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("twice: #" + id);
  for (const each of document.querySelectorAll("[aria-describedby]"))
    for (const id of each.getAttribute("aria-describedby").split(" "))
      if (!document.getElementById(id)) wrong.push("nothing at #" + id);
  for (const each of document.querySelectorAll("thead th:not([scope]), tbody th:not([scope])"))
    wrong.push("no scope: " + short(each));
  if (document.querySelectorAll("h1").length !== 1) wrong.push("headings: " + document.querySelectorAll("h1").length);
  if (!document.documentElement.lang || !document.title.trim()) wrong.push("no language or title");
  return wrong;
}"""


@pytest.fixture(scope="module")
def lively() -> Iterator[VeilServer]:
    """A server with something on every page."""
    with VeilServer("--store", "memory") as server:
        client = server.client()
        dead = client.create_queue(QueueName="orders-dead")["QueueUrl"]
        redrive = {
            "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:orders-dead",
            "maxReceiveCount": "2",
        }
        url = client.create_queue(QueueName="orders", Attributes={"RedrivePolicy": json.dumps(redrive)})[
            "QueueUrl"
        ]
        client.tag_queue(QueueUrl=url, Tags={"team": "shop"})
        kind = {"Type": {"DataType": "String", "StringValue": "order"}}
        for each in (url, url, url, dead):
            client.send_message(QueueUrl=each, MessageBody='{"a": 1}', MessageAttributes=kind)
        client.receive_message(QueueUrl=url, VisibilityTimeout=600)
        client.close()
        yield server


@pytest.fixture(scope="module")
def addresses(lively: VeilServer) -> list[str]:
    """One page of each kind."""
    kinds: dict[str, str] = {}
    for address, html in crawl(Visitor(lively), "/console/overview", 150).items():
        path = address.partition("?")[0]
        kind = "/".join(
            "*" if part.isdigit() or part.startswith("orders") else part for part in path.split("/")
        )
        if html:
            kinds.setdefault(kind, address)
    return list(kinds.values())


WIDTHS = (360, 780, 1040, 1280)


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, as its package for Playwright brings it."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


# The names of the rules that a page breaks, each with the first element that does.
BROKEN_RULES = """async only => (await axe.run(document, {resultTypes: ["violations"], ...only})).violations
  .map(rule => `${rule.id}: ${rule.nodes.length} × ${rule.nodes[0].html.slice(0, 140)}`)"""


def test_every_page_can_be_read_and_used_by_everybody_and_fits_its_window(
    lively: VeilServer, addresses: list[str], axe: str, open_page: OpenPage
):
    assert len(addresses) > 12
    page = open_page(f"{lively.endpoint_url}/console/overview")
    wrong: dict[str, list[str]] = {}
    for address in addresses:
        page.goto(lively.endpoint_url + address)
        found = page.evaluate(QUESTIONS)
        page.evaluate(axe)
        # What else there is to find does not change with the colours.
        for colours, only in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme=colours)
            found += [f"{colours}: {each}" for each in page.evaluate(BROKEN_RULES, only)]
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 740})
            needed = page.evaluate("document.documentElement.scrollWidth")
            found += [f"{needed} wide in a window of {width}"] if needed > width else []
        if found:
            wrong[address] = found
    page.emulate_media(color_scheme="null")
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)


def test_what_is_wrong_would_be_found(lively: VeilServer, axe: str, open_page: OpenPage):
    page = open_page(f"{lively.endpoint_url}/console/queues")
    page.evaluate("""() => {
      const button = document.createElement("button"), pale = document.createElement("p");
      pale.textContent = "pale"; pale.style.color = "#ccc"; pale.id = "main";
      document.querySelector("main").append(button, pale);
    }""")
    assert [each.partition(":")[0] for each in page.evaluate(QUESTIONS)] == ["no name", "twice", "twice"]
    page.evaluate(axe)
    broken = {rule.partition(":")[0] for rule in page.evaluate(BROKEN_RULES, {})}
    assert {"button-name", "color-contrast"} <= broken


def test_a_page_is_used_by_keyboard_alone(lively: VeilServer, open_page: OpenPage):
    page: Any = open_page(f"{lively.endpoint_url}/console/queues")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == "orders":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/us-east-1/orders*")


def test_the_colours_that_were_chosen_are_kept(lively: VeilServer, open_page: OpenPage, tmp_path: Path):
    page = open_page(f"{lively.endpoint_url}/console/queues?search=ord", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    by_day = page.evaluate(ground)
    page.get_by_role("button", name="Colours: Dark").click()
    assert page.url.endswith("/console/queues?search=ord")
    assert page.evaluate(ground) != by_day
    page.goto(f"{lively.endpoint_url}/console/queues")
    assert page.evaluate(ground) != by_day
    page.get_by_role("button", name="Colours: System").click()
    assert page.evaluate(ground) == by_day
