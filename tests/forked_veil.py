"""`veil` in a process of its own that starts at once: forked from one that has imported Veil already.

Most tests need a server and care nothing for how it came up, and a start is nearly all imports. Signals, kills, files, the
environment and the working directory are as in any process. What a start itself does is tested on real ones (test_serve.py).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, Final

# What `veil serve` and `veil run` have imported by the time they are ready.
PRELOADED: Final = [
    "apsw", "typer._adapters", "uvloop", "veil.cli.app", "veil.cli.main", "veil.cli.run", "veil.cli.serve", "veil.console.app",
    "veil.consumer.app", "veil.consumer.runner",
    "veil.server.application", "veil.server.main", "veil.stores.memory", "veil.stores.postgres", "veil.stores.sqlite",
]  # fmt: skip
_ROOT: Final = Path(__file__).parents[1]
_forks: Final = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__, *PRELOADED])


def start_veil(command: Sequence[str], **options: Any) -> ForkedVeil | subprocess.Popen[bytes]:
    """Start a command that runs veil: forked, unless its environment has a say in what Python imports."""
    given = options.get("env") or os.environ
    own = any(
        given.get(name) != os.environ.get(name) for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
    )
    return (subprocess.Popen if own or "veil.cli.main" not in command else ForkedVeil)(command, **options)


class ForkedVeil:
    """What tests use of `subprocess.Popen`, for a command `python … -m MODULE ARGUMENTS` that runs veil."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.args = list(command)
        arguments = self.args[self.args.index("veil.cli.main") + 1 :]
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        with contextlib.ExitStack() as ours:
            null = ours.enter_context(Path(os.devnull).open("r+b"))
            given = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                if stream == subprocess.PIPE:
                    reading, writing = os.pipe()
                    theirs, kept = (reading, writing) if number == 0 else (writing, reading)
                    ours.callback(os.close, theirs)
                    name = ("stdin", "stdout", "stderr")[number]
                    setattr(self, name, open(kept, "wb" if number == 0 else "rb"))  # noqa: SIM115, PTH123
                    given.append(theirs)
                else:
                    chosen = null if stream in (None, subprocess.DEVNULL) else stream
                    given.append(chosen if isinstance(chosen, int) else chosen.fileno())
            place = os.fspath(cwd or Path.cwd())
            with contextlib.chdir(
                _ROOT
            ):  # the first starts the server, which imports from where it is started
                forkserver.ensure_running()
            self._process = _forks.Process(
                target=_run,
                args=(arguments, dict(os.environ if env is None else env), place, _Streams(given)),
            )
            self._process.start()
        self.pid = self._process.pid

    @property
    def sentinel(self) -> int:
        """Readable once it has ended."""
        return self._process.sentinel

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            assert self.pid is not None
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


# Asks for a command to be run and waits for it: for shells, which find it by its name.
_ASKS: Final = """#!{python} -IS
import json, os, signal, socket, sys
asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(asked)
    signal.signal(signal.SIGTERM, lambda *_: server.shutdown(socket.SHUT_WR))
    sys.exit(int(server.recv(8) or b"1"))
"""
_forking = threading.Lock()


@contextlib.contextmanager
def veil_on_path(folder: Path) -> Iterator[str]:
    """A directory for PATH whose command `veil` is forked; it is told to stop when its caller is, or is gone."""
    place = folder / ".forked"
    place.mkdir()
    command = place / "veil"
    command.write_text(_ASKS.format(python=sys.executable, place=str(place / "s")))
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen()
        threading.Thread(target=_answer_all, args=(listener,), daemon=True).start()
        try:
            yield str(place)
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _answer_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=_answer, args=(caller,), daemon=True).start()


def _answer(caller: socket.socket) -> None:
    with caller:
        size, streams, _, _ = socket.recv_fds(caller, 4, 3)
        asked = b""
        while len(asked) < int.from_bytes(size, "big"):
            asked += caller.recv(1 << 16)
        arguments, environ, place = json.loads(asked)
        with _forking:
            given = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            process = ForkedVeil(["veil.cli.main", *arguments], env=environ, cwd=place, **given)
        for stream in streams:
            os.close(stream)
        ended, _, _ = select.select([process.sentinel, caller], [], [])
        if process.sentinel not in ended:
            process.send_signal(signal.SIGTERM)
        code = process.wait()
        with contextlib.suppress(OSError):
            caller.sendall(str(code if code >= 0 else 128 - code).encode())


class _Streams:
    """Three file descriptors on their way to another process."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, tuple(DupFd(number) for number in self._numbers)


def _received(*streams: Any) -> list[int]:
    return [stream.detach() for stream in streams]


def _run(arguments: list[str], environ: dict[str, str], place: str, streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(place)
    sys.argv = ["veil", *arguments]

    import veil.server.main
    from veil.cli.main import main

    # The journal is read when the server has stopped: on a busy machine its last export takes longer than a stop should.
    veil.server.main._LAST_EXPORT_S = 300.0  # type: ignore[misc]
    main()
