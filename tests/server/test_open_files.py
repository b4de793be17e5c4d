"""Connections and the files that the process may have open: the setting gives way, with a word about it."""

from __future__ import annotations

import http.client
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.waiting import until
from veil.server import http_limits
from veil.server.http_limits import room_for_connections

FILES = 128


def limited(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, opened: int = 20
) -> list[tuple[int, int]]:
    """A machine that allows so many; what was set is noted."""
    present = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: present[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: present.append(limits))
    monkeypatch.setattr(http_limits.Path, "iterdir", lambda place: iter(["fd"] * opened))
    return present


def test_the_limit_is_raised_as_far_as_the_connections_need(monkeypatch: pytest.MonkeyPatch):
    present = limited(monkeypatch, 1_024, 1_048_576)
    room = room_for_connections(20_000, reserved=10)
    assert room.connections == 20_000
    assert present[-1] == (20_000 + 256 + 20 + 10 + 64, 1_048_576)


@pytest.mark.parametrize("unlimited", [resource.RLIM_INFINITY])
def test_a_machine_without_a_limit_has_room(monkeypatch: pytest.MonkeyPatch, unlimited: int):
    limited(monkeypatch, unlimited, unlimited)
    assert room_for_connections(20_000).connections == 20_000
    limited(monkeypatch, 1_024, unlimited)
    assert room_for_connections(20_000).connections == 20_000


@pytest.mark.parametrize("files", [64, 128, 256, 1_024, 4_096])
def test_all_that_may_be_open_fits(monkeypatch: pytest.MonkeyPatch, files: int):
    limited(monkeypatch, files, files)
    room = room_for_connections(20_000)
    assert room.files == files
    assert 8 <= room.connections < files
    # The rest of the process keeps a quarter, or what any server needs.
    assert files - 20 - room.connections - room.refused >= min(64, files // 4)


def test_a_limit_that_may_not_be_raised_is_kept_to(monkeypatch: pytest.MonkeyPatch):
    limited(monkeypatch, 1_024, 4_096)

    def forbidden(which: int, limits: tuple[int, int]) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "setrlimit", forbidden)
    assert room_for_connections(20_000).files == 1_024


class Served:
    """A server whose process may have few files open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        for line in process.stderr:
            self.said += line
            if found := re.search(r"ready on (\S+) port (\d+)", line):
                self.port = int(found[2])
            if "connections_max" in line:
                return
        raise AssertionError(self.said)

    def status(self, path: str) -> int:
        """What a newcomer is answered; 0 for one who is turned away."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (ConnectionError, http.client.RemoteDisconnected):
            return 0
        finally:
            connection.close()

    def await_status(self, path: str, wanted: int) -> None:
        until(lambda: self.status(path) == wanted, f"{path} was never answered with {wanted}")


def start(place: Path, files: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", sys.executable, "-m", "veil.cli.main", "serve",
         "--port", "0", "--data", str(place / "data"), "--config", "/dev/null"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
    )  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    process = start(tmp_path, FILES)
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


def test_idle_connections_beyond_the_limit_shut_nobody_out_for_good(served: Served):
    assert re.search(
        r"http\.connections_max is \d\d instead of 20000: the process may have 128 files open", served.said
    )
    with ExitStack() as stack:
        for _ in range(140):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        for path in ("/healthz", "/metrics", "/console/queues"):
            served.await_status(path, 200)
        for _ in range(5):
            assert served.status("/console/queues") == 200


def test_more_newcomers_at_once_than_files_leave_the_listener_sound(served: Served):
    served.process.send_signal(signal.SIGSTOP)  # they pile up, and are all accepted in one go
    with ExitStack() as stack:
        for _ in range(400):
            newcomer = stack.enter_context(socket.socket())
            newcomer.setblocking(False)
            newcomer.connect_ex(("127.0.0.1", served.port))
        served.process.send_signal(signal.SIGCONT)
        served.await_status("/console/queues", 200)
    assert served.status("/healthz") == 200
    served.process.terminate()
    assert served.process.wait(120) == 0


def test_a_server_that_could_have_hardly_any_client_does_not_start(tmp_path: Path):
    process = start(tmp_path, 26)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert said.count("\n") <= 2 and "Traceback" not in said
    assert "26 files open" in said and "ulimit -n" in said
