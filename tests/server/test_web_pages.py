"""Web pages and the server: whatever a page of another site makes a real browser send, nothing is changed by it.

The page sends every kind of request that needs no permission (images, scripts, forms, beacons, reports, …), to a server
without keys, under each name that the server answers to. For plain-http names that are not localhost a browser tells
nothing about the page with a GET, which is why those are here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest

from tests.browser import NAMES
from tests.http_stub import StubAnswer, StubRequest, http_stub
from veil.testing import VeilServer

SITE = NAMES[0]

# What a page may send without being allowed to: each gets the address it is to ask, and adds its own name.
PAGE = """<!doctype html><meta name="referrer" content="%(policy)s"><body><script>
const add = (kind, set) => { const e = document.createElement(kind); set(e); document.body.append(e); return e; };
const urls = %(urls)s;
let count = 0;
for (const [url, form] of urls) {
  const to = name => url + (url.includes("?") ? "&" : "?") + "by=" + name;
  new Image().src = to("image");
  add("script", e => e.src = to("script"));
  add("link", e => { e.rel = "stylesheet"; e.href = to("style"); });
  add("iframe", e => e.src = to("frame"));
  fetch(to("get"), {mode: "no-cors"}).catch(() => 0);
  fetch(to("post"), {method: "POST", mode: "no-cors", body: form}).catch(() => 0);
  navigator.sendBeacon(to("beacon"), new URLSearchParams(form));
  add("a", e => { e.ping = to("ping"); e.href = "#there"; }).click();
  for (const [method, coding] of [["get", ""], ["post", "application/x-www-form-urlencoded"], ["post", "text/plain"]]) {
    const frame = add("iframe", e => e.name = "frame" + count++);
    add("form", e => {
      e.method = method; e.enctype = coding; e.target = frame.name; e.action = to("form" + method + coding.slice(0, 4));
      for (const [name, value] of new URLSearchParams(method == "get" ? url.split("?")[1] || "" : form)) {
        const field = document.createElement("input");
        field.name = name; field.value = value; e.append(field);
      }
    }).submit();
  }
}
</script>"""
KINDS = ("image", "script", "style", "frame", "get", "post", "beacon", "ping", "formpostappl", "formposttext")


PAGES: Final[dict[str, bytes]] = {}  # of the site, by path


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a site whose owner means no good."""

    def page(asked: StubRequest) -> StubAnswer:
        return StubAnswer(
            PAGES.get(asked.path.partition("?")[0], b"<!doctype html>"), content_type="text/html"
        )

    with http_stub(page) as url:
        yield url.replace("127.0.0.1", SITE)


@pytest.fixture(scope="module")
def server() -> Iterator[VeilServer]:
    arguments = (
        "--store",
        "memory",
        "--smq-port",
        "0",
        "--allowed-hosts",
        "queue.internal",
        "--no-rest-rules",
    )
    with VeilServer(*arguments) as server:
        yield server


def addresses(server: VeilServer, name: str) -> list[tuple[str, str]]:
    """Where to send what, and the form that goes with it where one can."""
    port, smq_port = urlsplit(server.endpoint_url).port, urlsplit(str(server.smq_endpoint_url)).port
    api, smq = f"http://{name}:{port}", f"http://{name}:{smq_port}"
    found = []
    for path, action in (
        ("/000000000000/victim", "SendMessage"),
        ("/000000000000/victim", "ReceiveMessage"),
        ("/consolex/000000000000/victim", "DeleteQueue"),
    ):
        asked = f"Action={action}&MessageBody=from-a-page"
        found.append((f"{api}{path}?{asked}", asked))
    found.append(
        (f"{smq}/queues/victim/messages", "<Message><MessageBody>from-a-page</MessageBody></Message>")
    )
    return found


@pytest.mark.parametrize(
    ("name", "policy"),
    [("127.0.0.1", "unsafe-url"), ("a.localhost", "no-referrer"), ("veil", "unsafe-url"), ("queue.internal", "no-referrer")],
)  # fmt: skip
def test_no_request_that_a_page_may_send_changes_anything(
    server: VeilServer, site: str, browser: Any, name: str, policy: str
) -> None:
    client = server.client()
    url = client.create_queue(QueueName="victim")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="mine")
    asked = addresses(server, name)
    PAGES["/attack"] = (PAGE % {"policy": policy, "urls": json.dumps(asked)}).encode()
    context = browser.new_context()
    page = context.new_page()
    missing = {f"{target}{'&' if '?' in target else '?'}by={kind}" for target, _ in asked for kind in KINDS}
    page.on("response", lambda response: missing.discard(response.url))

    def failed(request: Any) -> None:
        # Answered, but the page may not see what kind of answer.
        if "BLOCKED_BY_ORB" in (request.failure or ""):
            missing.discard(request.url)

    page.on("requestfailed", failed)
    page.goto(f"{site}/attack")
    for _ in range(1_200):
        if not missing:
            break
        page.wait_for_timeout(50)
    assert not missing, "the browser did not send everything"
    for target, _ in asked:
        visit = context.new_page()
        visit.goto(f"{site}/none")
        with visit.expect_response(target, timeout=60_000) as answer:
            visit.evaluate(f"setTimeout(() => location = {json.dumps(target)})")
        assert answer.value.status == 403
    context.close()

    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
    received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    assert [message["Body"] for message in received] == ["mine"]
    server.reset()


def test_a_link_to_the_console_still_opens_it(server: VeilServer, site: str, browser: Any) -> None:
    port = urlsplit(server.endpoint_url).port
    PAGES["/link"] = f'<!doctype html><a href="http://localhost:{port}/console">queues</a>'.encode()
    page = browser.new_page()
    page.goto(f"{site}/link")
    page.click("a")
    page.wait_for_selector("h1")
    assert page.url.startswith(f"http://localhost:{port}/console/")
    page.close()


def test_the_path_of_the_console_is_no_way_around_it(server: VeilServer) -> None:
    """At the level of HTTP: only the console's own paths may be navigated to from elsewhere."""
    from tests.console.web import Visitor

    visitor = Visitor(server)
    navigation = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    asked = "?Action=ListQueues"
    for path in (
        "/consolex/000000000000/q",
        "/consolex",
        "/console.",
        "/console%2f",
        "/Console",
        "//console",
    ):
        assert visitor.get(quote(path, safe="/%.") + asked, **navigation).status == 403, path
    for path in ("/console", "/console/queues"):
        assert visitor.get(path, **navigation).status != 403, path
