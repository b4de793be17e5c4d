"""`veil run`: finds the consumer, runs it, supervises workers, and says in one line what is wrong."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Veil
from tests.forked_veil import start_veil
from tests.ports import free_ports
from tests.waiting import until
from veil.cli.run import Sources, Supervisor
from veil.testing import VeilServer

APP = """
import os
from veil import Consumer
app = Consumer("orders")
broken = {"not": "a consumer"}

@app.handler
async def handle(body: str) -> None:
    if body == "crash":
        os._exit(9)
    os.write(1, f"handled {body} by {os.getpid()}\\n".encode())  # whole lines: the workers share the file
"""

STUBBORN = """
import asyncio, os
from veil import Consumer
app = Consumer("orders", drain_timeout=0)

@app.handler
async def handle(body: str) -> None:
    os.write(1, f"handled {body} by {os.getpid()}\\n".encode())
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.fixture(autouse=True)
def clean_modules() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("shop", "faulty")):
            del sys.modules[name]
    sys.path[:] = path


# ---- one line for each mistake


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere:app", "there is no module nowhere in "),
        ("shop:ap", "module shop has no ap; its consumers are: app"),
        ("faulty_empty", "module faulty_empty has no app; it has no consumer"),
        ("shop:broken", "shop:broken is of type dict, expected a Consumer"),
        ("shop:", "'shop:': expected module:app"),
        ("shop.py", "'shop.py': expected module:app"),
        ("faulty_import:app", "importing faulty_import failed at .*faulty_import.py:1: ModuleNotFoundError: .*'zzz'"),
        ("faulty_syntax:app", "importing faulty_syntax failed at .*faulty_syntax.py:1: SyntaxError"),
        ("faulty_exit:app", "importing faulty_exit failed at .*faulty_exit.py:2: SystemExit: 3"),
        ("faulty_setting:app", "failed at .*faulty_setting.py:2: SettingsError: concurrency=0: expected"),
    ],
)  # fmt: skip
def test_a_consumer_that_cannot_be_found_is_told_in_one_line(command: Veil, target: str, words: str):
    Path("shop.py").write_text(APP)
    Path("faulty_empty.py").write_text("x = 1\n")
    Path("faulty_import.py").write_text("import zzz\n")
    Path("faulty_syntax.py").write_text("def (\n")
    Path("faulty_exit.py").write_text("import sys\nsys.exit(3)\n")
    Path("faulty_setting.py").write_text(
        "from veil import Consumer\napp = Consumer('orders', concurrency=0)\n"
    )
    ran = command("run", target)
    assert ran.code == 2
    assert re.search(words, ran.err), ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--concurrency", "0"], "expected a whole number from 1"),
        (["--workers", "many"], "expected a whole number from 1"),
        (["--log-level", "loud"], "expected one of debug, info"),
        (["--log-format", "xml"], "expected text or json"),
    ],
)
def test_an_option_that_cannot_work_is_told_in_one_line(command: Veil, options: list[str], words: str):
    Path("shop.py").write_text(APP)
    ran = command("run", "shop:app", *options)
    assert ran.code == 2
    assert words in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_queue_that_does_not_exist_is_exit_code_1(veil: Veil):
    Path("shop.py").write_text(APP)
    ran = veil("run", "shop:app", "--log-level", "error")
    assert ran.code == 1
    assert "queue orders: " in ran.err
    assert "not exist" in ran.err


LIFESPAN = """
import contextlib, json

@contextlib.asynccontextmanager
async def opened(app):
    json.loads("")
    yield

app = Consumer("orders", lifespan=opened)
"""


def test_an_error_of_the_users_own_start_is_told_with_its_traceback(veil: Veil):
    Path("shop.py").write_text(APP.replace('app = Consumer("orders")', LIFESPAN))
    with pytest.raises(json.JSONDecodeError):  # a ValueError, as a refused setting is one
        veil("run", "shop:app", "--log-level", "error")


HELPER = """
from veil import Adaptive

def a_policy():
    class Own(Adaptive): ...
    return Own()

app = Consumer("orders", helper_process=True, renewal=a_policy())
"""


def test_a_policy_that_cannot_go_to_a_helper_process_is_told_in_one_line(veil: Veil):
    veil("queue", "create", "orders")
    Path("shop.py").write_text(APP.replace('app = Consumer("orders")', HELPER))
    ran = veil("run", "shop:app", "--log-level", "error")
    assert ran.code == 1
    assert re.search("queue orders: the renewal helper cannot work: .*Own", ran.err), ran.err
    assert len(ran.err.strip().splitlines()) == 1


# ---- processes


class Running:
    """`veil run` in a process of its own."""

    def __init__(self, folder: Path, server: VeilServer, *arguments: str) -> None:
        command = [sys.executable, "-m", "veil.cli.main", "run", "shop:app", *arguments]
        self.out_file = folder / "out"
        with self.out_file.open("ab") as out:
            self.process = start_veil(
                command, cwd=folder, env={**os.environ, **server.environ}, stdout=out, stderr=out
            )

    def out(self) -> str:
        return self.out_file.read_text()

    def pids(self) -> set[int]:
        """The processes that have handled something."""
        return {int(line.split()[-1]) for line in self.out().splitlines() if line.startswith("handled")}

    def children(self) -> set[int]:
        ran = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        )
        return {int(pid) for pid in ran.stdout.split()}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path, veil_server: VeilServer) -> Iterator[Start]:
    made: list[Running] = []
    (tmp_path / "shop.py").write_text(APP)

    def begin(*arguments: str) -> Running:
        made.append(Running(tmp_path, veil_server, *arguments))
        return made[-1]

    yield begin
    for running in made:
        children = running.children()
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        for pid in children:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def send(veil_server: VeilServer) -> Callable[[str], None]:
    client = veil_server.client()
    url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "2"})["QueueUrl"]
    return lambda body: client.send_message(QueueUrl=url, MessageBody=body)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_runs_until_it_is_told_to_stop_and_answers_probes(start: Start, send: Callable[[str], None]):
    running = start("--concurrency", "3", "--health-port", "0", "--log-format", "json")
    send("one")
    until(lambda: "handled one" in running.out())
    assert '"consuming' in running.out()
    assert "with 3 slots" in running.out()
    assert running.stop() == 0
    assert "stopped consuming" in running.out()


def test_a_handler_that_will_not_be_cancelled_does_not_keep_the_process(
    start: Start, send: Callable[[str], None], tmp_path: Path
):
    (tmp_path / "shop.py").write_text(STUBBORN)
    running = start()
    send("one")
    until(lambda: "handled one" in running.out())
    assert running.stop() == 0
    assert "1 of the handlers did not end, and are left behind" in running.out()
    assert "Traceback" not in running.out()
    assert "destroyed" not in running.out()


FORKING = APP.replace(
    'if body == "crash":',
    """if body == "fork":
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        child.start()
        child.terminate()  # as a pool does with its workers
        await asyncio.to_thread(child.join, 30)
        body = f"child that ended with {child.exitcode}"
        child.kill()
    if body == "crash":""",
).replace("import os", "import asyncio, multiprocessing, os, time")


def test_a_signal_to_a_child_that_a_handler_forks_is_the_childs_alone(
    start: Start, send: Callable[[str], None], tmp_path: Path
):
    (tmp_path / "shop.py").write_text(FORKING)
    running = start()
    send("fork")
    until(lambda: "handled" in running.out())
    assert "handled child that ended with -15" in running.out()
    send("one")
    until(lambda: "handled one" in running.out())
    assert "stopping" not in running.out()
    assert running.stop() == 0


def test_workers_share_the_queue_and_stop_together(start: Start, send: Callable[[str], None]):
    running = start("--workers", "2", "--concurrency", "1")
    workers = until(lambda: len(running.children()) == 2 and running.children())
    until(lambda: running.out().count("consuming") == 2)
    for number in range(40):
        send(str(number))
    until(lambda: running.out().count("handled") == 40)
    assert running.pids() <= workers
    assert running.stop() == 0
    assert set(re.findall(r"runner\[(\d+)\]: stopped consuming", running.out())) == set(map(str, workers))
    assert not any(map(alive, workers))


def test_several_consumers_get_a_process_each(start: Start, send: Callable[[str], None], tmp_path: Path):
    (tmp_path / "second.py").write_text(APP.replace("handled {body}", "seen {body}"))
    running = start("second:app", "--concurrency", "1")
    workers = until(lambda: len(running.children()) == 2 and running.children())
    until(lambda: running.out().count("consuming") == 2)
    for number in range(40):
        send(str(number))
    until(lambda: running.out().count("handled") + running.out().count("seen") == 40)
    assert "handled" in running.out()
    assert "seen" in running.out()
    assert running.stop() == 0
    assert not any(map(alive, workers))


def test_a_worker_that_crashes_is_started_again(start: Start, send: Callable[[str], None]):
    running = start("--workers", "2")
    first = until(lambda: len(running.children()) == 2 and running.children())
    until(lambda: running.out().count("consuming") == 2)
    until(lambda: os.kill(next(iter(first)), signal.SIGKILL) is None)
    until(lambda: len(running.children()) == 2 and running.children() != first)
    until(lambda: running.out().count("consuming") == 3)
    assert "a worker ended with SIGKILL; it is restarted in 0.5 s" in running.out()
    assert running.stop() == 0


def test_workers_leave_when_their_supervisor_is_killed(start: Start, send: Callable[[str], None]):
    running = start("--workers", "2")
    workers = until(lambda: len(running.children()) == 2 and running.children())
    until(lambda: running.out().count("consuming") == 2)
    running.process.kill()
    running.process.wait()
    until(lambda: not any(map(alive, workers)))


def test_reload_restarts_when_a_source_changes(start: Start, send: Callable[[str], None], tmp_path: Path):
    running = start("--reload")
    until(lambda: "consuming" in running.out())
    (tmp_path / "shop.py").write_text(APP.replace("handled {body}", "handled anew {body}"))
    until(lambda: running.out().count("consuming") >= 2 and "restarting" in running.out())
    send("one")
    until(lambda: "handled anew one" in running.out())
    (tmp_path / "shop.py").write_text("def (")  # saved in the middle of typing
    until(lambda: "SyntaxError" in running.out())
    assert running.process.poll() is None
    (tmp_path / "shop.py").write_text(APP)
    send("two")
    until(lambda: "handled two" in running.out())
    assert running.stop() == 0


@pytest.mark.parametrize("by_option", [True, False])
def test_the_health_ports_of_workers_follow_each_other(
    start: Start, send: Callable[[str], None], tmp_path: Path, by_option: bool
):
    port = free_ports(2)
    if by_option:
        running = start("--workers", "2", "--health-port", str(port))
    else:
        (tmp_path / "shop.py").write_text(APP.replace('"orders"', f'"orders", health_port={port}'))
        running = start("--workers", "2")
    until(lambda: running.out().count("consuming") == 2)
    for each in (port, port + 1):
        with urllib.request.urlopen(f"http://127.0.0.1:{each}/readyz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
    assert running.stop() == 0


# ---- the supervisor, without waiting


def test_a_worker_that_ends_by_itself_is_not_started_again():
    supervisor = Supervisor([[sys.executable, "-c", "pass"], [sys.executable, "-c", "raise SystemExit(2)"]])
    assert supervisor.run(pause=lambda _: time.sleep(0.01)) == 2


def test_a_signal_that_comes_while_a_worker_is_being_started_reaches_it(monkeypatch: pytest.MonkeyPatch):
    def popen(*arguments: Any, **settings: Any) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(*arguments, **settings)
        signal.raise_signal(signal.SIGTERM)
        return made

    def pause(seconds: float) -> None:
        worker = supervisor._workers[0]
        assert worker.process is not None
        assert worker.process.wait(60) == -signal.SIGTERM

    monkeypatch.setattr("veil.cli.run.subprocess", SimpleNamespace(Popen=popen))
    supervisor = Supervisor([["sleep", "3600"]])
    assert supervisor.run(pause=pause) == 0


def test_restarts_come_slower_and_slower():
    now_s, starts = 0.0, []

    def pause(seconds: float) -> None:
        nonlocal now_s
        worker = supervisor._workers[0]
        if worker.process is not None:
            worker.process.wait()
            if not starts or starts[-1][1] != worker.process.pid:
                starts.append((now_s, worker.process.pid))
        now_s += 0.1
        if now_s > 20:
            supervisor._stopping = True

    supervisor = Supervisor([[sys.executable, "-S", "-c", "raise SystemExit(1)"]])
    supervisor.run(monotonic=lambda: now_s, pause=pause)
    gaps = [round(b[0] - a[0]) for a, b in itertools.pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[:4] == [1, 1, 2, 4] or gaps[:4] == [0, 1, 2, 4]


def test_sources_are_python_files_outside_of_environments(tmp_path: Path):
    (tmp_path / "a.py").write_text("")
    sources = Sources(tmp_path)
    assert sources.changed() is None
    (tmp_path / "b.py").write_text("")
    assert sources.changed() == tmp_path / "b.py"
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert sources.changed() == tmp_path / "a.py"
    (tmp_path / "b.py").unlink()
    assert sources.changed() == tmp_path / "b.py"
    for ignored in (".hidden/x.py", "__pycache__/x.py", "env/x.py", "notes.txt"):
        path = tmp_path / ignored
        path.parent.mkdir(exist_ok=True)
        if path.parent.name == "env":
            (path.parent / "pyvenv.cfg").write_text("")
        path.write_text("")
    assert sources.changed() is None
