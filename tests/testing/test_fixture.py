"""The fixture that ships with Veil: a real server, empty for each test, and gone afterwards."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forked_veil import PRELOADED
from veil.testing import VeilServer


@pytest.fixture(autouse=True)
def as_it_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are started here as in other people's suites, and not forked (tests/forked_veil.py)."""
    monkeypatch.setattr(VeilServer, "_popen", subprocess.Popen)


def test_a_client_of_the_fixture_sends_and_receives(veil_server: VeilServer):
    sqs = veil_server.client()
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    assert url.startswith(veil_server.endpoint_url)
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hello"


def test_a_reset_removes_the_queues_of_every_region(veil_server: VeilServer):
    regions = ("us-east-1", "eu-west-1")
    for region in regions:
        veil_server.client(region_name=region).create_queue(QueueName="orders")
    veil_server.reset()
    for region in regions:
        assert "QueueUrls" not in veil_server.client(region_name=region).list_queues()
        veil_server.client(region_name=region).create_queue(QueueName="orders")  # at once, without 60 seconds


def test_the_environment_leads_other_programs_to_the_server(veil_server: VeilServer):
    veil_server.client().create_queue(QueueName="orders")
    code = "import boto3; print(boto3.client('sqs').list_queues()['QueueUrls'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=os.environ | veil_server.environ,
    )  # fmt: skip
    assert "/orders" in done.stdout


def test_a_closed_server_is_gone():
    server = VeilServer()
    assert server.close() == 0
    assert server.close() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_server_does_not_outlive_a_suite_that_was_killed():
    code = (
        "import os, signal\n"
        "from veil.testing import VeilServer\n"
        "server = VeilServer()\n"
        "print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        handle = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return  # gone already
    try:
        gone, _, _ = select.select([handle], [], [], 20)
        assert gone
    finally:
        os.close(handle)


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(RuntimeError, match="store='paper'"):
        VeilServer("--store", "paper")


def test_the_caller_s_own_settings_have_no_say(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("VEIL_PORT", "nonsense")
    (tmp_path / "veil.toml").write_text("nonsense = 1")
    monkeypatch.chdir(tmp_path)
    with VeilServer() as server:
        assert server.client().create_queue(QueueName="orders")


SUITE = """
def test_one(veil_server):
    veil_server.client().create_queue(QueueName="left-over")

def test_two_finds_nothing_of_it(veil_server):
    assert "QueueUrls" not in veil_server.client().list_queues()
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_suite_elsewhere_gets_the_fixture_by_having_veil_installed(tmp_path: Path, store: str):
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--veil-store",
        store,
        str(tmp_path),
    ]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=own)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("module", [each for each in PRELOADED if each.startswith("veil.")])
def test_what_is_loaded_before_a_fork_is_there(module: str):
    """The fork server passes over what it cannot import, and every start would be slow again."""
    assert find_spec(module) is not None


def test_reading_the_log_overwrites_nothing_that_the_server_writes_meanwhile():
    server = VeilServer()
    lines = 20_000
    writes = f"import os\nfor number in range({lines}): os.write(2, b'%d\\n' % number)"
    try:
        before = server.log_text()
        with subprocess.Popen([sys.executable, "-c", writes], stderr=server._talk) as writer:
            while writer.poll() is None:
                server.log_text()
        assert server.log_text() == before + "".join(f"{number}\n" for number in range(lines))
    finally:
        server.close()
