"""The console costs nothing until it is opened: not at the import, not at the start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.console.web import Visitor
from veil.testing import VeilServer


@pytest.mark.parametrize("module", ["veil", "veil.server.main"])
def test_nothing_of_the_console_is_loaded_before_it_is_opened(module: str):
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"jinja2", "markupsafe", "veil.console", "veil.console.app"})


def test_the_front_page_of_the_server_names_it(server: VeilServer):
    assert "/console" in Visitor(server).get("/").text


def test_static_files_may_be_kept_for_ever_and_pages_not_at_all(server: VeilServer):
    visitor = Visitor(server)
    assert visitor.get("/console/queues").headers["cache-control"] == "no-store"
    style = visitor.get("/console/static/console.css")
    assert "immutable" in style.headers["cache-control"]
    assert style.headers["content-type"] == "text/css; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "nothing.css", "", "vendor/htmx-2.0.11/LICENSE"]
)
def test_no_other_file_is_served(server: VeilServer, path: str):
    assert Visitor(server).get(f"/console/static/{path}").status == 404


def test_a_method_that_a_page_does_not_have_is_refused(server: VeilServer):
    got = Visitor(server).post("/console/queues", {})
    assert got.status == 405 and got.headers["allow"] == "GET"
