"""The demo's processes: started, killed in the middle of their work, and never left behind, however the demo ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Final
from urllib.request import urlopen

from veil.cli.client import Client, ServiceTarget
from veil.cli.failures import CommandFailed, Unreachable
from veil.client.credentials import DUMMY

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interruptions:
    """Handlers run in the main thread, which is the one that starts processes, so plain fields will do."""

    held_back = False
    waiting = False

    def arrived(self, number: int, frame: object) -> None:
        if self.held_back:
            self.waiting = True
            return
        # The second one must not stop the tidying up that the first one causes.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt


_interruptions = _Interruptions()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block SIGTERM and a lost terminal end the demo as Ctrl-C does: by KeyboardInterrupt, once."""
    before = {number: signal.signal(number, _interruptions.arrived) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_interrupted() -> Iterator[None]:
    """A block that a signal ends only afterwards: else a process could be started and nobody know it."""
    _interruptions.held_back = True
    try:
        yield
    finally:
        _interruptions.held_back = False
        if _interruptions.waiting:
            _interruptions.waiting = False
            _interruptions.arrived(signal.SIGINT, None)


# ---- in a child


def leave_with_the_demo() -> threading.Event:
    """End this process when the demo's end of its stdin is closed; the event is set once the demo has said something."""
    spoken = threading.Event()
    threading.Thread(target=_listen, args=(spoken,), daemon=True).start()
    return spoken


def _listen(spoken: threading.Event) -> None:
    # Not through sys.stdin: a thread that waits within it keeps the interpreter from ending.
    while os.read(0, 65_536):
        spoken.set()
    os.kill(os.getpid(), signal.SIGKILL)  # there is nobody left to finish anything for


# ---- children

_STOP_PATIENCE_S: Final = 60.0


def child_environ(endpoint: str, **more: str) -> dict[str, str]:
    """An environment in which AWS's variables name the demo's server, and nothing that is set for other ones counts."""
    others = ("VEIL_", "AWS_", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {
        "AWS_ENDPOINT_URL_SQS": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        **more,
    }


class Child:
    """One process, with everything that it starts itself."""

    def __init__(
        self, arguments: list[str], environ: Mapping[str, str], folder: Path, log: Path,
        heard: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        with log.open("ab") as end:
            # A session of its own, so that it can be ended with all its children, and so that ^C reaches the demo alone.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [sys.executable, "-P", *arguments],
                stdin=subprocess.PIPE,
                stdout=end if heard is None else subprocess.PIPE,
                stderr=end,
                env=environ,
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._listening: threading.Thread | None = None
        if heard is not None:
            assert self._process.stdout is not None
            self._listening = threading.Thread(
                target=_read_lines, args=(self._process.stdout, heard), daemon=True
            )
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
        """Send a signal to it and all that it has started."""
        if self._process.poll() is None:  # afterwards the number may be somebody else's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def ended(self, within_s: float) -> int | None:
        """Its exit code once it has ended and all it said was heard; None if it has not by then."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        if self._listening is not None:
            self._listening.join(within_s)
        return code

    def close(self) -> None:
        """Let go of the pipes to it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Children:
    """All processes of the demo but its server; on the way out of the block none of them is left."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder, self._environ = folder, environ
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.signal(signal.SIGKILL)
        for child in list(self._children):
            child.ended(_STOP_PATIENCE_S)
            self._forget(child)

    def start(self, log: str, *arguments: str, heard: Callable[[str], None] | None = None) -> Child:
        """Start a Python process; what it prints goes to that log, or line by line to `heard`."""
        with not_interrupted():
            child = Child(list(arguments), self._environ, self.folder, self.folder / log, heard)
            self._children.append(child)
        return child

    def kill(self, child: Child) -> None:
        """kill -9: it has no chance to finish or to give anything back."""
        child.signal(signal.SIGKILL)
        child.ended(_STOP_PATIENCE_S)
        self._forget(child)

    def stop(self, children: list[Child]) -> None:
        """Ask them to stop, and wait until they have."""
        for child in children:
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_PATIENCE_S
        for child in children:
            if child.ended(max(0.0, deadline_s - time.monotonic())) is None:
                child.signal(signal.SIGKILL)
                child.ended(_STOP_PATIENCE_S)
            self._forget(child)

    def _forget(self, child: Child) -> None:
        child.close()
        self._children.remove(child)


def _read_lines(pipe: IO[bytes], heard: Callable[[str], None]) -> None:
    with contextlib.suppress(ValueError):  # closed while reading
        for line in pipe:
            heard(line.decode(errors="replace").rstrip("\n"))


# ---- the machine

LATE_S: Final = 0.25  # a claim about a lease of a second or two cannot be shown by who wakes later than this
_WAKE_EVERY_S: Final = 0.05
_WAKES_WITHIN_S: Final = 2.0


class Lateness:
    """How late this machine was: what was woken late here was woken late in the server and the workers too."""

    def __init__(self) -> None:
        self.woken_s = self.disk_s = 0.0
        threading.Thread(target=self._watch, name="lateness", daemon=True).start()

    def _watch(self) -> None:
        # Many small delays cost whoever needs several turns as much as one that is long.
        lately: deque[float] = deque(maxlen=round(_WAKES_WITHIN_S / _WAKE_EVERY_S))
        while True:
            before_s = time.monotonic()
            time.sleep(_WAKE_EVERY_S)
            lately.append(time.monotonic() - before_s - _WAKE_EVERY_S)
            self.woken_s = max(self.woken_s, sum(lately))

    def ask(self, server: DemoServer) -> None:
        """Take note of how slow the disk was, by the server's own metrics."""
        with (
            contextlib.suppress(OSError, ValueError),
            urlopen(f"{server.endpoint}/metrics", timeout=10) as page,  # noqa: S310 - our own server
        ):
            for line in page.read().decode().splitlines():
                if line.startswith("veil_commit_worst_seconds "):
                    self.disk_s = max(self.disk_s, float(line.split()[1]))

    def __str__(self) -> str:
        """What was seen, where that was late; nothing otherwise."""
        found = {"processes were woken": self.woken_s, "writes to the disk came back": self.disk_s}
        return " and ".join(
            f"{what} up to {late_s:.1f} s late" for what, late_s in found.items() if late_s >= LATE_S
        )


# ---- the server: a real process on a free port, to be killed and started again on its data

_START_TIMEOUT_S = 120.0  # a bad machine takes its time
_STOP_TIMEOUT_S = 60.0


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
        command = [sys.executable, "-P", "-m", "veil.cli.main", "serve", "--companion"]
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
        return Client(ServiceTarget(self.endpoint, "demo", "us-east-1", DUMMY))

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
