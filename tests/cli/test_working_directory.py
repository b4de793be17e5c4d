"""Where a command is started is not where its code comes from: a file that lies there under a known name is not run.

Each process that Veil starts looks for modules where it is installed. Only `veil run` looks in the current directory, for
the consumer that it was told to run, and for what is found nowhere else.
"""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.waiting import until
from veil.testing import VeilServer

VEIL = str(Path(sys.executable).with_name("veil"))
# Of Python's own library, of packages that a helper imports first, and those that Python imports by itself.
NAMES = (
    "asyncio", "pyarrow", "msgspec", "apsw", "uvloop", "json", "logging", "signal", "sitecustomize", "usercustomize",
    "typer", "pickle", "boto3", "prometheus_client",
)  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, the current one, with a file under each of these names that would leave a trace."""
    place = tmp_path / "planted"
    place.mkdir()
    traces = tmp_path / "traces"
    traces.mkdir()
    for name in NAMES:
        (place / f"{name}.py").write_text(
            f"open({str(traces / name)!r}, 'w').close()\nraise RuntimeError('the wrong {name}')\n"
        )
    monkeypatch.chdir(place)
    return place


def traces(planted: Path) -> list[str]:
    return sorted(each.name for each in (planted.parent / "traces").iterdir())


def clean(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")} | more


def test_the_server_of_a_test_suite_and_its_journal_helper(planted: Path, tmp_path: Path):
    data = tmp_path / "data"
    with VeilServer("--data", str(data), "--journal-interval-s", "0.1") as server:
        client = server.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="x")
        until(lambda: any(data.rglob("*.parquet")), "nothing was exported")
    assert traces(planted) == []


@pytest.mark.parametrize("command", [[VEIL], [sys.executable, "-P", "-m", "veil.cli.main"]])
def test_the_journal_helper_of_a_server(planted: Path, tmp_path: Path, command: list[str]):
    data, ready = tmp_path / "data", tmp_path / "ready"
    arguments = ["serve", "--port", "0", "--data", str(data), "--journal-interval-s", "0.1"]
    arguments += ["--ready-file", str(ready), "--queues", "q"]
    process = subprocess.Popen([*command, *arguments], env=clean(), stderr=subprocess.DEVNULL)
    try:
        until(ready.exists, "it never was ready")
        import json

        endpoint = json.loads(ready.read_text())["endpoint_url"]
        send = ["msg", "send", "q", "x", "--endpoint", endpoint]
        subprocess.run([*command, *send], env=clean(), check=True, capture_output=True)
        until(lambda: any(data.rglob("*.parquet")), "nothing was exported")
    finally:
        process.terminate()
        assert process.wait(120) == 0
    assert traces(planted) == []


APP = """
    from helping import note
    from veil import Consumer

    app = Consumer("q")

    @app.handler
    def handle(body: str) -> None:
        note(body)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_consumer_comes_from_there_and_nothing_else(planted: Path, tmp_path: Path, workers: str):
    """Under supervision, with the helper that renews, and with a module beside it that is installed nowhere."""
    (planted / "work.py").write_text(textwrap.dedent(APP))
    (planted / "helping.py").write_text(
        f"from pathlib import Path\ndef note(body):\n    Path({str(tmp_path)!r}, body).touch()\n"
    )
    with VeilServer() as server:
        client = server.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="handled")
        command = [VEIL, "run", "work:app", "--workers", workers, "--endpoint", server.endpoint_url]
        process = subprocess.Popen(command, env=clean(**server.environ), stderr=subprocess.PIPE, text=True)
        try:
            until(
                lambda: (tmp_path / "handled").exists() or process.poll() is not None,
                "the message was never handled",
            )
        finally:
            process.terminate()
            _, said = process.communicate(timeout=60)
    assert (tmp_path / "handled").exists(), said
    assert traces(planted) == []


def test_the_named_module_is_the_one_that_lies_there(tmp_path: Path):
    """Also where something of the same name is installed; what was imported before is not replaced."""
    for name in ("yaml", "wheel"):
        (tmp_path / f"{name}.py").write_text("from veil import Consumer\napp = Consumer('from-here')\n")
        look = f"from veil.cli.run import find_app; print(find_app('{name}:app').settings.name)"
        ran = subprocess.run(
            [sys.executable, "-P", "-c", look], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.stdout == "from-here\n", ran.stderr


def test_the_helper_that_renews_starts_where_its_consumer_does_not_look(planted: Path):
    """A consumer in a script of its own elsewhere: the current directory is nothing to it."""
    from veil.consumer.renewal.keeper_process import HelperPipe

    heard: list[object] = []
    needs = base64.b64encode(pickle.dumps((dict, None)))
    pipe = HelperPipe(needs, lambda _, message: heard.append(message))
    until(lambda: bool(heard), "it said nothing")
    pipe.say("close")
    pipe.close(30)
    assert traces(planted) == []
