"""A `veil serve` of its own, to be killed, stopped and started again on the same data."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.forked_veil import ForkedVeil, start_veil
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[2]
_READY_TIMEOUT_S = 90.0
WORKERS = "VEIL_TEST_WORKERS"  # how many workers every server of a rig has, for `--workers` of python -m tests.faults


class ServerGone(Exception):
    """The server ended by itself, or never became ready; the text ends with what it said."""


def command_of(pid: int | str) -> bytes:
    """The command line of a process; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class ServerProcess:
    """Keeps its port and its data over any number of lives.

    `broken` names a fault of broken_server.py to build in; `meter` is where metered_server.py leaves its table, `stalls`
    where stalling_server.py looks for what is to stall; `network` is the namespace that it lives in.
    """

    def __init__(
        self,
        data: Path,
        scratch: Path,
        *,
        broken: str | None = None,
        meter: Path | None = None,
        stalls: Path | None = None,
        arguments: tuple[str, ...] = (),
        network: str | None = None,
    ) -> None:
        self.data = data
        self.port = free_port()
        self.log_path = scratch / "server.log"
        self._ready_file = scratch / "ready.json"
        self._module = ["veil.cli.main"]
        if broken is not None:
            self._module = ["tests.faults.broken_server", broken]
        elif meter is not None:
            self._module = ["tests.faults.metered_server", str(meter)]
        elif stalls is not None:
            self._module = ["tests.faults.stalling_server", str(stalls)]
        self._arguments, self._network = arguments, network
        self._process: ForkedVeil | subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def workers(self) -> list[int]:
        """The processes of its workers; none where it serves alone."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        found = [int(pid) for pid in children if b"veil.server.worker" in command_of(pid)]
        return sorted(found)

    def start(self) -> None:
        """Start, and return when requests are answered."""
        self._ready_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            *self._module,
            "serve",
            "--data",
            str(self.data),
            "--port",
            str(self.port),
        ]
        command += ["--config", os.devnull, "--no-rest-rules", "--log-level", "warning"]
        command += ["--ready-file", str(self._ready_file), *self._arguments]
        if WORKERS in os.environ and "--workers" not in self._arguments:
            command += ["--workers", os.environ[WORKERS]]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")}
        with self.log_path.open("ab") as log:
            if self._network is not None:
                command = ["ip", "netns", "exec", self._network, *command]
            start = start_veil if self._network is None else subprocess.Popen
            self._process = start(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY, env=environ
            )
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None:
                raise ServerGone(f"exit code {self._process.returncode} at the start: {self.talk()}")
            if time.monotonic() > deadline_s:
                raise ServerGone(f"not ready after {_READY_TIMEOUT_S:g} s: {self.talk()}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return bool(json.loads(self._ready_file.read_text())["pid"] == self.pid)
        return False

    def kill(self) -> None:
        """kill -9, whatever it is doing."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def terminate(self, timeout_s: float = 120.0) -> int:
        """Ask it to stop, as an operator would, and give its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def require_alive(self) -> None:
        """Raise ServerGone if it ended by itself."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise ServerGone(f"exit code {code}: {self.talk()}")

    def talk(self) -> str:
        """The end of what it said."""
        return self.log_path.read_text(errors="replace")[-2000:].strip()

    def resident_bytes(self) -> int:
        """How much memory it and its workers hold now."""
        return self._memory("VmRSS:")

    def peak_resident_bytes(self) -> int:
        """The most memory that it and its workers ever held."""
        return self._memory("VmHWM:")

    def _memory(self, line: str) -> int:
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (self.pid, *self.workers())]
        return sum(int(status.partition(line)[2].split()[0]) * 1024 for status in statuses)

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
