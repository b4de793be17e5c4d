"""What the sentences about real consumers leave out: an application in a file, `veil run` on it, and what it wrote down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forked_veil import ForkedVeil, start_veil
from veil.testing import VeilServer

APP = """
import asyncio, os, time
from veil import Consumer, Heartbeat, Lease, Message, NoRenewal

app = Consumer("orders", {settings})
DIARY = open({diary!r}, "a", buffering=1)

def note(*words):
    DIARY.write(" ".join(map(str, (os.getpid(), *words))) + "\\n")

@app.handler
{kind} handle(message: Message, lease: Lease) -> None:
    note("begun", message.body, lease.token)
{work}
    note("done", message.body, lease.token)
"""


class Worker:
    """`veil run` of a small application, and the diary that its handler keeps."""

    def __init__(
        self,
        folder: Path,
        server: VeilServer,
        *,
        settings: str = "",
        work: str = "    pass",
        kind: str = "async def",
        name: str = "shop",
    ):
        self.diary_file = folder / "diary"
        self.diary_file.touch()
        (folder / f"{name}.py").write_text(
            APP.format(settings=settings, work=work, kind=kind, diary=str(self.diary_file))
        )
        self._folder, self._name = folder, name
        self._environ = {**os.environ, **server.environ}
        self.process: ForkedVeil | subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> ForkedVeil | subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "veil.cli.main",
            "run",
            f"{self._name}:app",
            "--log-level",
            "warning",
            *arguments,
        ]
        with (self._folder / "stderr").open("ab") as talk:
            self.process = start_veil(command, cwd=self._folder, env=self._environ, stderr=talk)
        return self.process

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def diary(self, event: str = "") -> list[str]:
        """What was noted: message and token, of one kind of event or with it."""
        whole, _, _half_written = self.diary_file.read_text().rpartition("\n")
        lines = [line.split(" ", 1)[1] for line in whole.splitlines()]
        return [line.removeprefix(event).strip() for line in lines if line.startswith(event)]

    def talk(self) -> str:
        return (self._folder / "stderr").read_text()


def counts(client: Any, url: str) -> tuple[int, int]:
    """Visible and hidden."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])
