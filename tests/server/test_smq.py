"""SMQ's port on a real server: off unless asked for, told wherever the server tells of itself, guarded like the other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from veil.server.settings import ServerSettingsError, load_settings
from veil.testing import VeilServer


@pytest.fixture(scope="module")
def server() -> Iterator[VeilServer]:
    with VeilServer("--store", "memory", "--smq-port", "0") as server:
        yield server


def get(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def test_the_port_is_off_unless_it_is_given():
    assert load_settings({}, {}, "/dev/null").smq_port is None
    assert load_settings({"smq_port": "0"}, {}, "/dev/null").smq_port == 0
    assert load_settings({}, {"VEIL_SMQ_PORT": "9326"}, "/dev/null").smq_port == 9326
    with VeilServer() as server:
        assert server.smq_endpoint_url is None


@pytest.mark.parametrize("text", ["x", "-1", "65536"])
def test_a_port_that_is_none_is_refused_by_name(text: str):
    with pytest.raises(
        ServerSettingsError, match=r"smq_port='.*' \(--smq-port\): expected a whole number from 0 to 65535"
    ):
        load_settings({"smq_port": text}, {}, "/dev/null")


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "veil.cli.main", "serve", "--store", "memory", "--port", "0"]
        ran = subprocess.run([*command, "--smq-port", port], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 1
    assert f"smq_port={port}: already in use on 127.0.0.1" in ran.stderr
    assert "--smq-port 0 takes a free one" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_and_the_settings_in_effect_tell_of_it(tmp_path: Path):
    run = [sys.executable, "-m", "veil.cli.main"]
    shown = subprocess.run([*run, "serve", "--help"], capture_output=True, text=True, env={"COLUMNS": "200"})
    assert "--smq-port" in shown.stdout
    config = [*run, "config", "show", "--json", "--smq-port", "9326"]
    told = subprocess.run(config, capture_output=True, text=True, cwd=tmp_path)
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert {"name": "smq_port", "value": 9326, "origin": "--smq-port"} in rows


def test_the_greeting_shows_the_line_to_paste():
    from veil.server.main import greeting
    from veil.server.settings import Settings

    shown = greeting(Settings(), "http://127.0.0.1:9324", None, ["ak"], "1", smq="http://127.0.0.1:9326")
    assert "  console  http://127.0.0.1:9324/console" in shown.splitlines()
    assert '  SMQ      mns.account.Account("http://127.0.0.1:9326", "ak", "SECRET")' in shown.splitlines()
    assert "SMQ" not in greeting(Settings(), "http://127.0.0.1:9324", None, [], "1")


def test_operations_are_counted_by_name(server: VeilServer):
    smq = server.smq_endpoint_url
    assert get(f"{smq}/queues/counted", "PUT", b"<Queue/>")[0] == 201
    assert get(f"{smq}/queues/counted/messages", x_mns_version="2015-06-06")[0] == 404
    _, page = get(f"{server.endpoint_url}/metrics")
    assert 'action="Smq.CreateQueue",status="2xx"} 1.0' in page
    assert 'action="Smq.ReceiveMessage",status="4xx"} 1.0' in page


def test_web_pages_of_other_sites_and_other_names_of_the_host_are_turned_away(server: VeilServer):
    for headers in (
        {"Origin": "https://evil.example"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        status, body = get(f"{server.smq_endpoint_url}/queues", **headers)
        assert (status, "<Code>AccessDenied</Code>" in body) == (403, True)


def test_a_receive_that_any_page_could_send_hides_nothing(server: VeilServer):
    smq = server.smq_endpoint_url
    get(f"{smq}/queues/asked", "PUT", b"<Queue/>")
    get(f"{smq}/queues/asked/messages", "POST", b"<Message><MessageBody>x</MessageBody></Message>")
    for headers in ({}, {"Authorization": "Basic dXNlcjpwYXNz"}):
        status, body = get(f"{smq}/queues/asked/messages", **headers)
        assert (status, "<Code>AccessDenied</Code>" in body) == (403, True)
    assert get(f"{smq}/queues/asked/messages?peekonly=true")[0] == 200
    assert "<ActiveMessages>1</ActiveMessages>" in get(f"{smq}/queues/asked")[1]
    assert get(f"{smq}/queues/asked/messages", Authorization="MNS any:signature")[0] == 200
    assert get(f"{smq}/queues/asked", "DELETE")[0] == 204


def test_a_visitor_is_told_where_they_are(server: VeilServer):
    status, body = get(f"{server.smq_endpoint_url}/")
    assert status == 200
    assert "Alibaba SMQ" in body


def test_header_names_are_spelled_as_the_client_looks_them_up(server: VeilServer):
    host, _, port = (server.smq_endpoint_url or "").removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            f"GET /queues HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert b"\r\nx-mns-request-id: " in answer
    assert b"\r\nContent-Type: text/xml;charset=utf-8\r\n" in answer


def test_a_stop_answers_the_long_polls_of_both_ports(tmp_path: Path):
    server = VeilServer("--data", str(tmp_path / "data"), "--smq-port", "0")
    smq = server.smq_endpoint_url or ""
    get(f"{smq}/queues/q", "PUT", b"<Queue/>")
    host, _, port = smq.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as poll:
        target = "/queues/q/messages?waitseconds=30"
        head = f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nx-mns-version: 2015-06-06\r\n\r\n"
        poll.sendall(head.encode())
        # Answered in order on one loop: once this is, the poll has been read.
        assert get(f"{smq}/queues/q")[0] == 200
        assert server.close() == 0
        answer = poll.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"MessageNotExist" in answer
