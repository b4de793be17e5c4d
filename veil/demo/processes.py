"""The demo's processes: started, killed in the middle of their work, and never left behind, however the demo ends.

Each ends by itself when the demo's end of its stdin is closed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from veil.cli.failures import CommandFailed
from veil.client.api import ApiError, Failure

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_START_TIMEOUT_S: Final = 120.0  # a bad machine takes its time
_STOP_TIMEOUT_S: Final = 60.0


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block SIGTERM and a lost terminal end the demo as Ctrl-C does: by KeyboardInterrupt, once."""

    def interrupted(number: int, frame: object) -> None:
        for each in _SIGNALS:  # a second one must not stop the tidying up that the first one causes
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    with _signals_to(interrupted):
        yield


@contextlib.contextmanager
def _not_interrupted() -> Iterator[None]:
    """A block that a signal ends only afterwards: else a process could be started and nobody know of it."""
    waiting: list[int] = []
    try:
        with _signals_to(lambda came, frame: waiting.append(came)):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])


def leave_with_the_demo() -> threading.Event:
    """In a child: end this process when the demo does; the event is set once the demo has said something."""
    spoken = threading.Event()

    def listen() -> None:
        # Not through sys.stdin: a thread that waits within it keeps the interpreter from ending.
        while os.read(0, 65_536):
            spoken.set()
        os.kill(os.getpid(), signal.SIGKILL)  # there is nobody left to finish anything for

    threading.Thread(target=listen, daemon=True).start()
    return spoken


class Child:
    """One Python process, with everything that it starts itself."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        heard: Callable[[str], None] | None,
    ) -> None:
        with log.open("ab") as end:
            # A session of its own, so that it can be ended with all its children, and so that ^C reaches the demo alone.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=end if heard is None else subprocess.PIPE,
                stderr=end,
                env=environ,
                cwd=log.parent,
                start_new_session=True,
            )
        self.pid, self.log = self._process.pid, log
        self._listening: threading.Thread | None = None
        if heard is not None:
            self._listening = threading.Thread(target=_hear, args=(self._process.stdout, heard), daemon=True)
            self._listening.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def say(self, line: str) -> None:
        """Tell it something; it may be gone already."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:  # afterwards the number may be somebody else's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def ended(self, within_s: float = _STOP_TIMEOUT_S) -> int | None:
        """Its exit code once it has ended and all it said was heard; None if it has not by then."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        if self._listening is not None:
            self._listening.join(within_s)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return code

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'no reason given'} (all of it is in {self.log})"


def _hear(pipe: IO[bytes], heard: Callable[[str], None]) -> None:
    for line in pipe:
        heard(line.decode(errors="replace").rstrip("\n"))


class Children:
    """All processes of a demo; on the way out of the block none of them is left."""

    def __init__(self, folder: Path, **environ: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.folder, self.endpoint = folder, f"http://127.0.0.1:{self._port}"
        # AWS's variables name the demo's server, and nothing that is set for other ones counts.
        others = ("VEIL_", "AWS_", "SPARK_", "PYSPARK_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        self._environ = kept | {
            "AWS_ENDPOINT_URL_SQS": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            **environ,
        }
        self._children: list[Child] = []
        self._server: Child | None = None

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        # The server last, and properly: it has processes of its own.
        self.end([child for child in self._children if child is not self._server], signal.SIGKILL)
        self.end(self._children[:])

    def start(self, log: str, *arguments: str, heard: Callable[[str], None] | None = None) -> Child:
        """Start a Python module; what it prints goes to that log, or line by line to `heard`."""
        with _not_interrupted():
            child = Child(arguments, self._environ, self.folder / log, heard)
            self._children.append(child)
        return child

    def end(self, children: Sequence[Child], how: signal.Signals = signal.SIGTERM) -> list[int | None]:
        """Send them the signal and wait until they have ended; their exit codes."""
        codes = []
        for child in children:
            child.signal(how)
        for child in children:
            code = child.ended()
            if code is None:
                child.signal(signal.SIGKILL)
                child.ended()
            codes.append(code)
            self._children.remove(child)
        return codes

    def start_server(self, *options: str) -> tuple[Child, float]:
        """`veil serve` on the data below the folder, once it answers, with the seconds that took."""
        begun_s = time.monotonic()
        where = ("--host", "127.0.0.1", "--port", str(self._port), "--data", str(self.folder / "data"))
        self._server = server = self.start(
            "server.log", "veil.cli.main", "serve", "--companion", *where, *options
        )
        while True:
            try:
                with self.client() as client:
                    client.call("ListQueues")
                return server, time.monotonic() - begun_s
            except ApiError as error:
                if error.failure is not Failure.UNREACHABLE:
                    raise
                if server.code is not None or time.monotonic() - begun_s > _START_TIMEOUT_S:
                    raise CommandFailed(f"the server did not start: {server.last_words()}") from None
                time.sleep(0.02)

    def client(self) -> BlockingClient:
        from veil.client.blocking import BlockingClient, ServiceTarget

        return BlockingClient(ServiceTarget(self.endpoint, "us-east-1"))
