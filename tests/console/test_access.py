"""Who comes in and what they may do: keys, roles, tokens, sites; each refusal changes nothing and says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.console.conftest import OpenPage, live_events
from tests.console.web import Visitor
from veil.testing import VeilServer

KEYS = "ROOT:root-secret,LOOK:look-secret::viewer,WORK:work-secret::operator,OTHER:other-secret:222222222222"
EDIT = "/console/queues/us-east-1/orders/edit"


@pytest.fixture(scope="module")
def locked() -> Iterator[VeilServer]:
    """A server with keys, and a queue in it."""
    with VeilServer("--store", "memory", environ={"VEIL_KEYS": KEYS}) as server:
        client = server.client(aws_access_key_id="ROOT", aws_secret_access_key="root-secret")
        client.create_queue(QueueName="orders")
        client.close()
        yield server


@pytest.fixture
def orders(server: VeilServer, sqs: Any) -> str:
    return str(sqs.create_queue(QueueName="orders")["QueueUrl"])


def timeout_of(client: Any, url: str) -> str:
    got = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    return str(got["Attributes"]["VisibilityTimeout"])


def confirmed(visitor: Visitor, fields: dict[str, str]) -> dict[str, str]:
    """What the confirmation of the change would send."""
    import re

    shown = visitor.post(EDIT, fields)
    assert shown.status == 200, shown.text
    plan = re.search(r'name="plan" value="(\w+)"', shown.text)
    assert plan is not None
    return fields | {"step": "make", "plan": plan[1]}


# ---- without keys: this machine, its own pages


def test_a_confirmed_form_of_our_own_page_is_done(server: VeilServer, sqs: Any, orders: str):
    visitor = Visitor(server)
    fields = confirmed(visitor, {"token": visitor.get(EDIT).token, "visibility_s": "77"})
    assert visitor.post(EDIT, fields).status == 303
    assert timeout_of(sqs, orders) == "77"


@pytest.mark.parametrize("token", ["", "0" * 64, "another visitor's", "é"])
def test_a_form_without_the_visitors_own_token_is_refused(
    server: VeilServer, sqs: Any, orders: str, token: str
):
    visitor = Visitor(server)
    fields = confirmed(visitor, {"token": visitor.get(EDIT).token, "visibility_s": "77"})
    if token == "another visitor's":
        token = Visitor(server).get(EDIT).token
    got = visitor.post(EDIT, fields | {"token": token})
    assert got.status == 403 and "not made for your session" in got.text
    assert timeout_of(sqs, orders) == "30"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
    ids=str,
)
def test_a_form_from_another_site_is_refused(
    server: VeilServer, sqs: Any, orders: str, headers: dict[str, str]
):
    visitor = Visitor(server)
    fields = confirmed(visitor, {"token": visitor.get(EDIT).token, "visibility_s": "77"})
    assert visitor.post(EDIT, fields, **headers).status == 403
    assert timeout_of(sqs, orders) == "30"


def test_a_form_of_unknown_origin_is_refused(server: VeilServer, sqs: Any, orders: str):
    visitor = Visitor(server)
    fields = confirmed(visitor, {"token": visitor.get(EDIT).token, "visibility_s": "77"})
    visitor.origin = None
    assert visitor.post(EDIT, fields).status == 403
    assert timeout_of(sqs, orders) == "30"


def test_another_name_for_this_machine_is_refused(server: VeilServer):
    got = Visitor(server).get("/console/queues", Host="rebound.example")
    assert got.status == 403 and "rebound.example" in got.text


def test_a_link_from_another_site_opens_the_console(server: VeilServer):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert Visitor(server).get("/console/queues", **link).status == 200
    framed = link | {"Sec-Fetch-Dest": "iframe"}
    assert Visitor(server).get("/console/queues", **framed).status == 403


def test_every_answer_carries_the_rules_for_browsers(server: VeilServer):
    for path in ("/console/queues", "/console/nowhere", "/console/static/console.css", "/console"):
        headers = Visitor(server).get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_a_page_of_another_site_cannot_post_its_form_here(
    server: VeilServer, sqs: Any, orders: str, open_page: OpenPage
):
    with VeilServer() as other:  # any page of another origin will do
        page = open_page(
            f"{other.endpoint_url}/console/queues",
            expected=(
                f"asked {server.endpoint_url}",
                "403",
                "404",  # the plain answer has no icon, so the browser asks for one
                "policy broken: form-action",
                "Content Security Policy",
            ),
            bypass_csp=True,
        )
        page.evaluate(
            """address => {
                const form = document.createElement("form");
                form.method = "post"; form.action = address;
                for (const [name, value] of [["visibility_s", "77"], ["step", "make"]]) {
                    const field = document.createElement("input");
                    field.name = name; field.value = value; form.append(field);
                }
                document.body.append(form); form.submit();
            }""",
            server.endpoint_url + EDIT,
        )
        page.wait_for_url(f"{server.endpoint_url}/**")
        assert "another" in page.locator("body").inner_text()
    assert timeout_of(sqs, orders) == "30"


# ---- with keys


def test_whoever_is_not_logged_in_is_asked_to(locked: VeilServer, open_page: OpenPage):
    page = open_page(f"{locked.endpoint_url}/console/queues?search=ord")
    assert page.get_by_role("heading", name="Log in").is_visible()

    page.get_by_label("Access key id").fill("ROOT")
    page.get_by_label("Secret access key").fill("root-secret")
    page.get_by_role("button", name="Log in").click()

    assert page.url.endswith("/console/queues?search=ord")
    assert page.locator("#queue-rows").inner_text().startswith("orders")
    page.get_by_role("button", name="Log out").click()
    page.goto(f"{locked.endpoint_url}/console/queues")
    assert page.get_by_role("heading", name="Log in").is_visible()


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(locked: VeilServer):
    got = Visitor(locked).log_in("ROOT", "root-secret")
    assert got.status == 303
    assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= set(got.headers["set-cookie"].split("; "))


@pytest.mark.parametrize("path", ["/console/queues", "/console/queues/live", EDIT])
def test_nothing_is_shown_to_strangers(locked: VeilServer, path: str):
    visitor = Visitor(locked)
    assert "orders</a>" not in visitor.get(path).text
    visitor.cookie = f"veil_console_{locked.port}={'x' * 32}"
    got = visitor.get(path)
    assert (got.status == 303 or "event: gone" in got.text) and "orders</a>" not in got.text


def test_a_cookie_from_before_the_log_in_is_worth_nothing_after_it(locked: VeilServer):
    visitor = Visitor(locked)
    visitor.get("/console/login")
    before = visitor.cookie
    visitor.log_in("ROOT", "root-secret")
    assert visitor.cookie != before
    visitor.cookie = before
    assert visitor.get("/console/queues").status == 303


@pytest.mark.parametrize(
    ("key", "status"),
    [(("LOOK", "look-secret"), 403), (("WORK", "work-secret"), 403), (("ROOT", "root-secret"), 200)],
)
def test_only_an_admin_edits_a_queue(locked: VeilServer, key: tuple[str, str], status: int):
    visitor = Visitor(locked)
    visitor.log_in(*key)
    assert visitor.get("/console/queues").status == 200
    assert visitor.get(EDIT).status == status
    token = visitor.get("/console/queues").token
    got = visitor.post(EDIT, {"token": token, "visibility_s": "77"})
    assert got.status == status
    if status == 403:
        assert "needs the role admin" in got.text


def test_a_key_sees_the_queues_of_its_own_account_only(locked: VeilServer):
    visitor = Visitor(locked)
    visitor.log_in("OTHER", "other-secret")
    assert "orders</a>" not in visitor.get("/console/queues").text
    assert visitor.get(EDIT).status == 404


def test_a_form_of_a_session_that_ended_is_refused(locked: VeilServer):
    visitor = Visitor(locked)
    visitor.log_in("ROOT", "root-secret")
    token = visitor.get(EDIT).token
    cookie = visitor.cookie
    visitor.post("/console/logout", {"token": token})
    visitor.cookie = cookie
    got = visitor.post(EDIT, {"token": token, "visibility_s": "77"})
    assert got.status == 403 and "session has ended" in got.text


def test_an_open_page_says_that_its_session_has_ended(locked: VeilServer, open_page: OpenPage):
    page = open_page(f"{locked.endpoint_url}/console/login")
    page.get_by_label("Access key id").fill("ROOT")
    page.get_by_label("Secret access key").fill("root-secret")
    page.get_by_role("button", name="Log in").click()
    live_events(page)
    page.context.clear_cookies()
    page.evaluate("dispatchEvent(new Event('pagehide')); dispatchEvent(new Event('pageshow'))")
    expect(page.locator("#live-state")).to_contain_text("Your session has ended. Log in again")


def test_guessing_secrets_closes_the_door():
    with VeilServer("--store", "memory", environ={"VEIL_KEYS": "ROOT:right"}) as server:
        visitor = Visitor(server)
        statuses = [visitor.log_in("ROOT", f"guess {number}").status for number in range(12)]
        assert statuses == [403] * 10 + [429] * 2
        got = visitor.log_in("ROOT", "right")
        assert got.status == 429 and int(got.headers["retry-after"]) > 200


@pytest.mark.parametrize(
    "place",
    [
        "https://evil.example",
        "//evil.example",
        "/console//evil",
        "/\\evil",
        "/elsewhere",
        "/consolex",
        "/console/../000000000000/orders?Action=DeleteQueue",
        "/console/queues/../../elsewhere",
        "/console/%2e%2E/elsewhere",
        "/console/.%2e?x=1",
        "/console/./queues",
        "/console/..#x",
        "/console/..\\elsewhere",
    ],
)
def test_a_log_in_leads_to_the_console_and_nowhere_else(locked: VeilServer, place: str):
    visitor = Visitor(locked)
    token = visitor.get("/console/login").token
    fields = {"token": token, "key_id": "ROOT", "secret": "root-secret", "next": place}
    assert visitor.post("/console/login", fields).place == "/console/overview"


# ---- where it is


@pytest.mark.parametrize(("setting", "status"), [("off", 404), ("loopback", 303), ("on", 303)])
def test_the_console_can_be_turned_off(setting: str, status: int):
    with VeilServer("--store", "memory", "--console", setting) as server:
        assert Visitor(server).get("/console").status == status


def test_without_jinja_the_console_says_how_to_install_it(tmp_path: Any):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class NoJinja:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'jinja2':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoJinja())\n"
    )
    with VeilServer("--store", "memory", environ={"PYTHONPATH": str(tmp_path)}) as server:
        got = Visitor(server).get("/console")
    assert got.status == 501 and "pip install jinja2" in got.text
