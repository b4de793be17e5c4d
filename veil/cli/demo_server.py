"""A server of the demo's own: a real process on a free port, to be killed and started again on its data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from veil.cli.client import Client
from veil.cli.credentials import DUMMY, Place
from veil.cli.demo_signals import not_interrupted
from veil.cli.failures import CommandFailed, Unreachable

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 15.0


class DemoServer:
    """`veil serve` as a child process."""

    def __init__(self, data: Path, store: str | None = None, *, options: Sequence[str] = ()) -> None:
        self._data, self._options = data, [*options, *(("--store", store) if store is not None else ())]
        self._log = data.with_name("server.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it and return once it answers, with the seconds that took."""
        begun = time.monotonic()
        command = [sys.executable, "-m", "veil.cli.main", "serve", "--companion"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--data", str(self._data)]
        command += self._options
        # Not what is set for other servers, nor a veil.toml that happens to be here, may change the demo.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")}
        with self._log.open("ab") as log, not_interrupted():
            # As a companion it ends when this end of its stdin does: nothing is left behind, however the demo ends.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=self._data.parent,
                start_new_session=True,  # ^C is the demo's to act on
            )
        while True:
            try:
                with self.client() as client:
                    client.call("ListQueues")
                return time.monotonic() - begun
            except Unreachable:
                if self._process.poll() is not None or time.monotonic() - begun > _START_TIMEOUT_S:
                    raise CommandFailed(f"the server did not start: {self._last_words()}") from None
                time.sleep(0.02)

    def client(self) -> Client:
        """A new client of this server."""
        return Client(Place(self.endpoint, "demo", "us-east-1", DUMMY))

    def kill(self) -> None:
        """kill -9: no chance to tidy up."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """Ask it to stop and return its exit code; None when it was not running."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(how)
        assert process.stdin is not None
        try:
            return process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            process.stdin.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
