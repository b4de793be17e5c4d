"""What holds for every route there is: nothing is changed without a token, a role and our own site."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.console.web import Visitor
from veil.console import pages, routes
from veil.console.roles import Role
from veil.testing import VeilServer

for _name in pages.MODULES:
    import_module(f"veil.console.pages.{_name}")

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
        assert stranger.get(path_of(route)).status == 401
    else:
        got = stranger.get(path_of(route))
        assert got.status == 303 and got.place.startswith("/console/login")
