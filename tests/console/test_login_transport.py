"""Nobody sends a secret over a network in clear: logging in wants TLS, this machine, or a setting that names the risk."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlencode

import pytest

from tests.console.web import Got
from veil.testing import VeilServer

KEYS = "ROOT:root-secret"
FORM = {"key_id": "ROOT", "secret": "root-secret"}
PROXY = "https://veil.example"


def own_address() -> str:
    """An address of this machine that is not loopback: whoever connects to it comes from it."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


Start = Callable[..., VeilServer]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """One server for each way to be started."""
    started: dict[tuple[str, ...], VeilServer] = {}

    def start(*arguments: str) -> VeilServer:
        if arguments not in started:
            given = ("--store", "memory", "--host", "0.0.0.0", *arguments)
            started[arguments] = VeilServer(*given, environ={"VEIL_KEYS": KEYS})
        return started[arguments]

    yield start
    for server in started.values():
        server.close()


def ask(
    server: VeilServer,
    method: str = "GET",
    *,
    address: str,
    host: str,
    scheme: str = "http",
    fields: dict[str, str] | None = None,
    cookie: str = "",
) -> Got:
    headers = {"Host": host, "Cookie": cookie}
    if method == "POST":
        headers |= {"Origin": f"{scheme}://{host}", "Content-Type": "application/x-www-form-urlencoded"}
    with closing(HTTPConnection(address, server.port, timeout=60)) as connection:
        connection.request(method, "/console/login", urlencode(fields or {}).encode(), headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.headers.items()}
        return Got(answer.status, answer.read().decode(), named)


def log_in(server: VeilServer, *, address: str, host: str, scheme: str = "http") -> Got:
    shown = ask(server, address=address, host=host)
    if shown.status != 200:
        assert "secret" not in shown.headers.get("set-cookie", "") and 'name="secret"' not in shown.text
        # Whoever sends the form all the same is refused as well.
        refused = ask(server, "POST", address=address, host=host, scheme=scheme, fields=FORM)
        assert refused.status == 403
        return shown
    cookie = shown.headers["set-cookie"].partition(";")[0]
    form = FORM | {"token": shown.token}
    return ask(server, "POST", address=address, host=host, scheme=scheme, fields=form, cookie=cookie)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "veil.example"])
def test_another_machine_cannot_log_in_over_plain_http_whatever_it_calls_the_server(start: Start, host: str):
    got = log_in(start(), address=own_address(), host=host)
    assert got.status == 403
    assert "plain HTTP would show your secret" in got.text and "console_plain_http_login" in got.text


@pytest.mark.parametrize("host", ["localhost:9324", "127.0.0.1", "[::1]:9324", "a.localhost"])
def test_this_machine_logs_in_over_plain_http(start: Start, host: str):
    got = log_in(start(), address="127.0.0.1", host=host)
    assert got.status == 303 and "Secure" not in got.headers["set-cookie"]


def test_a_plain_proxy_on_this_machine_does_not_pass_for_this_machine(start: Start):
    got = log_in(start(), address="127.0.0.1", host="veil.example")
    assert got.status == 403


def test_the_setting_that_names_the_risk_lets_everybody_log_in(start: Start):
    server = start("--console-plain-http-login")
    assert log_in(server, address=own_address(), host="veil.example").status == 303


@pytest.mark.parametrize("host", ["veil.example", "veil.example:443"])
def test_behind_a_proxy_that_speaks_tls_the_cookie_is_secure(start: Start, host: str):
    server = start("--base-url", PROXY)
    got = log_in(server, address=own_address(), host=host, scheme="https")
    assert got.status == 303 and got.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    "host, scheme", [("veil.example:9324", "http"), ("10.0.0.1", "http"), ("veil.example", "http")]
)
def test_whoever_goes_past_the_proxy_cannot_log_in(start: Start, host: str, scheme: str):
    got = log_in(start("--base-url", PROXY), address=own_address(), host=host, scheme=scheme)
    assert got.status == 403


def test_a_start_on_all_addresses_over_plain_http_is_warned_about_once(start: Start):
    said = start().log_text()
    assert said.count("host=0.0.0.0 is reached over plain HTTP") == 1
    assert "plain HTTP" not in start("--base-url", PROXY).log_text()
