"""What holds for every route there is: nothing is changed without a token, a role and our own site."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.console.web import Visitor
from veil.console import web as routes
from veil.console.app import load_pages
from veil.console.web import Role
from veil.testing import VeilServer

load_pages()

# The only ones for people who are not logged in.
OPEN = {("GET", "login"), ("POST", "login"), ("POST", "logout"), ("POST", "theme")}
CHANGES = [route for route in routes._routes if route.method == "POST" and route.needs is not None]
LOOKS = [route for route in routes._routes if route.method != "POST" and route.needs is not None]
FILLED = {"{region}": "us-east-1", "{name}": "orders", "{seq}": "1", "{id}": "1", "{message}": "1"}


def path_of(route: routes.Route) -> str:
    return "/console/" + "/".join(FILLED.get(part, part if part[0] != "{" else "1") for part in route.parts)


def named(route: routes.Route) -> str:
    return f"{route.method} {'/'.join(route.parts)}"


@pytest.fixture(scope="module")
def locked() -> Iterator[VeilServer]:
    keys = "ROOT:secret,LOOK:secret::viewer,WORK:secret::operator"
    with VeilServer("--store", "memory", environ={"VEIL_KEYS": keys}) as server:
        client = server.client(aws_access_key_id="ROOT", aws_secret_access_key="secret")
        client.create_queue(QueueName="orders")
        client.close()
        yield server


@pytest.fixture(scope="module")
def visitors(locked: VeilServer) -> dict[str, Visitor]:
    """One of each role, logged in."""
    found = {}
    for role, key_id in (("viewer", "LOOK"), ("operator", "WORK"), ("admin", "ROOT")):
        found[role] = Visitor(locked)
        found[role].log_in(key_id, "secret")
    return found


def test_the_pages_for_strangers_are_few():
    without = {(route.method, "/".join(route.parts)) for route in routes._routes if route.needs is None}
    assert without == OPEN


def test_nobody_but_operators_and_admins_changes_anything():
    assert len(CHANGES) > 10
    assert all(route.needs in (Role.OPERATOR, Role.ADMIN) for route in CHANGES)


@pytest.mark.parametrize("route", CHANGES, ids=named)
def test_a_change_without_a_token_is_refused(visitors: dict[str, Visitor], route: routes.Route):
    admin = visitors["admin"]
    token = admin.get("/console/queues").token
    assert admin.post(path_of(route), {"step": "make"}).status == 403
    assert admin.post(path_of(route), {"step": "make", "token": "0" * 64}).status == 403
    admin_token = {"step": "make", "token": token}
    assert admin.post(path_of(route), admin_token, Origin="http://evil.example").status == 403
    assert admin.post(path_of(route), admin_token).status not in (403, 405, 500)


@pytest.mark.parametrize("route", CHANGES, ids=named)
def test_a_change_by_a_lower_role_is_refused(visitors: dict[str, Visitor], route: routes.Route):
    for role in ("viewer", "operator"):
        if Role[role.upper()] < (route.needs or 0):
            visitor = visitors[role]
            got = visitor.post(path_of(route), {"token": visitor.get("/console/queues").token})
            assert got.status == 403 and "needs the role" in got.text


@pytest.mark.parametrize("route", [*LOOKS, *CHANGES], ids=named)
def test_a_stranger_sees_and_changes_nothing(locked: VeilServer, route: routes.Route):
    stranger = Visitor(locked)
    token = stranger.get("/console/login").token
    if route.method == "POST":
        assert stranger.post(path_of(route), {"token": token, "step": "make"}).status == 403
    elif route.method == "LIVE":
        # A browser shows nothing of a stream with another status than 200: the page could not say why it stands still.
        got = stranger.get(path_of(route))
        assert got.status == 200 and got.text.count("event: ") == 1 and "Log in again" in got.text
    else:
        got = stranger.get(path_of(route))
        assert got.status == 303 and got.place.startswith("/console/login")


# ---- what a page of another site can make a browser send


@pytest.mark.parametrize("route", CHANGES, ids=named)
def test_a_change_is_made_by_nothing_but_a_form_of_our_own(
    locked: VeilServer, visitors: dict[str, Visitor], route: routes.Route
):
    admin = visitors["admin"]
    fields = {"step": "make", "token": admin.get("/console/queues").token, "word": "orders"}
    query = urlencode(fields | {"visibility_s": "77", "tags": "a=b", "body": "x", "do": "delete"})
    before = _state(locked)
    # A link or an image: fields in the address are no form.
    assert admin.get(f"{path_of(route)}?{query}").status in (200, 303, 404, 405)
    # A form, an image and a script of another site, with the visitor's cookie and even its token.
    for kind in ("document", "image", "script", "empty"):
        foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": kind}
        assert admin.post(path_of(route), fields, **foreign).status == 403
        assert admin.post(path_of(route), fields, Origin="null", **foreign).status == 403
    # A browser of old, which says nothing of where the form comes from.
    origin, admin.origin = admin.origin, None
    try:
        assert admin.post(path_of(route), fields).status == 403
    finally:
        admin.origin = origin
    assert _state(locked) == before


@pytest.mark.parametrize("route", LOOKS, ids=named)
def test_another_site_embeds_no_page(visitors: dict[str, Visitor], route: routes.Route):
    for kind in ("image", "iframe", "script", "empty"):
        foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": kind}
        assert visitors["admin"].get(path_of(route), **foreign).status == 403


def _state(server: VeilServer) -> object:
    client = server.client(aws_access_key_id="ROOT", aws_secret_access_key="secret")
    urls = client.list_queues().get("QueueUrls", [])
    told = [
        (
            url,
            client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"],
            client.list_queue_tags(QueueUrl=url).get("Tags"),
        )
        for url in urls
    ]
    client.close()
    return told
